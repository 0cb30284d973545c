"""Real ranks that get a real signal are resumed, and end with the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.core.cores import usable_cores
from harness.core.paths import Results, TrialFolder
from harness.launch import sweep as runner
from harness.launch.runner import Runner
from harness.records.assignment import Assignment, write_assignment
from harness.records.files import read_rank_result
from harness.records.record import RankResult, Record
from harness.sweep import sweep as spec
from harness.sweep.cell import Trial
from tests.factories import same_loss
from tests.support.running import LINE, RecordCollector, by_label, line_sweep, processes_below, run

pytestmark = pytest.mark.distributed

STEPS = 30
TWO_RANKS = {"world_size": 2}
FSDP2 = {"strategy": "fsdp2", "num_workers": 2, **TWO_RANKS}
HSDP = {"strategy": "hsdp", "world_size": 4, "shard_size": 2}
DDP = {"strategy": "ddp", **TWO_RANKS}


def nightly(*values: object, name: str) -> Any:
    """Return a case that is tested every night."""
    return pytest.param(*values, marks=pytest.mark.nightly, id=name)


def run_trial(
    folder: Path,
    axes: dict[str, Any],
    moments: str,
    every: str | None = None,
    workload: str = "line.py:Unlearning",
    **options: Any,
) -> Record:
    """Run a trial whose last rank gets the signal at each of the moments, each in another attempt.

    A moment is the number of a step, counted in its attempt, `kill-N` to be killed there, or "evaluation".
    """
    folder.mkdir()
    moments_path = folder / "interrupt"
    moments_path.write_text(moments, encoding="utf-8")
    entry = {
        "options": {
            "dropout": 0.3,
            "one_cycle": True,
            "noise": 0.1,
            "interrupt": str(moments_path),
            "rank": axes.get("world_size", 1) - 1,
            "validation": 64,
            **options,
        },
        "axes": axes,
        # At the second evaluation.
        "uses": LINE.replace("line.py:LineFit", workload),
        "stop": {"patience": 1},
    }
    keys: dict[str, Any] = {"length": {"steps": STEPS}, "evaluate": {"steps": 12}}
    path = line_sweep(folder, {"line": entry}, checkpoint={"every": every}, **keys)
    (record,) = run(path, slots=4)
    assert moments_path.read_text(encoding="utf-8") == "", "a moment has not come"
    return record


Whole = Callable[[dict[str, Any]], Record]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Return the record of an undisturbed trial with these axes, which runs once for all tests."""
    records: dict[str, Record] = {}

    def run_once(axes: dict[str, Any]) -> Record:
        key = repr(axes)
        if key not in records:
            records[key] = run_trial(tmp_path_factory.mktemp("whole") / "trial", axes, "")
        return records[key]

    return run_once


def assert_same_bits(record: Record, other: Record) -> None:
    """Check that two trials have computed the same."""
    assert record.rank0 is not None
    assert other.rank0 is not None
    assert record.rank0.parameter_digest == other.rank0.parameter_digest
    assert same_loss(record, other)
    assert record.order_digest == other.order_digest
    metrics = [evaluation.all_metrics for evaluation in record.rank0.evaluations]
    assert metrics == [evaluation.all_metrics for evaluation in other.rank0.evaluations]


@pytest.mark.parametrize(
    ("axes", "moments"),
    [
        (DDP, "1 evaluation"),
        nightly({"execution": "compile"}, "1", name="compiled"),  # anew by every attempt
        nightly(FSDP2, "1 evaluation", name="fsdp2, workers"),
    ],
)
def test_an_interrupted_trial_ends_with_the_same_bits(
    tmp_path: Path, whole: Whole, axes: dict[str, Any], moments: str
) -> None:
    """In the first step (which compiles), and in an evaluation, after which a segment is trained."""
    interruptions = len(moments.split())
    resumed = run_trial(tmp_path / "resumed", axes, moments)
    assert resumed.status == "done", resumed.failure
    kinds = [failure.kind for failure in resumed.previous_failures]
    assert kinds == ["Interrupted"] * interruptions
    assert resumed.previous_failures[0].message == f"stopped after step 1 of {STEPS}"
    undisturbed = whole(axes)
    assert_same_bits(resumed, undisturbed)
    assert resumed.rank0 is not None
    assert undisturbed.rank0 is not None
    assert resumed.rank0.stop is not None
    assert (resumed.rank0.stop.reason, resumed.rank0.stop.step) == ("patience", 24)
    assert undisturbed.rank0.stop == resumed.rank0.stop
    steps = [interruption.step for interruption in resumed.ranks[0].interruptions]
    for rank in resumed.ranks:
        assert [interruption.step for interruption in rank.interruptions] == steps
        assert signals_of(rank) == ["SIGUSR2"] * interruptions
        assert all(interruption.lost_seconds > 0 for interruption in rank.interruptions)
    folder = Results(tmp_path / "resumed" / "results").sweep_folder("line")
    assert not folder.trial_folder(resumed.trial.id).resume_checkpoints.exists()


