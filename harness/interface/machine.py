"""What a machine or a cluster can do: its checks and its peaks; and holding it for a measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from harness.core.paths import Results
from harness.hardware.machine import Machine
from harness.launch import probe
from harness.launch.abandoned import kill_abandoned, remove_abandoned_blocks
from harness.launch.host_lock import host_lock
from harness.spec.cluster import Profile


@contextmanager
def hold_machine(
    profile: Profile, activity: str, *, on_message: Callable[[str], None]
) -> Iterator[None]:
    """Hold this machine for a measurement, unless the profile allows any contention.

    Another command that measures here is waited for, and named by `on_message`.
    `activity` is what whoever waits for this one is told.
    """
    kill_abandoned()
    lock: AbstractContextManager[None] = nullcontext()
    if profile.validity.contention is not None:
        lock = host_lock(activity, on_message=on_message)
    try:
        with lock:
            yield
    finally:
        # At the end: what the command before has left may be too new at first to be told from what is used.
        remove_abandoned_blocks()


def measure_peaks(
    results: Results,
    profile: Profile,
    *,
    ranks: int | None,
    on_message: Callable[[str], None],
    on_progress: Callable[[str], None],
) -> tuple[Machine, Path]:
    """Measure this machine; return what was measured, and the path of its record.

    `ranks` is how many all-reduce, None for the default of the machine. The record replaces an earlier
    one of this machine. `on_message` is that of `hold_machine`.

    Raises BadInput for more ranks than the machine has slots, and what `probe.measure` raises.
    """
    count = probe.choose_rank_count(profile, ranks)
    activity = "measuring this machine's peaks"
    with hold_machine(profile, activity, on_message=on_message):
        path, machine = probe.measure(results, profile, ranks=count, on_progress=on_progress)
    return machine, path
