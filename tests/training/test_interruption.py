"""A trial that was interrupted ends with the same bits as one that was not."""

from __future__ import annotations

import errno
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.core.errors import BadInput, Interrupted
from harness.core.paths import TrialFolder
from harness.records.assignment import Assignment, write_assignment
from harness.records.format import decode_file, sealed_text
from harness.records.record import RankResult, StopOutcome
from harness.sweep import sweep as spec
from harness.training import checkpoint, train, worker
from harness.training.checkpoint import ROW_BYTES, SEAL_FORMAT, Seal, read_seal
from harness.training.order import BatchOrder
from harness.training.state import TrainingState
from tests.support.running import LINE, line_sweep
from tests.support.training import SINGLE_RANK

STEPS, STEPS_PER_EPOCH, STEPS_BETWEEN_EVALUATIONS = 20, 8, 5  # 256 samples in batches of 32
FROZEN = LINE.replace("line.py:LineFit", "frozen.py:FrozenFit")
PLAIN: dict[str, Any] = {"options": {"dropout": 0.3}}
VARIANTS: dict[str, dict[str, Any]] = {
    "adam": PLAIN,
    "one-cycle": {"options": {"dropout": 0.3, "one_cycle": True}, "axes": {"max_grad_norm": 1.0}},
    "momentum": {"options": {"momentum": 0.9}},
    # The first steps overflow.
    "fp16": PLAIN | {"axes": {"precision": "fp16", "batch_size": 4, "lr": 0.001}},
    "grad_accum_steps": PLAIN | {"axes": {"grad_accum_steps": 2}},
    "tree, noise": {
        "options": {"noise": 0.1},
        "axes": {"reduction": "tree", "grad_accum_steps": 4, "num_workers": 2},
    },
    "memory": {"options": {"memory": True}},
    "average": {"options": {"average": 0.9}},
    "noise": {"options": {"noise": 0.1}},
    "noise, workers": {"options": {"noise": 0.1}, "axes": {"num_workers": 2}},
    "frozen": {"uses": FROZEN, "options": {"dropout": 0.3}},
    # Before the first interruption: only the checkpoint tells the next attempt.
    "thawed": {"uses": FROZEN, "options": {"dropout": 0.3, "thaw_at": 2}},
    # Interrupted in steps that train its first layer, and in steps that do not.
    "alternating": PLAIN | {"uses": FROZEN.replace("FrozenFit", "AlternatingFit")},
    "unused, momentum": {
        "uses": FROZEN.replace("FrozenFit", "UnusedFit"),
        "options": {"momentum": 0.9},
    },
}
# Its best evaluation is the first, after 5 steps, and the third is the second that is no better.
STOPPED: dict[str, Any] = {
    "uses": f"{LINE.rpartition(':')[0]}:Unlearning",
    "options": {"dropout": 0.3, "validation": 40, "memory": True, "average": 0.9},
    "stop": {"patience": 2},
}
STOPPED_AT = 3 * STEPS_BETWEEN_EVALUATIONS
PART, SEAL, SERIES = "rank0.pt", "rank0.seal", "rank0.series"  # files of rank 0
Whole = Callable[[str], dict[str, Any]]  # the outcome of a variant that nothing interrupts
NEVER = 1 << 30  # more forward passes than any evaluation has

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")


def load_assignment(entry: Mapping[str, Any], *, best: bool = False) -> Assignment:
    """Return the trial of a sweep with the test workload."""
    return plan(json.dumps(entry), best)


@cache
def plan(entry: str, best: bool) -> Assignment:
    """Return the trial of an entry in JSON: each is planned once for all tests, by a process of its own."""
    path = line_sweep(
        Path(tempfile.mkdtemp()),
        {"line": json.loads(entry)},
        length={"steps": STEPS},
        evaluate={"steps": STEPS_BETWEEN_EVALUATIONS},
        checkpoint={"best": best},
    )
    sweep = spec.load_sweep(path)
    return Assignment(
        trial=sweep.trials()[0],
        base_folder=str(sweep.base_folder),
        checkpoint="best" if sweep.checkpoint.best else "none",
        device="cpu",
    )


def newest_whole(folder: TrialFolder) -> Path | None:
    """Return the checkpoint with the most steps whose file of rank 0 is as it was sealed."""
    for path in sorted(folder.resume_checkpoints.glob("step-*"), reverse=True):
        try:
            conditions = decode_file(Seal, path / SEAL, SEAL_FORMAT).conditions
            read_seal(path / SEAL, conditions)
        except BadInput:
            continue
        return path
    return None


