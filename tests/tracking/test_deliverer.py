"""Deliveries by a process of their own: the same in MLflow, and no harm where that process fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.core import own_process
from harness.core.paths import Results, SweepFolder
from harness.tracking import Tracker, TrackerDown, choose_deliverer
from harness.tracking import deliverer as deliverer_module
from harness.tracking import tracker as tracker_module
from harness.tracking.connect import StoreLocked
from harness.tracking.deliverer import DeliveryProcess
from harness.tracking.tracker import Delivery
from tests.factories import make_record, write_sweep
from tests.support.mlflow import by_name

# A command of the harness that delivers two trials one after the other, and says what it has loaded.
COMMAND = """
import sys
from pathlib import Path
from harness.core import own_process
from harness.core.paths import Results
from harness.tracking import choose_deliverer
own_process.claim()
results = Results(Path(sys.argv[1]))
folder = results.sweep_folder("demo")
process = choose_deliverer(results, None)
for trials in [sys.argv[2:3], sys.argv[2:]]:
    delivery = process.deliver_trials(folder, trials, in_passing=len(trials) == 1)
    print(delivery.delivered, delivery.already_delivered)
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
        tracker.deliver_trials(folder, trials, in_passing=True)
    assert locked == 2
    assert tracker.deliver_trials(folder, trials).delivered == 2
    locked = 1
    monkeypatch.setattr(tracker_module, "LOCKED_TIMEOUT", -1.0)
    with pytest.raises(StoreLocked, match="database is locked; waited"):
        tracker.deliver_trials(folder, trials)


@pytest.fixture
def process(results: Results) -> Iterator[DeliveryProcess]:
    with closing(DeliveryProcess(Tracker(results))) as delivery_process:
        yield delivery_process


def worker_of(process: DeliveryProcess) -> psutil.Process:
    assert process._worker is not None
    return psutil.Process(process._worker.process.pid)


def test_a_command_delivers_without_loading_mlflow(
    results: Results, folder: SweepFolder, trials: list[str], tmp_path: Path
) -> None:
    script = tmp_path / "command.py"
    script.write_text(COMMAND)
    command = [sys.executable, "-P", str(script), str(results.path), *trials]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == ["1 0", "1 1", "False False"]
    other = Results(tmp_path / "by this process")
    Tracker(other).deliver_trials(folder, trials)
    shown = [by_name(f"sqlite:///{store.database}", "demo") for store in (results, other)]
    assert shown[0].keys() == shown[1].keys()
    assert len(shown[0]) == 4  # the sweep, its cell and both trials


def test_only_a_command_has_one(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(choose_deliverer(results, None), Tracker)
    monkeypatch.setattr(own_process, "_is_own", True)
    assert isinstance(choose_deliverer(results, None), DeliveryProcess)


def test_the_process_ends_when_nothing_more_is_delivered(
    process: DeliveryProcess, folder: SweepFolder, trials: list[str]
) -> None:
    process.load()
    worker = worker_of(process)
    assert process.deliver_trials(folder, trials).delivered == 2
    assert worker_of(process) == worker
    process.close()
    assert not worker.is_running()


def test_an_error_of_the_tracker_is_the_commands(
    results: Results, folder: SweepFolder, trials: list[str]
) -> None:
    tracker = Tracker(results, f"sqlite:///{results.path}/none/mlflow.db")
    (results.path / "none").write_text("a file where a folder should be")
    with pytest.raises(TrackerDown) as expected:
        tracker.deliver_trials(folder, trials)
    with closing(DeliveryProcess(tracker)) as process:
        with pytest.raises(TrackerDown) as raised:
            process.deliver_trials(folder, trials)
        assert worker_of(process).is_running()
    assert str(raised.value) == str(expected.value)


def test_a_process_that_is_killed_is_replaced(
    process: DeliveryProcess, folder: SweepFolder, trials: list[str]
) -> None:
    process.load()
    killed = worker_of(process)
    killed.kill()
    assert process.deliver_trials(folder, trials).delivered == 2
    assert worker_of(process) != killed


def test_one_that_is_killed_again_is_named_with_its_log(
    process: DeliveryProcess,
    folder: SweepFolder,
    trials: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = deliverer_module._start
    folders: list[Path] = []

    def start_and_kill(tracker: Tracker) -> deliverer_module._Worker:
        worker = start(tracker)
        folders.append(worker.log_folder.path)
        os.kill(worker.process.pid, signal.SIGKILL)
        return worker

    monkeypatch.setattr(deliverer_module, "_start", start_and_kill)
    with pytest.raises(TrackerDown, match=r"delivers was ended by SIGKILL; .*; log: ") as raised:
        process.deliver_trials(folder, trials)
    log = Path(str(raised.value).rpartition("log: ")[2])
    assert list(log.parent.iterdir()) == [log]
    assert folders[1] == log.parent
    assert not folders[0].exists()


def test_an_interrupted_delivery_leaves_no_answer_to_the_next(
    process: DeliveryProcess,
    results: Results,
    folder: SweepFolder,
    trials: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(worker: deliverer_module._Worker) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(deliverer_module._Worker, "_wait_for_answer", interrupt)
        with pytest.raises(KeyboardInterrupt):
            process.deliver_trials(folder, trials[:1], in_passing=True)
    delivery = process.deliver_trials(folder, trials)
    assert delivery.delivered + delivery.already_delivered == 2
    process.close()
    assert len(by_name(f"sqlite:///{results.database}", "demo")) == 4


@pytest.mark.parametrize("others", [0, 20_000], ids=["waiting", "sending"])
def test_a_process_that_hangs_is_ended(
    process: DeliveryProcess,
    folder: SweepFolder,
    trials: list[str],
    monkeypatch: pytest.MonkeyPatch,
    others: int,
) -> None:
    monkeypatch.setattr(deliverer_module, "DELIVERY_TIMEOUT", 0.5)
    monkeypatch.setattr(deliverer_module, "POLL", 0.1)
    process.load()
    worker = worker_of(process)
    os.kill(worker.pid, signal.SIGSTOP)
    with pytest.raises(TrackerDown, match=r"waited 0\.5 s for the process that delivers"):
        process.deliver_trials(folder, [*trials, *(f"other-{number}" for number in range(others))])
    assert not worker.is_running()
