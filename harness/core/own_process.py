"""Tells whether the whole process is a command of the harness, and imports libraries leanly there.

In a notebook or a test run, others use the same libraries, and must find all of them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

_is_own = False


def claim() -> None:
    """Say that this process is a command of the harness, and nobody else's."""
    global _is_own
    _is_own = True


def is_own() -> bool:
    """Return whether this process is a command of the harness, which nobody else uses."""
    return _is_own


@contextmanager
def without(*packages: str) -> Iterator[None]:
    """Let imports in the block do without packages that they need not have.

    Other threads find them, and so does everybody after the block. It has no effect where the process
    is not the harness's own, nor on packages that are loaded already.
    """
    if not _is_own:
        yield
        return
    finder = _Refusal(packages)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Refusal:
    """Is asked first where a module is, and refuses packages to the thread that made it."""

    def __init__(self, packages: Collection[str]) -> None:
        self.packages = packages
        self.thread = threading.get_ident()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        """Raise ModuleNotFoundError for these packages; leave all others to the next finder."""
        if name in self.packages and threading.get_ident() == self.thread:
            raise ModuleNotFoundError(f"{name} is not needed here", name=name)
