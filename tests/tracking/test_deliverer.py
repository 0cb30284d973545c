"""Deliveries by a process of their own: the same in MLflow, and no harm where that process fails."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from harness.core import processes
from harness.core.paths import Results, SweepFolder
from harness.tracking import DeliveryProcess, Tracker, TrackerDown
from harness.tracking import deliverer as deliverer_module
from harness.tracking import tracker as tracker_module
from harness.tracking.connect import StoreLocked
from harness.tracking.delivery_worker import deliveries
from harness.tracking.tracker import Delivery
from tests.factories import make_record, write_sweep
from tests.support.mlflow import by_label

pytestmark = pytest.mark.usefixtures("delivery_processes")

# A command that has two trials delivered, and says what it has loaded for it. Before the first one, it
# waits until its process has loaded what a delivery needs last of all.
COMMAND = """
import sys, time
from pathlib import Path
from harness.core.paths import Results
from harness.tracking import DeliveryProcess
results = Results(Path(sys.argv[1]))
process = DeliveryProcess(results, results.sweep_folder("demo"), None)
process.start()
files = Path(f"/proc/{process.process.pid}/maps")
deadline = time.monotonic() + 300
while not all(name in files.read_text() for name in ("sqlalchemy", "_backend_agg")):
    assert time.monotonic() < deadline, "the libraries are not loaded before there is a trial"
    time.sleep(0.2)
