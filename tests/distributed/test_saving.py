"""Real ranks that are killed are resumed from the checkpoints of their trial, and end with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.core.paths import Results
from harness.records.record import Record
from harness.spec.sweep import load_sweep
from tests.distributed.test_interruption import assert_same_bits
from tests.support.running import LINE, line_sweep, run

pytestmark = pytest.mark.distributed

STEPS = 24
VARIANTS: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp", "world_size": 2},
    "fsdp2, workers": {"strategy": "fsdp2", "num_workers": 2, "world_size": 2},
    "hsdp": {"strategy": "hsdp", "world_size": 4, "shard_size": 2},
}


def run_trial(folder: Path, axes: dict[str, Any], moments: str, checkpoint: Any) -> Record:
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
    """Killed before its first checkpoint, after one, in the step after that, and interrupted once."""
    whole = run_trial(tmp_path / "whole", VARIANTS[variant], "", "none")
    moments = "kill-2 kill-13 kill-14 4"
    resumed = run_trial(tmp_path / "resumed", VARIANTS[variant], moments, {"every": "3 steps"})
    assert (whole.status, resumed.status) == ("done", "done"), (whole.failure, resumed.failure)
    kinds = [failure.kind for failure in resumed.previous_failures]
    assert kinds == ["Killed", "Killed", "Killed", "Interrupted"]
    signals = [interruption.signal for interruption in resumed.ranks[0].interruptions]
    assert signals == [None, None, "SIGUSR2"]
    assert_same_bits(resumed, whole)
    folder = Results(tmp_path / "resumed" / "results").sweep_folder("line")
    assert not folder.trial_folder(resumed.trial.id).resume_checkpoints.exists()
    assert whole.ranks.across.saves is None
    for rank in resumed.ranks:
        assert rank.saves is not None
        assert rank.saves.count >= 2
        assert rank.saves.blocked_seconds > 0


def run_to_its_best(
    folder: Path, axes: dict[str, Any], *, refuses: bool, moments: str = ""
) -> Record:
    """Run a trial that ends with the model of its first evaluation, at step 4.

    `refuses` says whether nothing can be written where that model is saved. At each of the `moments` an
    attempt is killed or interrupted, as in `run_trial`; it saves after every third step.
    """
    folder.mkdir()
    moments_path = folder / "interrupt"
    moments_path.write_text(moments, encoding="utf-8")
    options = {"dropout": 0.3, "validation": 64, "memory": True, "interrupt": str(moments_path)}
    entry = {
        "options": options,
        "axes": axes,
        "uses": LINE.replace("LineFit", "Unlearning"),
        "stop": {"metric": "target", "patience": 1, "restore_best": True},
    }
    saves = {"checkpoint": {"every": "3 steps"}} if moments else {}
    path = line_sweep(
        folder, {"line": entry}, length={"steps": STEPS}, evaluate={"steps": 4}, **saves
    )
    if refuses:
        (trial,) = load_sweep(path).trials()
        trial_folder = Results(folder / "results").sweep_folder("line").trial_folder(trial.id)
        trial_folder.path.mkdir(parents=True)
        trial_folder.best_checkpoints.write_text("", encoding="utf-8")  # root may write elsewhere
    (record,) = run(path, slots=4)
    return record


@pytest.mark.nightly
@pytest.mark.parametrize("variant", ["fsdp2, workers", "fsdp2 over tensor-parallel", "hsdp"])
def test_ranks_end_with_a_best_model_that_the_disk_refuses(tmp_path: Path, variant: str) -> None:
    """Each keeps its own part in memory."""
    saved = run_to_its_best(tmp_path / "saved", VARIANTS[variant], refuses=False)
    kept = run_to_its_best(tmp_path / "kept", VARIANTS[variant], refuses=True)
    assert (saved.status, kept.status) == ("done", "done"), (saved.failure, kept.failure)
    assert_same_bits(kept, saved)
    for record in (saved, kept):
        assert record.rank0 is not None
        assert record.rank0.stop is not None
        assert (record.rank0.stop.step, record.rank0.stop.restored) == (8, True)
    for rank in kept.ranks:
        assert rank.saves is not None
        assert rank.saves.failed[0].startswith("the best model, step 4, was not saved: ")


def test_a_best_model_that_was_in_memory_only_is_computed_again(tmp_path: Path) -> None:
    """Nothing is saved from step 4 on, whose model the disk refuses: an attempt begins at step 3, or at 0."""
    saved = run_to_its_best(tmp_path / "saved", {}, refuses=False)
    kept = run_to_its_best(tmp_path / "kept", {}, refuses=True, moments="kill-7 5")
    assert (saved.status, kept.status) == ("done", "done"), (saved.failure, kept.failure)
    assert_same_bits(kept, saved)
    killed, interrupted = kept.previous_failures
    assert (killed.kind, interrupted.kind) == ("Killed", "Interrupted")
    assert "was not saved: the best model is in memory only" in interrupted.message
    # A death may come before the save of step 3 is on the disk.
    assert {resumed.step for resumed in kept.ranks[0].interruptions} <= {3}