def attempt(
    folder: TrialFolder,
    assignment: Assignment,
    stop: int | None,
    passes_between_checks: int = NEVER,
) -> RankResult:
    """Train in this process, one step a segment; the request to stop comes after the step `stop`.

    The ranks ask for it once at the start and once after each step; with `passes_between_checks`,
    an evaluation asks for it too.
    """
    newest = newest_whole(folder)
    steps_done = int(newest.name.removeprefix("step-")) if newest else 0
    checks = itertools.count(steps_done)
    folder.path.mkdir(parents=True, exist_ok=True)
    write_assignment(folder.assignment_path, assignment)
    entered = RankResult(rank=0, host="node1", entered_at=0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "SEGMENT_SECONDS", 1e-9)
        patch.setattr(train, "PASSES_BETWEEN_CHECKS", passes_between_checks)
        patch.setattr(train, "stop_is_requested", lambda: next(checks) == stop)
        return worker.train(folder, SINGLE_RANK, entered, TrainingState())


def interrupt(folder: TrialFolder, assignment: Assignment, stop: int) -> None:
    """Train until the request to stop after the step `stop`."""
    with pytest.raises(Interrupted, match=f"^stopped after step {stop} of {STEPS}$"):
        attempt(folder, assignment, stop)


def run_trial(
    folder: Path,
    entry: Mapping[str, Any],
    stops: Sequence[int] = (),
    *,
    between: Callable[[TrialFolder], object] | None = None,
) -> tuple[dict[str, Any], list[tuple[int, str | None]]]:
    """Run a trial that is interrupted after each of the steps `stops`, and resumed each time.

    `between` is called after each interruption. Returns the outcome, and the interruptions that the
    record has: the step and the signal.
    """
    assignment = load_assignment(entry)
    trial_folder = TrialFolder(folder / "trial")
    for stop in stops:
        interrupt(trial_folder, assignment, stop)
        if between is not None:
            between(trial_folder)
    result = attempt(trial_folder, assignment, None)
    interruptions = [(entry.step, entry.signal) for entry in result.interruptions]
    return outcome_of(result), interruptions


def outcome_of(result: RankResult) -> dict[str, Any]:
    """Return what must not depend on where a trial was interrupted."""
    assert result.rank0 is not None
    assert result.loss is not None
    return {
        "parameters": result.rank0.parameter_digest,
        "losses": result.loss.tolist(),
        "order": [*result.order_sums],
        "evaluations": [(done.step, done.all_metrics) for done in result.rank0.evaluations],
        "loss scale": result.numbers.get("loss_scale"),
        "skipped steps": result.numbers.get("loss_scale_skipped_steps"),
        "stop": result.rank0.stop,
    }