def signals_of(rank: RankResult) -> list[str | None]:
    """Return the signals of a rank's interruptions."""
    return [interruption.signal for interruption in rank.interruptions]


@pytest.mark.parametrize(
    "axes", [DDP, nightly(FSDP2, name="fsdp2, workers"), nightly(HSDP, name="hsdp")]
)
def test_a_killed_trial_ends_with_the_same_bits(
    tmp_path: Path, whole: Whole, axes: dict[str, Any]
) -> None:
    """Killed before its first checkpoint, after one, after the next, and interrupted once."""
    moments = "kill-2 kill-13 kill-6 4"  # each counts the steps of its attempt
    resumed = run_trial(tmp_path / "resumed", axes, moments, "3 steps", step_seconds=0.1)
    assert resumed.status == "done", resumed.failure
    kinds = [failure.kind for failure in resumed.previous_failures]
    assert kinds == ["Killed", "Killed", "Killed", "Interrupted"]
    assert signals_of(resumed.ranks[0]) == [None, None, "SIGUSR2"]
    assert_same_bits(resumed, whole(axes))
    assert "checkpoint" not in whole(axes).ranks[0].phases
    assert all(rank.phases["checkpoint"] > 0 for rank in resumed.ranks)


def test_each_rank_resumes_with_the_extra_state_of_its_own_modules(tmp_path: Path) -> None:
    own: dict[str, Any] = {"axes": DDP, "workload": "frozen.py:OwnMeanFit"}
    whole = run_trial(tmp_path / "whole", moments="", **own)
    resumed = run_trial(tmp_path / "resumed", moments="3", **own)
    assert signals_of(resumed.ranks[1]) == ["SIGUSR2"]
    assert_same_bits(resumed, whole)


@pytest.mark.nightly
@pytest.mark.parametrize("static_graph", [False, True])
def test_four_ranks_sum_up_gradients_in_the_same_order_after_resuming(
    tmp_path: Path, static_graph: bool
) -> None:
    """DDP arranges itself in its first step, in the second with a static graph."""
    axes = {"strategy": "ddp", "world_size": 4, "ddp.static_graph": static_graph}
    moments = "1 5" if static_graph else "5"
    whole = run_trial(tmp_path / "whole", axes, "", crossed=True)
    resumed = run_trial(tmp_path / "resumed", axes, moments, crossed=True)
    assert signals_of(resumed.ranks[0]) == ["SIGUSR2"] * len(moments.split())
    assert same_loss(resumed, whole)


@pytest.mark.nightly
def test_a_trial_of_torchrun_saves_on_ctrl_c_and_ends_with_the_bits_of_forked_ranks(
    tmp_path: Path,
) -> None:
    """A forked rank inherits its number of threads, its generators and its caches.

    Both launchers evaluate before the interruption, and forked ranks finish what torchrun began.
    """
    options = {"dropout": 0.3, "noise": 0.1, "step_seconds": 0.1}
    axes = {"strategy": "fsdp2", "world_size": 2, "num_workers": 2, "num_threads": 2}
    keys: dict[str, Any] = {"length": {"steps": STEPS}, "evaluate": {"steps": 5}}
    paths = []
    for name in ("forked", "torchrun"):
        (tmp_path / name).mkdir()
        entry = {"options": options, "axes": axes}
        paths.append(line_sweep(tmp_path / name, {"line": entry}, **keys))
    listener = InterruptAfter(steps=8)
    with pytest.raises(KeyboardInterrupt):
        run(paths[1], forkserver=False, listener=listener)
    (interrupted,) = listener.records
    assert interrupted.status == "interrupted"
    assert interrupted.failure is not None
    assert interrupted.failure.message.startswith("Ctrl-C: stopped after step ")
    assert len(listener.messages) == 1
    assert processes_below(tmp_path) == []
    (resumed,) = run(paths[1])
    assert (resumed.status, resumed.attempt) == ("done", 2)
    (interruption,) = resumed.ranks[0].interruptions
    assert interruption.step >= 8
    (forked,) = run(paths[0])
    assert_same_bits(resumed, forked)


class InterruptAfter(RecordCollector):
    """A listener at which somebody presses Ctrl-C once some trials have each done some steps."""

    def __init__(self, steps: int, trials: int = 1) -> None:
        super().__init__()
        self.steps = steps
        self.trials = trials
        self.trained: set[str] = set()
        self.messages: list[str] = []

    def on_trial_progress(self, trial: Trial, progress: dict[str, Any]) -> None:
        if progress.get("step", 0) >= self.steps and trial.id not in self.trained:
            self.trained.add(trial.id)
            if len(self.trained) == self.trials:
                signal.raise_signal(signal.SIGINT)

    def on_message(self, text: str) -> None:
        self.messages.append(text)


