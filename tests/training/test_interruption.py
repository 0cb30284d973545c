"""A trial that was interrupted goes on to the same bits as one that was not."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import state_dict

from harness.core.errors import Interrupted
from harness.core.paths import TrialFolder
from harness.launch.assemble import assemble
from harness.launch.torchrun import Torchrun
from harness.records.assignment import Assignment
from harness.records.record import Failure, RankResult, read_rank_result, write_record
from harness.spec import sweep as spec
from harness.spec.validity import ValidityRules
from harness.training import checkpoint, evaluate, train, worker
from harness.training.order import BatchOrder
from harness.training.precision import Scaler
from harness.training.ranks import Ranks
from harness.training.state import TrainingState
from tests.support.running import line_sweep

STEPS, EPOCH, EVERY = 20, 8, 5  # 256 samples in batches of 32
PLAIN: dict[str, Any] = {"options": {"dropout": 0.3}}
VARIANTS: dict[str, dict[str, Any]] = {
    "adam": PLAIN,
    "one-cycle": PLAIN | {"axes": {"lr_schedule": "one-cycle", "max_grad_norm": 1.0}},
    "momentum": {"options": {"momentum": 0.9}},
    "no state": {"options": {"momentum": 0.0}, "axes": {"lr_schedule": "cosine"}},
    "fp16": PLAIN
    | {"axes": {"precision": "fp16", "batch_size": 4, "lr": 0.001}},  # overflows at first
    "grad_accum_steps": PLAIN | {"axes": {"grad_accum_steps": 2}},
    "memory": {"options": {"memory": True}},
    "noise": {"options": {"noise": 0.1}},
    "noise, workers": {"options": {"noise": 0.1}, "axes": {"num_workers": 2}},
}

NEVER = 1 << 30

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")


def attempt(
    folder: TrialFolder, assignment: Assignment, stop: int | None, passes: int = NEVER
) -> RankResult:
    """Train in this process, one step a stretch, with the wish to stop heard after the step `stop`; with `passes`, an
    evaluation asks for it too after so many."""
    newest = checkpoint.newest(folder.best_checkpoints, folder.resume_checkpoints)
    looks = itertools.count(int(newest.name.removeprefix("step-")) if newest else 0)
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.assignment_path.write_text(json.dumps(asdict(assignment)), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "SEGMENT_SECONDS", 1e-9)
        patch.setattr(evaluate, "PASSES_BETWEEN_CHECKS", passes)
        patch.setattr(train, "is_requested", lambda: next(looks) == stop)
        alone = Ranks(rank=0, local_rank=0, world_size=1)
        return worker.run(
            folder, alone, RankResult(rank=0, host="here", pid=1, entered_at=0.0), TrainingState()
        )


def trained(
    place: Path,
    entry: Mapping[str, Any],
    stops: Sequence[int] = (),
    *,
    keep: str = "none",
    between: Any = None,
) -> dict[str, Any]:
    """What identifies the outcome of a trial that was interrupted after the steps `stops`."""
    place.mkdir()
    sweep = spec.load_sweep(
        line_sweep(
            place,
            {"line": entry},
            length={"steps": STEPS},
            evaluate={"steps": EVERY},
            checkpoint=keep,
        )
    )
    folder = TrialFolder(place / "trial")
    told = Assignment(
        trial=sweep.trials()[0],
        base_folder=str(sweep.base_folder),
        checkpoint=sweep.checkpoint,
        device="cpu",
    )
    for stop in stops:
        with pytest.raises(Interrupted, match=f"^SIGUSR2 after step {stop} of {STEPS}$"):
            attempt(folder, told, stop)
        if between:
            between(folder)
    result = attempt(folder, told, None)
    assert result.rank0 is not None
    return {
        "parameters": result.rank0.parameter_digest,
        "loss": result.loss,
        "order": tuple(result.order_sums),
        "evaluations": [(found.step, found.metrics) for found in result.rank0.evaluations],
        "scale": result.loss_scale,
        "interrupted": [(one.step, one.signal) for one in result.interruptions],
    }


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return {**one, "interrupted": None} == {**other, "interrupted": None}


@pytest.mark.parametrize("variant", VARIANTS)
def test_goes_on_to_the_same_bits(tmp_path: Path, variant: str) -> None:
    """Whether before the first step, after it, in an epoch, at its end, twice in a row, before an evaluation, at the
    last step."""
    whole = trained(tmp_path / "whole", VARIANTS[variant])
    stops = [0, 1, 6, 7, EPOCH, 2 * EVERY, STEPS]
    cut = trained(tmp_path / "cut", VARIANTS[variant], stops)
    assert same(cut, whole)
    assert cut["interrupted"] == [(stop, "SIGUSR2") for stop in stops[1:]]
    assert whole["interrupted"] == []


def test_an_evaluation_is_left_and_made_good(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", PLAIN)
    (tmp_path / "cut").mkdir()
    sweep = spec.load_sweep(
        line_sweep(
            tmp_path / "cut", {"line": PLAIN}, length={"steps": STEPS}, evaluate={"steps": EVERY}
        )
    )
    folder = TrialFolder(tmp_path / "cut" / "trial")
    told = Assignment(trial=sweep.trials()[0], base_folder=str(sweep.base_folder), device="cpu")
    for _ in range(2):
        with pytest.raises(Interrupted, match=f"^SIGUSR2 after step {EVERY} of {STEPS}$"):
            attempt(folder, told, EVERY + 1, passes=1)
    found = attempt(folder, told, None).rank0
    assert found is not None
    assert found.parameter_digest == whole["parameters"]
    assert [(one.step, one.metrics) for one in found.evaluations] == whole["evaluations"]


def test_before_a_step_is_done_nothing_is_kept(tmp_path: Path) -> None:
    kept = []
    cut = trained(
        tmp_path / "cut",
        PLAIN,
        [0, 0, 3, 3],
        between=lambda folder: kept.append(checkpoints(folder.resume_checkpoints)),
    )
    assert kept == [[], [], ["step-000000003"], ["step-000000003"]]
    assert cut["interrupted"] == [(3, "SIGUSR2")], (
        "an attempt that took no step is none that was interrupted"
    )


def checkpoints(folder: Path) -> list[str]:
    return sorted(place.name for place in folder.glob("*"))


def forget(name: str) -> tuple[Any, str, Any]:
    """An attribute, and what it must be for that part of the state to be lost on the way."""

    def nothing(*given: Any, **named: Any) -> None: ...

    return {
        "random numbers": (checkpoint, "_restore_random_state", nothing),
        "optimizer": (state_dict, "set_optimizer_state_dict", nothing),
        "weights": (state_dict, "set_model_state_dict", nothing),
        "lr_schedule": (torch.optim.lr_scheduler.LambdaLR, "load_state_dict", nothing),
        "scaler": (Scaler, "restore", nothing),
        "place in the order": (BatchOrder, "skip", property(lambda order: 0, nothing)),
        "buffers": (torch.nn.Module, "named_buffers", lambda module, **named: iter(())),
    }[name]


@pytest.mark.parametrize(
    ("part", "variant"),
    [
        ("random numbers", "adam"),
        ("optimizer", "adam"),
        ("optimizer", "momentum"),
        ("weights", "adam"),
        ("lr_schedule", "one-cycle"),
        ("scaler", "fp16"),
        ("place in the order", "adam"),
        ("random numbers", "noise"),
        ("buffers", "memory"),
    ],
)
def test_a_part_of_the_state_that_is_forgotten_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, variant: str
) -> None:
    whole = trained(tmp_path / "whole", VARIANTS[variant])
    lose = lambda folder: monkeypatch.setattr(*forget(part), raising=False)  # noqa: E731
    cut = trained(tmp_path / "cut", VARIANTS[variant], [6], between=lose)
    assert not same(cut, whole)


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("damage", [cut_off, zeroed, Path.unlink])
@pytest.mark.parametrize("name", ["state.pt", "model.safetensors"])
def test_a_checkpoint_that_is_not_whole_is_passed_over(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    """As after a loss of power: what the file system had not written."""

    def lose_power(folder: TrialFolder) -> None:
        best, newest = (
            checkpoint.newest(folder.best_checkpoints),
            checkpoint.newest(folder.best_checkpoints, folder.resume_checkpoints),
        )
        assert best is not None
        assert newest == folder.resume_checkpoints / "step-000000013"
        damage(newest / name)
        (folder.resume_checkpoints / ".step-000000014").mkdir()
        assert checkpoint.newest(folder.best_checkpoints, folder.resume_checkpoints) == best

    whole = trained(tmp_path / "whole", PLAIN, keep="best")
    cut = trained(tmp_path / "cut", PLAIN, [13], keep="best", between=lose_power)
    assert same(cut, whole)
    ((step, by),) = cut["interrupted"]
    assert step in (EVERY, 2 * EVERY)
    assert by is None


def test_the_signal_is_held_back_from_threads_and_children() -> None:
    """Sent to all processes at once, as Slurm does, it ends none of them."""
    program = """
