"""What a command tells whoever waits for it, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str], None]


def _ignore(text: str) -> None:
    """Show no progress, as where the harness is called from Python."""


_listener: ContextVar[Listener] = ContextVar("progress", default=_ignore)


def report_progress(text: str) -> None:
    """Tell what is being done now; it replaces what was told before."""
    _listener.get()(text)


@contextmanager
def progress_shown_by(listener: Listener) -> Iterator[None]:
    """Have `listener` called with what is being done within the block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def print_message(text: str) -> None:
    """Print why nothing seems to happen, or what has happened, in a line that stays."""
    print(f"harness: {text}", file=sys.stderr, flush=True)


@contextmanager
def progress_of(subject: str) -> Iterator[None]:
    """Have what is told within the block begin with its subject."""
    listener = _listener.get()
    with progress_shown_by(lambda text: listener(f"{subject}: {text}")):
        yield
