"""A short run of the proof: defects are named, equal runs are not reported, and killed ones resume."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.records.trace import Mark
from harness.reproduce.divergence import Divergence, RankMark, TraceComparison
from tests.factories import make_record, with_ranks
from tests.programs.mutants.injections import injections
from tests.programs.mutants.kills import computed_twice, problem

# With it, a bit is flipped and a buffer is changed, in trainings of two ranks that are not compiled.
SEED = "177"


@pytest.mark.nightly
@pytest.mark.distributed
def test_defects_are_named_and_nothing_else_is(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.programs.mutants", "--output", str(tmp_path)]
    command += ["--seed", SEED, "--mutants", "2", "--kills", "2"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "16 as they must be, 0 not" in result.stdout


def test_every_kind_is_drawn_at_two_ranks_and_at_four() -> None:
    drawn = set()
    for injection, _ in zip(injections(0), range(300), strict=False):
        drawn.add((injection.kind, injection.setting.strategy, injection.setting.world_size))
    assert len(drawn) == 13 * 4


def test_a_defect_that_is_named_otherwise_is_a_problem() -> None:
    injection = next(injections(0))
    mark = Mark(
        step=injection.step, micro_step=1, phase=injection.phase, name=injection.tensor, digest=""
    )
    entries = [RankMark(rank=rank, mark=mark) for rank in injection.ranks]

    def comparison(named: list[RankMark]) -> TraceComparison:
        divergence = Divergence(earliest=named[0], together=named, agreeing=0) if named else None
        return TraceComparison(compared=1, only_a=0, only_b=0, divergence=divergence)

    assert injection.problem(comparison(entries)) is None
    assert injection.problem(comparison([])) == "not found"
    other_rank = [RankMark(rank=9, mark=mark)]
    assert str(injection.problem(comparison(other_rank))).startswith("named ")


def test_a_resumed_trial_with_another_loss_is_a_problem() -> None:
    record = make_record()
    (rank,) = record.ranks
    assert rank.loss is not None
    loss = np.nextafter(rank.loss, np.float32(9))
    other = with_ranks(record, [replace(rank, loss=loss, random_digest="other")])
    assert problem(record, record) is None
    assert problem(record, other) == "other loss, loss of ranks, random numbers"


def test_steps_that_were_computed_twice_are_counted_for_each_kill(tmp_path: Path) -> None:
    """The second attempt goes on after step 1, the third from the start, and the last kill cost none."""
    steps = tmp_path / "steps"
    steps.write_text("1 2 3 2 1 2 3 4", encoding="ascii")
    assert computed_twice(steps, 3) == [2, 2, 0]
