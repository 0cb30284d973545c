"""Holds this machine for a measurement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from harness.core.progress import print_message
from harness.launch.abandoned import kill_abandoned, remove_abandoned_blocks
from harness.launch.host_lock import host_lock
from harness.spec.cluster import Profile


@contextmanager
def hold_machine(profile: Profile, activity: str) -> Iterator[None]:
    """Hold this machine for a measurement, unless the profile allows any contention.

    Another command that measures here is waited for, and named. `activity` is what whoever waits for
    this one is told.
    """
    kill_abandoned()
    lock: AbstractContextManager[None] = nullcontext()
    if profile.validity.contention is not None:
        lock = host_lock(activity, on_message=print_message)
    try:
        with lock:
            yield
    finally:
        # At the end: what the command before has left may be too new at first to be told from what is used.
        remove_abandoned_blocks()
