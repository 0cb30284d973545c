"""Reads the names and versions of installed packages."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata


def installed_version(package: str) -> str | None:
    """Return the version of a package, None if it is not installed."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def installed_packages() -> dict[str, str]:
    """Return the versions of all packages of this environment, by name.

    Of two with the same name, that is the one that is imported.
    """
    packages: dict[str, str] = {}
    for distribution in metadata.distributions():
        # Of a package whose metadata are damaged, Python has None, and the backport raises these.
        with suppress(FileNotFoundError, KeyError):
            name, version = distribution.name, distribution.version
            if name and version:
                packages.setdefault(name, version)
    return packages


def pins(packages: Mapping[str, str]) -> str:
    """Return a line `NAME==VERSION` for each package, sorted, as `pip install -r` takes it."""
    lines = [f"{name}=={version}\n" for name, version in packages.items()]
    return "".join(sorted(lines, key=str.lower))
