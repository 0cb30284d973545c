"""Real ranks that get a real signal go on to the same bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.core.paths import Results, TrialFolder, write_atomically
from harness.launch import sweep as runner
from harness.launch.runner import Runner
from harness.records.assignment import Assignment
from harness.records.record import Record, read_rank_result
from harness.spec import sweep as spec
from tests.support.running import line_sweep, run

pytestmark = pytest.mark.distributed

TWO = {"world_size": 2, "lr_schedule": "one-cycle"}
VARIANTS: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp", **TWO},
    "ddp, compiled": {"strategy": "ddp", "execution": "compile", **TWO},
    "fsdp2, workers": {"strategy": "fsdp2", "num_workers": 2, **TWO},
}


def trained(place: Path, axes: dict[str, Any], words: str, **more: Any) -> Record:
    """A trial whose last rank gets the signal as the words say, each in an attempt of its own."""
    place.mkdir()
    told = place / "interrupt"
    told.write_text(words, encoding="utf-8")
    options = {
        "dropout": 0.3,
        "noise": 0.1,
        "interrupt": str(told),
        "rank": axes.get("world_size", 1) - 1,
        **more,
    }
    line = {"line": {"options": options, "axes": axes}}
    (found,) = run(line_sweep(place, line, length={"steps": 30}, evaluate={"steps": 12}), slots=4)
    assert told.read_text(encoding="utf-8") == ""
    return found


@pytest.mark.parametrize("variant", VARIANTS)
def test_goes_on_to_the_same_bits(tmp_path: Path, variant: str) -> None:
    """In the first step (which compiles), in an evaluation, and in a step after that."""
    words = "1 3" if "compiled" in variant else "1 evaluation 3"  # every attempt compiles
    times = len(words.split())
    whole = trained(tmp_path / "whole", VARIANTS[variant], "")
    cut = trained(tmp_path / "cut", VARIANTS[variant], words)
    assert (whole.status, cut.status) == ("done", "done"), (whole.failure, cut.failure)
    assert [failure.kind for failure in cut.previous_failures] == ["Interrupted"] * times
    assert cut.previous_failures[0].message == "SIGUSR2 after step 1 of 30"
    assert whole.rank0 is not None
    assert cut.rank0 is not None
    assert cut.rank0.parameter_digest == whole.rank0.parameter_digest
    assert cut.loss == whole.loss
    assert cut.order_digest == whole.order_digest
    assert [one.metrics for one in cut.rank0.evaluations] == [
        one.metrics for one in whole.rank0.evaluations
    ]
    for rank in cut.ranks:
        assert [one.signal for one in rank.interruptions] == ["SIGUSR2"] * times
        assert [one.step for one in rank.interruptions] == [
            one.step for one in cut.ranks[0].interruptions
        ]
        assert all(one.lost_seconds > 0 for one in rank.interruptions)
    folder = Results(tmp_path / "cut" / "results").sweep_folder("line").trial_folder(cut.trial.id)
    assert not folder.resume_checkpoints.exists()


def test_more_ranks_add_up_gradients_in_the_same_order(tmp_path: Path) -> None:
    axes = {"strategy": "ddp", "world_size": 4}
    whole = trained(tmp_path / "whole", axes, "", crossed=True)
    cut = trained(tmp_path / "cut", axes, "5", crossed=True)
    assert [one.signal for one in cut.ranks[0].interruptions] == ["SIGUSR2"]
    assert cut.loss == whole.loss


def test_a_rank_started_by_hand_ends_with_a_code_of_its_own(tmp_path: Path) -> None:
    """With threads, which NumPy starts when it is imported."""
    told = tmp_path / "interrupt"
    told.write_text("2", encoding="utf-8")
    sweep = spec.load_sweep(
        line_sweep(tmp_path, {"line": {"options": {"interrupt": str(told)}}}, length={"steps": 30})
    )
    folder = TrialFolder(tmp_path / "trial")
    assignment = Assignment(trial=sweep.trials()[0], base_folder=str(tmp_path), device="cpu")
    write_atomically(folder.assignment_path, json.dumps(asdict(assignment)))
    command = [sys.executable, "-m", "harness.training.worker", str(folder.path)]
    variables = os.environ | {"OMP_NUM_THREADS": "2"}
    codes = [subprocess.run(command, env=variables, check=False).returncode for _ in range(2)]
    assert codes == [75, 0]
    assert read_rank_result(folder.result_path(0)).failure is None


def test_a_trial_is_not_taken_up_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "Runner", partial(Runner, resumes=1))
    (place := tmp_path / "cut").mkdir()
    told = place / "interrupt"
    told.write_text("1 1 1", encoding="utf-8")
    path = line_sweep(place, {"line": {"options": {"interrupt": str(told)}}}, length={"steps": 30})
    (found,) = run(path)
    assert (found.status, found.attempt, found.rank0) == ("interrupted", 2, None)
    folder = Results(place / "results").sweep_folder("line").trial_folder(found.trial.id)
    assert folder.resume_checkpoints.exists()
    (found,) = run(path, redo="missing")
    assert (found.status, found.attempt) == ("done", 4)
    assert [failure.kind for failure in found.previous_failures] == ["Interrupted"] * 3
