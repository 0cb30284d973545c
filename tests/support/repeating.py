"""Looks at something again and again while a block runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeatedly(look: Callable[[], object], *, every: float) -> Iterator[None]:
    """Call `look` in a thread each `every` seconds, until the block ends."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(every):
            look()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