import os, signal, subprocess, sys, threading
from harness.training.interruption import block_signal, is_requested
block_signal()
threading.Thread(target=threading.Event().wait, daemon=True).start()
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
assert not is_requested()
os.killpg(0, signal.SIGUSR2)
assert is_requested() and is_requested()
child.communicate(b"\\n")
sys.exit(child.returncode)
"""
    done = subprocess.run([sys.executable, "-c", program], start_new_session=True, check=False)
    assert done.returncode == 0


@pytest.fixture
def ended(tmp_path: Path) -> Callable[..., Any]:
    """The record of a trial of two ranks that ended with these failures and exit codes."""
    sweep = spec.load_sweep(
        line_sweep(tmp_path, {"two": {"axes": {"strategy": "ddp", "world_size": 2}}})
    )
    told = Assignment(trial=sweep.trials()[0], base_folder=str(tmp_path), device="cpu")
    folder = TrialFolder(tmp_path / "trial")

    def end(failures: Mapping[int, Failure], codes: Mapping[int, int]) -> Any:
        for rank, failure in failures.items():
            write_record(
                folder.result_path(rank),
                RankResult(rank=rank, host="n", pid=1, entered_at=0.0, failure=failure),
            )
            assert read_rank_result(folder.result_path(rank)).failure == failure
        listed = {
            rank: {"exitcode": code, "at": time.time(), "pid": 1} for rank, code in codes.items()
        }
        folder.failures_path.write_text(json.dumps(listed), encoding="utf-8")
        seen = Torchrun(environment={}).observed_failures(folder, "")
        return assemble(
            folder,
            "line",
            told,
            started=0,
            ended=1,
            previous_failures=(),
            ended_by=None,
            rules=ValidityRules(),
            observed_failures=seen,
        )

    folder.path.mkdir()
    return end


def stopped(rank: int) -> Failure:
    return Failure(kind="Interrupted", message="SIGUSR2 after step 3 of 9", rank=rank, at=5.0)


def test_an_interrupted_trial_has_not_failed(ended: Callable[..., Any]) -> None:
    found = ended({0: stopped(0), 1: stopped(1)}, {0: 75, 1: 75})
    assert (found.status, str(found.failure)) == (
        "interrupted",
        "rank 0: Interrupted: SIGUSR2 after step 3 of 9",
    )


def test_whatever_ends_ranks_after_their_checkpoint_is_not_the_cause(
    ended: Callable[..., Any],
) -> None:
    found = ended({1: stopped(1)}, {0: -signal.SIGKILL, 1: 75})
    assert found.status == "interrupted"
    torn = Failure(kind="RuntimeError", message="connection closed by peer", rank=0, at=4.0)
    assert ended({0: torn, 1: stopped(1)}, {0: 1, 1: 75}).status == "interrupted"


def test_a_rank_that_the_signal_strikes_before_it_can_hold_it_back(
    ended: Callable[..., Any],
) -> None:
    torn = Failure(kind="RuntimeError", message="connection closed by peer", rank=0, at=4.0)
    found = ended({0: torn}, {0: 1, 1: -signal.SIGUSR2})
    assert (found.status, found.failure.message, found.failure.rank) == (
        "interrupted",
        "ended by SIGUSR2",
        1,
    )
    assert ended({0: torn}, {0: 1, 1: -signal.SIGKILL}).status == "failed"