@pytest.mark.nightly
def test_a_rank_started_by_hand_ends_with_its_own_exit_code(tmp_path: Path) -> None:
    """With threads, which NumPy starts when it is imported."""
    moments_path = tmp_path / "interrupt"
    moments_path.write_text("2", encoding="utf-8")
    entry = {"options": {"interrupt": str(moments_path)}}
    sweep = spec.load_sweep(line_sweep(tmp_path, {"line": entry}, length={"steps": STEPS}))
    folder = TrialFolder(tmp_path / "trial")
    assignment = Assignment(trial=sweep.trials()[0], base_folder=str(tmp_path), device="cpu")
    write_assignment(folder.assignment_path, assignment)
    command = [sys.executable, "-m", "harness.training.worker", str(folder.path)]
    variables = os.environ | {"OMP_NUM_THREADS": "2"}
    assert subprocess.run(command, env=variables, check=False).returncode == 75
    failure = read_rank_result(folder.result_path(0)).failure
    assert failure is not None
    assert failure.kind == "Interrupted"
    assert failure.message.startswith("stopped after step ")


def test_a_trial_is_not_resumed_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "Runner", partial(Runner, resumes=1))
    folder = tmp_path / "resumed"
    folder.mkdir()
    moments_path = folder / "interrupt"
    moments_path.write_text("1 1 1", encoding="utf-8")
    entry = {"options": {"interrupt": str(moments_path)}}
    path = line_sweep(folder, {"line": entry}, length={"steps": STEPS})
    (record,) = run(path)
    assert (record.status, record.attempt, record.rank0) == ("interrupted", 2, None)
    sweep_folder = Results(folder / "results").sweep_folder("line")
    assert sweep_folder.trial_folder(record.trial.id).resume_checkpoints.exists()
    (record,) = run(path, redo="missing")
    assert (record.status, record.attempt) == ("done", 4)
    assert [failure.kind for failure in record.previous_failures] == ["Interrupted"] * 3


# Side by side

SLOW = {"dropout": 0.3, "noise": 0.1, "step_seconds": 0.03}
LENGTH = {"length": {"steps": 40}, "evaluate": {"steps": 20}}
IS_SMALL = len(usable_cores()) < 2


def digests(records: list[Record]) -> dict[str, str]:
    """Return what each trial has computed, by its id."""
    return {
        record.trial.id: record.rank0.parameter_digest
        for record in records
        if record.rank0 is not None
    }


@pytest.mark.nightly
@pytest.mark.skipif(IS_SMALL, reason="two lanes need two cores")
def test_ctrl_c_saves_all_and_resumed_trials_end_with_the_bits_of_lone_ones(tmp_path: Path) -> None:
    variants = {"a": {"options": SLOW}, "b": {"options": {**SLOW, "dropout": 0.1}}}
    folders = [tmp_path / name for name in ("alone", "beside")]
    for folder in folders:
        folder.mkdir()
    alone, beside = [line_sweep(folder, variants, **LENGTH) for folder in folders]

    listener = InterruptAfter(steps=2, trials=2)
    with pytest.raises(KeyboardInterrupt):
        run(beside, parallel="auto", listener=listener)
    first, second = listener.records
    assert {first.status, second.status} == {"interrupted"}
    assert first.failure is not None
    assert first.failure.message.startswith("Ctrl-C")
    assert processes_below(folders[1]) == []

    records = run(beside, parallel="auto")
    assert {record.status for record in records} == {"done"}
    assert [len(record.interruptions) for record in records] == [1, 1]
    lanes = set()
    for record in records:
        assert record.lane.count == 2
        lanes.add(tuple(record.lane.cores))
    assert lanes == {(core,) for core in usable_cores()[:2]}
    lone_records = run(alone)
    assert [record.lane.count for record in lone_records] == [1, 1]
    assert digests(records) == digests(lone_records)


@pytest.mark.nightly
@pytest.mark.skipif(IS_SMALL, reason="two lanes need two cores")
def test_a_failure_ends_no_neighbor_unless_it_is_to_stop_the_sweep(tmp_path: Path) -> None:
    variants: dict[str, dict[str, Any]] = {
        "killed": {"options": {"kill_at": 3}},
        "slow": {"options": SLOW},
        "hung": {"options": {"hang_at": 3}},
    }
    sweep = line_sweep(tmp_path, variants, timeout=12, **LENGTH)
    records = by_label(run(sweep, parallel="auto"))
    assert records["slow"].status == "done"
    kinds = [records[label].failure for label in ("killed", "hung")]
    assert [failure.kind for failure in kinds if failure] == ["Killed", "Timeout"]

    variants["hung"] = {"options": {**SLOW, "dropout": 0.1}}
    sweep = line_sweep(tmp_path, variants, **LENGTH)
    (killed, beside) = run(sweep, parallel="auto", redo="all", fail_fast=True)
    assert (killed.status, beside.status) == ("failed", "interrupted")
    assert beside.failure is not None
    assert beside.failure.message.startswith("--fail-fast: killed ")
    assert processes_below(tmp_path) == []
