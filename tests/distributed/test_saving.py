"""Real ranks that are killed are resumed from the checkpoints of their trial, and end with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.core.paths import Results
from harness.records.record import Record
from tests.distributed.test_interruption import assert_same_bits
from tests.support.running import line_sweep, run

pytestmark = pytest.mark.distributed

STEPS = 24
VARIANTS: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp", "world_size": 2},
    "fsdp2, workers": {"strategy": "fsdp2", "num_workers": 2, "world_size": 2},
    "hsdp": {"strategy": "hsdp", "world_size": 4, "shard_size": 2},
}


def run_trial(
    folder: Path, axes: dict[str, Any], moments: str, checkpoint: dict[str, Any]
) -> Record:
    """Run a trial whose last rank gets a signal at each of the moments, each in another attempt."""
    folder.mkdir()
    moments_path = folder / "moments"
    moments_path.write_text(moments, encoding="utf-8")
    entry = {
        "options": {
            "dropout": 0.3,
            "one_cycle": True,
            "noise": 0.1,
            "interrupt": str(moments_path),
            "rank": axes["world_size"] - 1,
            "step_seconds": 0.1 if moments else 0.0,
        },
        "axes": axes,
    }
    path = line_sweep(
        folder,
        {"line": entry},
        length={"steps": STEPS},
        evaluate={"steps": 10},
        checkpoint=checkpoint,
    )
    (record,) = run(path, slots=4)
    assert moments_path.read_text(encoding="utf-8") == "", "a moment has not come"
    return record


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(variant, marks=[pytest.mark.nightly] if variant != "ddp" else [])
        for variant in VARIANTS
    ],
)
def test_a_killed_trial_ends_with_the_same_bits(tmp_path: Path, variant: str) -> None:
    """Killed before its first checkpoint, after one, after the next, and interrupted once."""
    whole = run_trial(tmp_path / "whole", VARIANTS[variant], "", {})
    moments = "kill-2 kill-13 kill-6 4"  # each counts the steps of its attempt
    resumed = run_trial(tmp_path / "resumed", VARIANTS[variant], moments, {"every": "3 steps"})
    assert (whole.status, resumed.status) == ("done", "done"), (whole.failure, resumed.failure)
    kinds = [failure.kind for failure in resumed.previous_failures]
    assert kinds == ["Killed", "Killed", "Killed", "Interrupted"]
    signals = [interruption.signal for interruption in resumed.ranks[0].interruptions]
    assert signals == [None, None, "SIGUSR2"]
    assert_same_bits(resumed, whole)
    folder = Results(tmp_path / "resumed" / "results").sweep_folder("line")
    assert not folder.trial_folder(resumed.trial.id).resume_checkpoints.exists()
    assert "checkpoint" not in whole.ranks[0].phases
    assert all(rank.phases["checkpoint"] > 0 for rank in resumed.ranks)