def names_in(folder: Path) -> list[str]:
    """Return the names of the files in a folder, which need not exist."""
    return sorted(path.name for path in folder.glob("*"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Return the outcome of a variant without interruptions, which is trained once for all tests."""

    @cache
    def train_whole(variant: str) -> dict[str, Any]:
        outcome, interruptions = run_trial(
            tmp_path_factory.mktemp("whole") / "trial", VARIANTS[variant]
        )
        assert interruptions == []
        return outcome

    return train_whole


# The same bits


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_interrupted_trial_ends_with_the_same_bits(
    tmp_path: Path, whole: Whole, variant: str
) -> None:
    """In an epoch, twice in a row, at its end, before an evaluation, before the first step, at the last.

    All of these with a plain loader and with one that draws random numbers in workers.
    """
    stops = [0, 1, 6, 7, STEPS_PER_EPOCH, 2 * STEPS_BETWEEN_EVALUATIONS, STEPS]
    if variant not in ("adam", "noise, workers"):
        stops = [0, 7, 2 * STEPS_BETWEEN_EVALUATIONS]
    resumed, interruptions = run_trial(tmp_path / "resumed", VARIANTS[variant], stops)
    assert resumed == whole(variant)
    assert interruptions == [(stop, "SIGUSR2") for stop in stops[1:]]


def test_an_interrupted_evaluation_is_made_up_for(tmp_path: Path, whole: Whole) -> None:
    assignment = load_assignment(PLAIN)
    trial_folder = TrialFolder(tmp_path / "trial")
    step = STEPS_BETWEEN_EVALUATIONS
    for _ in range(2):
        with pytest.raises(Interrupted, match=f"^stopped after step {step} of {STEPS}$"):
            attempt(trial_folder, assignment, step + 1, passes_between_checks=1)
    assert outcome_of(attempt(trial_folder, assignment, None)) == whole("adam")


def test_an_attempt_without_a_step_leaves_no_checkpoint_and_counts_as_none(tmp_path: Path) -> None:
    checkpoints = []
    _, interruptions = run_trial(
        tmp_path / "resumed",
        PLAIN,
        [0, 0, 3, 3],
        between=lambda folder: checkpoints.append(names_in(folder.resume_checkpoints)),
    )
    assert checkpoints == [[], [], [SERIES, "step-000000003"], [SERIES, "step-000000003"]]
    assert interruptions == [(3, "SIGUSR2")]


# Trials that stop before their length


def test_a_stopped_trial_that_was_interrupted_ends_with_the_same_bits(tmp_path: Path) -> None:
    """Before and after its best evaluation, and where the next evaluation would stop it."""
    whole, _ = run_trial(tmp_path / "whole", STOPPED)
    resumed, interruptions = run_trial(
        tmp_path / "resumed", STOPPED, [1, STEPS_BETWEEN_EVALUATIONS, 7, STOPPED_AT]
    )
    assert resumed == whole
    assert len(interruptions) == 4
    assert len(whole["losses"]) == STOPPED_AT
    assert whole["stop"] == StopOutcome(reason="patience", step=STOPPED_AT)


# What a checkpoint must have


def do_nothing(*arguments: Any, **keywords: Any) -> None: ...


def load_without_workload(*arguments: Any, load: Any = torch.load, **keywords: Any) -> Any:
    return load(*arguments, **keywords) | {"workload": {}}


FIRST = property(lambda order: 0, do_nothing)  # whichever step is next


# What to replace so that a part of the state gets lost: an attribute and its new value.
@pytest.mark.parametrize(
    ("variant", "target", "attribute", "replacement"),
    [
        ("adam", checkpoint, "restore_generators", do_nothing),
        ("adam", torch.optim.Optimizer, "load_state_dict", do_nothing),
        ("momentum", torch.optim.Optimizer, "load_state_dict", do_nothing),
        ("adam", torch.nn.Module, "load_state_dict", do_nothing),
        ("one-cycle", torch.optim.lr_scheduler.LambdaLR, "load_state_dict", do_nothing),
        ("fp16", torch.amp.GradScaler, "load_state_dict", do_nothing),
        ("adam", BatchOrder, "next_step", FIRST),
        ("average", torch, "load", load_without_workload),
        ("memory", checkpoint, "_load_tensors", do_nothing),
    ],
)
def test_a_part_of_the_state_that_is_forgotten_shows(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole: Whole,
    variant: str,
    target: Any,
    attribute: str,
    replacement: Any,
) -> None:
    def forget(folder: TrialFolder) -> None:
        monkeypatch.setattr(target, attribute, replacement, raising=False)

    undisturbed = whole(variant)  # before anything is forgotten
    resumed, _ = run_trial(tmp_path / "resumed", VARIANTS[variant], [6], between=forget)
    assert resumed != undisturbed


def test_a_state_that_the_workload_does_not_declare_is_never_resumed_without(
    tmp_path: Path,
) -> None:
    entry = PLAIN | {"uses": f"{LINE.rpartition(':')[0]}:ForgetfulFit"}
    whole, _ = run_trial(tmp_path / "whole", entry)
    assignment = load_assignment(entry)
    trial_folder = TrialFolder(tmp_path / "trial")
    reason = (
        "training has changed ForgetfulFit.began, ForgetfulFit.step, which no checkpoint has; n"
    )
    message = f"step 6 was not saved: {reason}.*; the next attempt starts from step 0$"
    with pytest.raises(Interrupted, match=message):
        attempt(trial_folder, assignment, 6)
    result = attempt(trial_folder, assignment, None)
    assert outcome_of(result) == whole
    assert list(result.interruptions) == []
    assert list(result.refused_checkpoints) == []


# Checkpoints that are damaged, or not the trial's


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip_a_bit(path: Path) -> None:
    """Flip one in the middle, which is in a weight, and in the middle of a tensor of the state."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (PART, flip_a_bit),
        (PART, Path.unlink),
        (PART, truncate),
        (SEAL, flip_a_bit),
    ],
)
def test_a_checkpoint_that_is_not_as_it_was_written_is_passed_over(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    """The one before it is loaded; when training gets there again, it is written again."""
    assignment = load_assignment(PLAIN)
    trial_folder = TrialFolder(tmp_path / "trial")
    for stop in (3, 6):
        interrupt(trial_folder, assignment, stop)
    earlier, newest = sorted(trial_folder.resume_checkpoints.glob("step-*"))
    damage(newest / name)
    assert newest_whole(trial_folder) == earlier
    interrupt(trial_folder, assignment, 6)
    assert newest_whole(trial_folder) == newest
    assert names_in(trial_folder.resume_checkpoints) == [SERIES, earlier.name, newest.name]
    result = attempt(trial_folder, assignment, None)
    (refused,) = result.refused_checkpoints
    assert refused.startswith(str(newest))


def test_a_checkpoint_of_more_steps_than_have_numbers_is_passed_over(tmp_path: Path) -> None:
    """No number is made up for a step."""
    assignment = load_assignment(PLAIN)
    trial_folder = TrialFolder(tmp_path / "trial")
    for stop in (3, 6):
        interrupt(trial_folder, assignment, stop)
    truncate(trial_folder.resume_checkpoints / SERIES)
    result = attempt(trial_folder, assignment, None)
    (refused,) = result.refused_checkpoints
    assert refused.endswith("found 3 steps; needed: 6")
    assert [entry.step for entry in result.interruptions] == [3]


def test_two_checkpoints_are_kept_and_nothing_that_is_half_written(tmp_path: Path) -> None:
    kept = []

    def look(folder: TrialFolder) -> None:
        kept.append(sorted(path.name for path in folder.resume_checkpoints.glob("step-*")))
        (folder.resume_checkpoints / "step-000000014").mkdir()  # which was never finished

    run_trial(tmp_path / "resumed", PLAIN, [2, 3, 5], between=look)
    two, three, five = "step-000000002", "step-000000003", "step-000000005"
    assert kept == [[two], [two, three], [three, five]]


@pytest.mark.parametrize(
    "name", ["trial", "code", "torch", "package numpy", "cpu", "cpu_capability", "gpu"]
)
def test_a_checkpoint_of_other_conditions_is_refused_by_name(tmp_path: Path, name: str) -> None:
    """Such as another CPU or GPU, whose kernels compute other bits."""
    assignment = load_assignment(PLAIN)
    trial_folder = TrialFolder(tmp_path / "trial")
    interrupt(trial_folder, assignment, 3)
    (path,) = trial_folder.resume_checkpoints.glob("step-*")
    seal = decode_file(Seal, path / SEAL, SEAL_FORMAT)
    conditions = {**seal.conditions, name: "another"}
    content = asdict(replace(seal, conditions=conditions))
    (path / SEAL).write_text(sealed_text(content), encoding="utf-8")
    result = attempt(trial_folder, assignment, None)
    assert list(result.interruptions) == []
    (refused,) = result.refused_checkpoints
    assert refused.startswith(f"{path}: {name}: found another; allowed: ")


@pytest.mark.parametrize("part", ["torch.save", "write_atomically"])
def test_a_disk_that_refuses_a_checkpoint_is_named_and_the_one_before_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    assignment = load_assignment(PLAIN)
    trial_folder = TrialFolder(tmp_path / "trial")
    interrupt(trial_folder, assignment, 3)

    def refuse(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    owner, name = (torch, "save") if part == "torch.save" else (checkpoint, part)
    path = trial_folder.resume_checkpoints / "step-000000006" / PART
    message = rf"^stopped after step 6 of 20; step 6 was not saved: {path}: No space left on device"
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, refuse)
        with pytest.raises(Interrupted, match=message):
            attempt(trial_folder, assignment, 6)
    result = attempt(trial_folder, assignment, None)
    assert [interruption.step for interruption in result.interruptions] == [3]
    assert list(result.refused_checkpoints) == []


def test_a_save_does_not_grow_with_the_steps(tmp_path: Path) -> None:
    """The numbers of each step are appended to a file of their own."""
    folder = TrialFolder(tmp_path / "trial")
    sizes = []
    for stop in (3, 18):
        interrupt(folder, load_assignment(PLAIN), stop)
        content = torch.load(
            folder.resume_checkpoints / f"step-{stop:09d}" / PART, weights_only=True
        )
        assert content["state"]["series"] == {}
        sizes.append((folder.resume_checkpoints / SERIES).stat().st_size)
    assert sizes == [3 * ROW_BYTES, 18 * ROW_BYTES]


# The signal


def test_the_signal_is_blocked_in_threads_and_children() -> None:
    """Sent to all processes at once, as Slurm does, it ends none of them."""
    program = """
import os, signal, subprocess, sys, threading
from harness.training.progress import before_torch, stop_is_requested
before_torch()
threading.Thread(target=threading.Event().wait, daemon=True).start()
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
assert not stop_is_requested()
os.killpg(0, signal.SIGUSR2)
assert stop_is_requested() and stop_is_requested()
child.communicate(b"\\n")
sys.exit(child.returncode)
"""
    done = subprocess.run([sys.executable, "-c", program], start_new_session=True, check=False)
    assert done.returncode == 0