process.deliver(sys.argv[2:3])
process.finish(sys.argv[2:])
process.close()
print("mlflow" in sys.modules, "torch" in sys.modules)
"""


@pytest.fixture
def folder(results: Results) -> SweepFolder:
    return results.sweep_folder("demo")


@pytest.fixture
def trials(folder: SweepFolder) -> list[str]:
    """Write a sweep of two trials; return their ids."""
    records = [make_record(), make_record(seed=1)]
    write_sweep(folder, records)
    return [record.trial.id for record in records]


def test_a_database_that_another_program_has_locked_is_waited_for_unless_trials_wait(
    folder: SweepFolder, trials: list[str], results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = Tracker(results)
    deliver_once = tracker._deliver_once
    locked = 3

    def deliver_unless_locked(*arguments: Any, **keywords: Any) -> Delivery:
        nonlocal locked
        locked -= 1
        if locked >= 0:
            raise StoreLocked("database is locked")
        return deliver_once(*arguments, **keywords)

    monkeypatch.setattr(tracker, "_deliver_once", deliver_unless_locked)
    monkeypatch.setattr(tracker_module, "LOCKED_PAUSE", 0.0)
    with pytest.raises(StoreLocked):
        tracker.deliver(folder, trials, in_passing=True)
    assert locked == 2
    assert tracker.deliver(folder, trials).delivered == 2
    locked = 1
    monkeypatch.setattr(tracker_module, "LOCKED_TIMEOUT", -1.0)
    with pytest.raises(StoreLocked, match="database is locked; waited"):
        tracker.deliver(folder, trials)


class RecordedTracker:
    """Takes deliveries, of which the first finds the database locked if `is_locked`."""

    def __init__(self, *, is_locked: bool = False) -> None:
        self.is_locked = is_locked
        self.trials: list[list[str]] = []
        self.in_passing: list[bool] = []

    def deliver(
        self, folder: SweepFolder, trials: Iterable[str], *, in_passing: bool = False
    ) -> Delivery:
        self.trials.append(list(trials))
        self.in_passing.append(in_passing)
        if self.is_locked:
            self.is_locked = False
            raise StoreLocked("database is locked")
        return Delivery(
            delivered=1, already_delivered=0, experiment_id="1", run_id="2", seconds=0.01
        )


class TimedRequests:
    """A queue of requests, each so many seconds after the one before, and the clock that they pass."""

    def __init__(self, *requests: tuple[float, dict[str, Any]]) -> None:
        self.now = 1000.0
        self.requests = [(seconds, request) for seconds, request in requests]

    def get(self, timeout: float | None) -> dict[str, Any]:
        seconds, request = self.requests.pop(0)
        if timeout is not None and timeout < seconds:
            self.now += timeout
            self.requests.insert(0, (seconds - timeout, request))
            raise queue.Empty
        self.now += seconds
        return request


@pytest.mark.parametrize("is_locked", [False, True], ids=["free", "locked at first"])
def test_short_trials_share_deliveries_and_a_locked_database_gets_them_later(
    folder: SweepFolder, monkeypatch: pytest.MonkeyPatch, is_locked: bool
) -> None:
    requests = TimedRequests(
        (0.0, {"trials": ["a"]}),
        (1.0, {"trials": ["b"]}),
        (1.0, {"trials": ["c"]}),
        (600.0, {"trials": ["a", "b", "c"], "is_last": True}),
    )
    monkeypatch.setattr(time, "monotonic", lambda: requests.now)
    tracker = RecordedTracker(is_locked=is_locked)
    made = deliveries(cast(Any, tracker), folder, cast(Any, requests))
    assert list(made) == [False, False, True]
    second = ["a", "b", "c"] if is_locked else ["b", "c"]
    assert tracker.trials == [["a"], second, ["a", "b", "c"]]
    assert tracker.in_passing == [True, True, False]


@pytest.fixture
def process(results: Results, folder: SweepFolder) -> Iterator[DeliveryProcess]:
    with closing(DeliveryProcess(results, folder, None)) as delivery_process:
        delivery_process.start()
        yield delivery_process


def worker_of(process: DeliveryProcess) -> psutil.Process:
    assert process.process is not None
    return psutil.Process(process.process.pid)


def test_a_command_delivers_without_loading_mlflow_by_a_process_that_loads_it_at_once(
    results: Results, folder: SweepFolder, trials: list[str], tmp_path: Path
) -> None:
    script = tmp_path / "command.py"
    script.write_text(COMMAND)
    Tracker(results).prepare()  # the process that delivers would take longer to create a database
    command = [sys.executable, "-P", str(script), str(results.path), *trials]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert printed == "False False\n"
    other = Results(tmp_path / "by this process")
    Tracker(other).deliver(folder, trials)
    shown = [by_label(f"sqlite:///{store.database}", "demo") for store in (results, other)]
    assert shown[0].keys() == shown[1].keys()
    assert len(shown[0]) == 4  # the sweep, its cell and both trials


@pytest.mark.nightly
def test_trials_are_delivered_while_others_run_at_the_lowest_priority(
    process: DeliveryProcess, results: Results, trials: list[str]
) -> None:
    process.deliver(trials[:1])
    deadline = time.monotonic() + 120
    while not results.database.exists() or len(by_label(process.tracker.uri, "demo")) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert worker_of(process).nice() == 19


@pytest.mark.nightly
def test_the_process_ends_when_nothing_more_is_delivered(
    process: DeliveryProcess, trials: list[str]
) -> None:
    worker = worker_of(process)
    process.finish(trials)
    process.close()
    assert not worker.is_running()


def test_an_error_of_the_tracker_is_the_commands(
    results: Results, folder: SweepFolder, trials: list[str]
) -> None:
    uri = f"sqlite:///{results.path}/none/mlflow.db"
    (results.path / "none").write_text("a file where a folder should be")
    with pytest.raises(TrackerDown) as expected:
        Tracker(results, uri).deliver(folder, trials)
    with closing(DeliveryProcess(results, folder, uri)) as process:
        process.start()
        with pytest.raises(TrackerDown) as raised:
            process.finish(trials)
    assert str(raised.value) == str(expected.value)


@pytest.mark.parametrize("is_busy", [False, True], ids=["before", "within a delivery"])
def test_a_process_that_is_killed_costs_no_delivery(
    process: DeliveryProcess, trials: list[str], is_busy: bool
) -> None:
    if is_busy:
        process.deliver(trials[:1])
    worker_of(process).kill()
    process.deliver(trials[1:])
    process.finish(trials)
    assert len(by_label(process.tracker.uri, "demo")) == 4


def test_a_database_may_have_a_password_that_no_other_user_sees(
    results: Results, folder: SweepFolder
) -> None:
    uri = "postgresql://me:hunter2@127.0.0.1:1/db"
    with closing(DeliveryProcess(results, folder, uri)) as process:
        process.start()
        assert "hunter2" not in " ".join(worker_of(process).cmdline())


@pytest.mark.parametrize("others", [0, 20_000], ids=["waiting", "sending"])
def test_a_process_that_hangs_is_ended(
    process: DeliveryProcess, trials: list[str], monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    monkeypatch.setattr(deliverer_module, "DELIVERY_TIMEOUT", 0.5)
    monkeypatch.setattr(deliverer_module, "POLL", 0.1)
    monkeypatch.setattr(processes, "TERMINATE_TIMEOUT", 0.2)  # what is stopped takes all of it
    worker = worker_of(process)
    os.kill(worker.pid, signal.SIGSTOP)
    with pytest.raises(TrackerDown, match=r"waited 0\.5 s for the process that delivers") as raised:
        process.finish([*trials, *(f"other-{number}" for number in range(others))])
    process.close()
    assert not worker.is_running()
    assert Path(str(raised.value).rpartition("log: ")[2]).exists()
