"""Deliveries by a process of their own: the same in MLflow, and no harm where that process fails."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from harness.core.paths import Results, SweepFolder
from harness.core.ports import free_port
from harness.tracking import Follower, Tracker, TrackerDown, follow
from tests.factories import make_record, write_sweep, write_trial
from tests.support.mlflow import everything
from tests.support.running import wait_until


@pytest.fixture
def folder(results: Results) -> SweepFolder:
    folder = results.sweep_folder("demo")
    write_sweep(folder, [make_record(), make_record(seed=1)])
    return folder


class FailingTracker:
    """Fails the first deliveries, and notes what it was asked for."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.asked: list[list[str]] = []

    def deliver_trials(self, folder: SweepFolder, trials: list[str]) -> None:
        self.asked.append(sorted(trials))
        if len(self.asked) <= self.failures:
            raise TrackerDown("down for a moment")


def test_a_hiccup_of_the_tracker_ends_no_delivery(
    folder: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it did not take comes again, and what it took does not."""
    looks = iter(range(5))

    def select_nothing(*_: object) -> tuple[list[int], list[int], list[int]]:
        look = next(looks)
        if look == 3:
            write_trial(folder, make_record(seed=2))
        return ([0] if look == 4 else []), [], []

    monkeypatch.setattr("select.select", select_nothing)
    tracker = FailingTracker(failures=1)
    follow.deliver_new(tracker, [folder])  # type: ignore[arg-type]
    both = sorted(folder.recorded_ids())[:2]
    new = sorted(set(folder.recorded_ids()) - set(both))
    assert tracker.asked == [both, both, new]


@pytest.mark.usefixtures("delivery_processes")
def test_a_process_delivers_everything_at_the_end(results: Results, folder: SweepFolder) -> None:
    with Follower(results, [folder], None) as follower:
        pass
    assert follower.trouble is None
    delivered = everything(f"sqlite:///{results.database}", "demo")
    assert len(delivered) == 4
    assert Tracker(results).deliver(folder).delivered == 0


@pytest.mark.usefixtures("delivery_processes")
def test_what_the_last_delivery_fails_with_is_one_line(
    results: Results, folder: SweepFolder
) -> None:
    with Follower(results, [folder], f"http://127.0.0.1:{free_port()}") as follower:
        pass
    assert follower.trouble is not None
    assert "collect demo` delivers the results later" in follower.trouble
    assert "\n" not in follower.trouble


@pytest.mark.usefixtures("delivery_processes")
def test_a_process_that_was_killed_fails_no_run(results: Results, folder: SweepFolder) -> None:
    with Follower(results, [folder], None) as follower:
        os.kill(follower.process.pid, signal.SIGKILL)
    assert "ended with -9; harness collect delivers the rest" in str(follower.trouble)


@pytest.mark.usefixtures("delivery_processes")
def test_a_delivery_gives_way_to_trials(results: Results, folder: SweepFolder) -> None:
    """By its own priority, and by that of its session, by which Linux may share cores out."""
    with Follower(results, [folder], None) as follower:
        number = follower.process.pid
        group = Path(f"/proc/{number}/autogroup")

        def niceness() -> list[int]:
            """Return that of the process, and that of its session where Linux has one."""
            texts = group.read_text(encoding="ascii").split()[-1:] if group.exists() else []
            return [os.getpriority(os.PRIO_PROCESS, number), *map(int, texts)]

        with suppress(TimeoutError):
            wait_until(lambda: set(niceness()) == {19}, 60)
        assert set(niceness()) == {19}
