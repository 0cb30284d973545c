"""What a sweep file may set for a workload: the base of its `Options` and `Data`, and bounds of numbers.

No module of settings imports torch, so that planning a sweep takes no noticeable time.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Self

from msgspec import Meta

GZIP_MAGIC = b"\x1f\x8b"


def Between(low: float | None = None, high: float | None = None) -> Meta:  # noqa: N802
    """Return the bounds of a number, both included, as in `Annotated[int, Between(1)]`.

    None leaves an end open.
    """
    return Meta(ge=low, le=high)


Count = Annotated[int, Between(1)]
Fraction = Annotated[float, Between(0, 0.99)]
Rate = Annotated[float, Between(1e-8, 10)]  # a learning rate
Decay = Annotated[float, Between(0, 10)]  # of weights
Seed = Annotated[int, Between(0, 2**32 - 1)]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of a workload's `Options` and `Data`: the fields are the keys that a sweep file may set.

    A field of type `Path`, or a list, tuple or dict of paths, says where files are. A cell's
    identity depends on the content of those files and on the field, and not on the path.
    """

    def with_paths_relative_to(self, base: Path) -> Self:
        """Return the same settings with relative paths taken as relative to `base`."""
        values = map_paths(self._values(), lambda path: base / path)
        return replace(self, **values)

    def paths(self) -> dict[str, Path]:
        """Return every path by the setting that has it, as in `start` and `shards[0]`."""
        paths: dict[str, Path] = {}
        for name, value in self._values().items():
            paths.update(_paths_in(value, name))
        return paths

    def files(self) -> list[Path]:
        """Return every file whose content decides what the workload computes, in a fixed order.

        One that does not exist is among them too.
        """
        files = {}  # an ordered set
        for path in self.paths().values():
            of_path = _files_below(path) if path.is_dir() else [path]
            files.update(dict.fromkeys(of_path))
        return list(files)

    def identity(self) -> dict[str, Any]:
        """Return the settings without their paths.

        Together with the digests of `files()` they decide what a workload computes.
        """
        values = {}
        for name, value in self._values().items():
            if not isinstance(value, Path):
                values[name] = map_paths(value, lambda path: None)
        return values

    def check(self) -> None:
        """Check the files before anything starts.

        Raises ValueError that names the file, what was found and what is allowed, or OSError. Where the
        message begins with the name of a field and a colon, or with the path of a setting, the harness shows
        that key of the sweep file.
        """

    def conflict(self, axes: dict[str, Any]) -> str | None:
        """Return why these settings make no sense with a cell's axes, None if they do."""
        return None

    def _values(self) -> dict[str, Any]:
        """Return the value of each setting by its name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class Target:
    """The metric that a workload is trained towards: a key of what `Workload.metrics` returns."""

    name: str
    higher_is_better: bool = True


def map_paths(value: Any, change: Callable[[Path], Any]) -> Any:
    """Return the value of a setting with `change` applied to each path in it."""
    if isinstance(value, Path):
        return change(value)
    if isinstance(value, list):
        return [map_paths(item, change) for item in value]
    if isinstance(value, tuple):
        return tuple(map_paths(item, change) for item in value)
    if isinstance(value, dict):
        return {key: map_paths(item, change) for key, item in value.items()}
    return value


def _paths_in(value: Any, name: str) -> Iterator[tuple[str, Path]]:
    """Yield each path in the value of the setting `name`, by its place there."""
    if isinstance(value, Path):
        yield name, value
    elif isinstance(value, list | tuple | dict):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _paths_in(item, f"{name}[{key}]")


def _files_below(folder: Path, above: frozenset[Path] = frozenset()) -> list[Path]:
    """Return all files below a folder, those in linked folders too.

    `above` are the folders around it, to which a link may lead back.
    """
    real = folder.resolve()
    if real in above:
        return []
    files = []
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            files += _files_below(path, above | {real})
        elif path.is_file():
            files.append(path)
    return files


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, decompressed if it is gzipped; raises ValueError and OSError."""
    content = path.read_bytes()
    if not content.startswith(GZIP_MAGIC):
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: found {error}; allowed: a complete gzip file") from None


def unfilled_batch(axes: dict[str, Any], samples: int) -> str | None:
    """Return a conflict if there are fewer samples to train on than the axes ask for in a batch."""
    if axes["batch_size"] <= samples:
        return None
    return f"batch_size {axes['batch_size']} is more than the {samples} training samples"
