"""Reads the names and versions of installed packages.

`importlib.metadata` parses the whole description of a package as an e-mail, which takes a millisecond
each, in every rank for several of them. Both lines are at its head, so they are looked for in the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from importlib.metadata import Distribution

# Lines of a package's description, as PEP 566 has them; its long text comes after all of them.
NAME = re.compile(r"^Name: *(\S+) *$", re.MULTILINE)
VERSION = re.compile(r"^Version: *(\S+) *$", re.MULTILINE)


def installed_version(package: str) -> str | None:
    """Return the version of a package, None if it is not installed."""
    try:
        distribution = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return None
    return name_and_version(distribution)[1]


def name_and_version(distribution: Distribution) -> tuple[str, str]:
    """Return the name of a distribution, as its author spells it, and its version."""
    description = distribution.read_text("METADATA") or ""
    name, version = NAME.search(description), VERSION.search(description)
    if name is None or version is None:  # of an older kind, as setuptools once left them
        return distribution.name, distribution.version
    return name[1], version[1]


def installed_packages() -> dict[str, str]:
    """Return the versions of all packages of this environment, by name.

    Of two with the same name, that is the one that is imported.
    """
    packages: dict[str, str] = {}
    for distribution in metadata.distributions():
        # Of a package whose metadata are damaged, Python has None, and the backport raises these.
        with suppress(FileNotFoundError, KeyError):
            name, version = name_and_version(distribution)
            if name and version:
                packages.setdefault(name, version)
    return packages


def pins(packages: Mapping[str, str]) -> str:
    """Return a line `NAME==VERSION` for each package, sorted, as `pip install -r` takes it."""
    lines = [f"{name}=={version}\n" for name, version in packages.items()]
    return "".join(sorted(lines, key=str.lower))
