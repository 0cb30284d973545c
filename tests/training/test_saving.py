"""Checkpoints at intervals: killed at any moment of a save, a trial loses at most one interval."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from harness.core.errors import BadCheckpoint, Interrupted, NotApplied
from harness.core.paths import TrialFolder
from harness.records.assignment import Assignment
from harness.records.record import RankResult
from harness.spec.saving import (
    SavePlan,
    SaveRules,
    automatic_interval,
    parse_interval,
    save_plan,
)
from harness.training import checkpoint, saving, shards
from harness.training.mesh import ParallelMesh
from harness.training.shards import SavedParts, SharedTensor, Staging, pack, write_part
from tests.factories import make_cell
from tests.support.line import LineFit, Options
from tests.support.training import (
    SINGLE_MESH,
    SINGLE_RANK,
    NoEvaluation,
    make_assignment,
    make_trainer,
)
from tests.training.test_interruption import (
    PLAIN,
    STEPS,
    STOPPED,
    attempt,
    find_sound,
    load_assignment,
    names_in,
    outcome_of,
)
from workloads.cnn import CNN
from workloads.options import CNNOptions, Settings
from workloads.sources import Digits

EVERY = 4  # steps between two saves, of 20
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")


@pytest.fixture(autouse=True)
def wait_for_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every save end with the segment after it: segments of one step are shorter than a save."""

    def is_done(task: Any) -> bool:
        task._thread.join()
        return True

    monkeypatch.setattr(saving._Task, "is_done", property(is_done))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RankResult:
    """Return the result of the trial without saves."""
    folder = tmp_path_factory.mktemp("whole")
    return attempt(TrialFolder(folder / "trial"), load_assignment(folder, PLAIN, "none"), None)


def saving_assignment(folder: Path, entry: dict[str, Any] = PLAIN, keep: int = 2) -> Assignment:
    """Return the test trial with a save every few steps."""
    plan = SavePlan(every=f"{EVERY} steps", keep=keep, mean_seconds_between_failures=1e5)
    return replace(load_assignment(folder, entry, "none"), saves=plan)


def killed_attempt(folder: TrialFolder, assignment: Assignment, prepare: Callable[[], None]) -> int:
    """Train in a child process; return the number of the signal that ended it, 0 for none.

    `prepare` is called there, and has it killed at a moment of its choice.
    """
    child = os.fork()
    if not child:
        try:
            prepare()
            attempt(folder, assignment, None)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def die_at_call(module: Any, name: str, call: int, *, after: bool) -> Callable[[], None]:
    """Return what kills this process at the start, or the end, of a call of a function."""

    def prepare() -> None:
        function, calls = getattr(module, name), iter(range(1, 10_000))

        def replacement(*arguments: Any, **named: Any) -> Any:
            is_last = next(calls) == call
            if is_last and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = function(*arguments, **named)
            if is_last and after:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(module, name, replacement)

    return prepare


def die_in_file(save: int) -> Callable[[], None]:
    """Return what kills this process in the middle of the file of a save."""

    def prepare() -> None:
        chunks, saves = shards._bytes_of, iter(range(1, 100))

        def chunks_until(part: Any) -> Any:
            is_last = next(saves) == save
            for number, data in enumerate(chunks(part)):
                if is_last and number == 3:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield data

        shards._bytes_of = chunks_until

    return prepare


# Of the third save, which removes the first; each with the steps of whole checkpoints afterwards.
MOMENTS: dict[str, tuple[Callable[[], None], list[int]]] = {
    "before anything": (die_at_call(checkpoint, "write_part", 3, after=False), [4, 8]),
    "in the file": (die_in_file(3), [4, 8]),
    "before the manifest": (die_at_call(checkpoint, "write_manifest", 3, after=False), [4, 8]),
    "before the new name": (die_at_call(checkpoint, "_replace_folder", 3, after=False), [4, 8]),
    "after the new name": (die_at_call(checkpoint, "_replace_folder", 3, after=True), [4, 8, 12]),
    "before others go": (die_at_call(checkpoint, "_keep_newest", 3, after=False), [4, 8, 12]),
    "after others went": (die_at_call(checkpoint, "_keep_newest", 3, after=True), [8, 12]),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_a_moment_of_a_save_it_resumes_to_the_same_bits(
    tmp_path: Path, whole: RankResult, moment: str
) -> None:
    assignment, folder = saving_assignment(tmp_path), TrialFolder(tmp_path / "killed")
    prepare, steps = MOMENTS[moment]
    assert killed_attempt(folder, assignment, prepare) == signal.SIGKILL
    found = [name for name in names_in(folder.resume_checkpoints) if not name.startswith(".")]
    assert found == [f"step-{step:09d}" for step in steps]
    newest, faults = find_sound(folder, assignment)
    assert newest is not None
    assert newest.name == f"step-{steps[-1]:09d}"
    assert faults == []
    result = attempt(folder, assignment, None)
    assert outcome_of(result) == outcome_of(whole)
    assert [entry.step for entry in result.interruptions] == [steps[-1]]
    assert not [name for name in names_in(folder.resume_checkpoints) if name.startswith(".")]


def test_saving_changes_nothing_and_keeps_what_was_asked_for(
    tmp_path: Path, whole: RankResult
) -> None:
    folder = TrialFolder(tmp_path / "saved")
    saved = attempt(folder, saving_assignment(tmp_path, keep=1), None)
    assert outcome_of(saved) == outcome_of(whole)
    assert whole.saves is None
    assert saved.saves is not None
    assert saved.saves.count == (STEPS - 1) // EVERY
    assert saved.saves.failed == ()
    assert saved.saves.bytes > 0
    assert saved.phases["checkpoint"] == pytest.approx(saved.saves.blocked_seconds)
    assert names_in(folder.resume_checkpoints) == ["step-000000016"]


def test_a_damaged_save_is_passed_over_and_the_one_before_it_is_taken(
    tmp_path: Path, whole: RankResult
) -> None:
    assignment, folder = saving_assignment(tmp_path), TrialFolder(tmp_path / "trial")
    prepare = die_at_call(checkpoint, "_keep_newest", 2, after=True)
    assert killed_attempt(folder, assignment, prepare) == signal.SIGKILL
    path = folder.resume_checkpoints / "step-000000008" / "rank0.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    result = attempt(folder, assignment, None)
    assert [entry.step for entry in result.interruptions] == [4]
    (refusal,) = result.refused_checkpoints
    assert refusal.startswith(f"{path.parent}: rank0.safetensors: found ")
    assert outcome_of(result) == outcome_of(whole)


def full_disk(*arguments: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_costs_a_message_and_no_trial(
    tmp_path: Path,
    whole: RankResult,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(shards, "_bytes_of", full_disk)
    folder = TrialFolder(tmp_path / "trial")
    result = attempt(folder, saving_assignment(tmp_path), None)
    assert outcome_of(result) == outcome_of(whole)
    assert result.saves is not None
    assert result.saves.count == 0
    path = folder.resume_checkpoints / ".step-000000004" / "rank0.safetensors"
    message = f"step 4 was not saved: {path}: No space left on device; free: "
    assert result.saves.failed[0].startswith(message)
    assert message in capsys.readouterr().out
    assert not [name for name in names_in(folder.resume_checkpoints) if "step-000000004" in name]


def test_a_folder_that_takes_no_files_costs_a_message_and_no_trial(tmp_path: Path) -> None:
    folder = TrialFolder(tmp_path / "trial")
    folder.path.mkdir()
    folder.resume_checkpoints.write_text("", encoding="utf-8")  # root may write anywhere else
    result = attempt(folder, saving_assignment(tmp_path), None)
    assert result.rank0 is not None
    assert result.saves is not None
    assert result.saves.failed[0].startswith("step 4 was not saved: ")


@pytest.fixture(params=["full", "read-only"])
def refusing_disk(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[[Path], None]]:
    """Return what puts a disk that is full, or read-only, in place of a folder."""
    mounted = []

    def mount(folder: Path) -> None:
        folder.mkdir(parents=True)
        options = "size=4k" if request.param == "full" else "ro"
        command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("no right to mount a disk")
        mounted.append(folder)

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_refuses_the_best_model_costs_a_message_and_no_trial(
    tmp_path: Path, whole: RankResult, refusing_disk: Callable[[Path], None]
) -> None:
    folder = TrialFolder(tmp_path / "trial")
    refusing_disk(folder.best_checkpoints)
    result = attempt(folder, load_assignment(tmp_path, PLAIN, "best"), None)
    assert outcome_of(result) == outcome_of(whole)
    assert result.rank0 is not None
    assert result.rank0.checkpoint is None, "nothing is called the best that is not there"
    assert result.saves is not None
    assert result.saves.count == 0
    assert re.match(
        r"the best model, step \d+, was not saved: .*(No space left|Read-only)",
        result.saves.failed[0],
    )


def test_a_trial_ends_with_a_best_model_that_the_disk_refuses(
    tmp_path: Path, refusing_disk: Callable[[Path], None]
) -> None:
    """It is kept in memory, with all that belongs to it."""
    assignment = load_assignment(tmp_path, STOPPED, "none")
    restored = attempt(TrialFolder(tmp_path / "whole"), assignment, None)
    folder = TrialFolder(tmp_path / "trial")
    refusing_disk(folder.best_checkpoints)
    result = attempt(folder, assignment, None)
    assert outcome_of(result) == outcome_of(restored)
    assert result.rank0 is not None
    assert result.rank0.stop is not None
    assert result.rank0.stop.restored
    assert result.saves is not None
    assert re.match(r"the best model, step 5, was not saved: ", result.saves.failed[0])


def test_a_disk_that_refuses_a_last_save_costs_the_work_since_the_one_before(
    tmp_path: Path, whole: RankResult, refusing_disk: Callable[[Path], None]
) -> None:
    folder = TrialFolder(tmp_path / "trial")
    refusing_disk(folder.resume_checkpoints)
    assignment = load_assignment(tmp_path, PLAIN, "none")
    with pytest.raises(Interrupted, match=r"step 6 was not saved: .*(No space left|Read-only)"):
        attempt(folder, assignment, 6)
    assert outcome_of(attempt(folder, assignment, None)) == outcome_of(whole)


def test_a_request_to_stop_ends_a_save_that_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And saves the step that the trial has stopped at instead."""
    monkeypatch.setattr(saving._Task, "is_done", False)
    assignment, folder = saving_assignment(tmp_path), TrialFolder(tmp_path / "trial")
    with pytest.raises(Interrupted):
        attempt(folder, assignment, 6)
    assert names_in(folder.resume_checkpoints) == ["step-000000006"]


# When


def test_no_rank_begins_its_last_save_while_another_seals_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sealing removes half-written checkpoints, which would be those of the last save."""
    calls: list[str] = []

    def note(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def noted(*arguments: Any, **named: Any) -> Any:
            calls.append(name)
            return function(*arguments, **named)

        monkeypatch.setattr(owner, name, noted)

    note(saving.IntervalSaver, "stop")
    note(ParallelMesh, "barrier")
    note(checkpoint.Checkpointer, "save")
    with pytest.raises(Interrupted):
        attempt(TrialFolder(tmp_path / "trial"), saving_assignment(tmp_path), 6)
    assert calls[calls.index("stop") :][:3] == ["stop", "barrier", "save"]


def test_intervals_are_read() -> None:
    interval = parse_interval("10m")
    assert interval is not None
    assert interval.seconds == 600
    steps = parse_interval("500 steps")
    assert steps is not None
    assert steps.steps == 500
    assert parse_interval("never") is None
    for text in ("10", "0 steps", "m", "10 m s", "-1s", "0.5s"):
        with pytest.raises(
            ValueError, match="allowed: a time such as 10m, steps such as 500 steps"
        ):
            parse_interval(text)


def test_the_automatic_interval_is_that_of_young_and_daly() -> None:
    assert automatic_interval(cost=2.0, mean_seconds_between_failures=86400.0) == pytest.approx(
        587.878, abs=0.001
    )
    assert automatic_interval(cost=0.001, mean_seconds_between_failures=3600.0) == 60.0


def test_trials_save_by_themselves_under_slurm_alone() -> None:
    rules, cell = SaveRules(), make_cell()
    assert save_plan(rules, cell, "torchrun") is None
    plan = save_plan(rules, cell, "slurm", "12h")
    assert plan == SavePlan(every="auto", keep=2, mean_seconds_between_failures=43200.0)
    never = SaveRules(every="never")
    assert save_plan(never, cell, "slurm") is None
    plan = save_plan(SaveRules(every="5 steps"), cell, "torchrun")
    assert plan is not None
    assert plan.every == "5 steps"


# Files


def test_a_part_has_what_was_packed(tmp_path: Path) -> None:
    content: dict[Any, Any] = {
        "none": None,
        "numbers": [1, 2.5, float("inf"), -0.0, 2**80],
        "series": [0.1, 0.2, 1e-300],
        "tuple": (1, (2, "x"), [True]),
        7: torch.arange(3),
        "7": torch.tensor(4.5, dtype=torch.float64),
        "empty": torch.empty(0, 3),
        "half": torch.ones(2, 2, dtype=torch.bfloat16).t(),
        "shared": SharedTensor("weight", torch.arange(12.0).reshape(4, 3)),
        "scalar": SharedTensor("step", torch.tensor(3.0)),
        "nothing": SharedTensor("none", torch.empty(0, 2)),
    }
    mesh = ParallelMesh(SINGLE_RANK, torch.device("cpu"))
    part = Staging(mesh.device).copy(pack(content, mesh))
    sealed = write_part(tmp_path / "rank0.safetensors", part)
    assert sealed.size == (tmp_path / "rank0.safetensors").stat().st_size
    parts = SavedParts([tmp_path / "rank0.safetensors"])
    read = parts.with_values(parts.content(0))
    assert list(read) == list(content)
    for key, value in content.items():
        if isinstance(value, SharedTensor):
            value = value.tensor
        if isinstance(value, torch.Tensor):
            assert read[key].dtype == value.dtype
            assert torch.equal(read[key], value)
        else:
            assert read[key] == value
    assert str(read["numbers"][3]) == "-0.0"
    block = parts.block("weight", (1, 0), (2, 3))
    assert torch.equal(block, torch.arange(3.0, 9.0).reshape(2, 3))


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_replicas_are_written_once_by_all_ranks_together(tmp_path: Path, ranks: int) -> None:
    whole = {"weight": torch.randn(5, 2), "step": torch.tensor(7.0), "row": torch.randn(1, 4)}
    paths = []
    for rank in range(ranks):
        mesh = ParallelMesh(replace(SINGLE_RANK, rank=rank, world_size=ranks), torch.device("cpu"))
        content = {name: SharedTensor(name, tensor) for name, tensor in whole.items()}
        part = pack(content, mesh)
        paths.append(tmp_path / f"{rank}.safetensors")
        write_part(paths[-1], part)
        size = sum(tensor.nbytes for tensor in part.tensors.values())
        assert size <= sum(tensor.nbytes for tensor in whole.values())
    parts = SavedParts(paths)
    for name, tensor in whole.items():
        assert torch.equal(parts.whole(name), tensor)


class Halving(LRScheduler):
    """A schedule that keeps a function, and a number of NumPy."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.factor: Callable[[int], float] = lambda step: 0.5**step
        self.milestone = np.int64(3)
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        return [rate * self.factor(self.last_epoch) for rate in self.base_lrs]


class HalvedFit(LineFit):
    def schedule(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        return Halving(optimizer)


def test_a_schedule_of_ones_own_is_saved_and_resumed(tmp_path: Path) -> None:
    rates = []
    for stop in (2, 4):
        workload = HalvedFit(Options(), Settings())
        trainer = make_trainer(make_assignment(steps=4), workload, tmp_path)
        parts, state = trainer.parts, trainer.state
        parts.checkpointer.resume(state, lambda: None)
        trainer.run(stop)
        parts.checkpointer.save(parts.folder.resume_checkpoints, state)
        rates.append(parts.optimizer.param_groups[0]["lr"])
    assert rates[1] == pytest.approx(rates[0] / 4)


def test_optimizer_state_is_restored_in_the_memory_format_of_the_parameters(tmp_path: Path) -> None:
    """Fused optimizers pair elements by their addresses."""
    digests = []
    for name, stops in {"whole": [4], "resumed": [2, 4]}.items():
        for stop in stops:
            workload = CNN(CNNOptions(width=4), Digits())
            assignment = make_assignment(steps=4, channels_last=True, optimizer_impl="fused")
            trainer = make_trainer(assignment, workload, tmp_path / name, hooks=NoEvaluation())
            trainer.run(stop)
            parts = trainer.parts
            parts.checkpointer.save(parts.folder.resume_checkpoints, trainer.state)
        digests.append(trainer.fingerprint())
    assert digests[0] == digests[1]


class PartlyTrained(LineFit):
    trained = 2  # parameters

    def optimizer(self, model: nn.Module) -> Optimizer:
        return SGD(list(model.parameters())[: self.trained], lr=0.1, momentum=0.9)


def test_an_optimizer_with_more_parameters_does_not_resume(tmp_path: Path) -> None:
    trainer = make_trainer(make_assignment(steps=4), PartlyTrained(Options(), Settings()), tmp_path)
    trainer.run(2)
    trainer.parts.checkpointer.save(trainer.parts.folder.resume_checkpoints, trainer.state)
    workload = PartlyTrained(Options(), Settings())
    workload.trained = 3
    found = (
        "step-000000002: found an optimizer without inner.layers.3.weight; needed: all that train"
    )
    with pytest.raises(BadCheckpoint, match=found):
        make_trainer(make_assignment(steps=4), workload, tmp_path)


def test_what_a_checkpoint_cannot_hold_is_named() -> None:
    with pytest.raises(NotApplied, match=r"a checkpoint can't hold /schedule/when: found object;"):
        pack({"schedule": {"when": object()}}, SINGLE_MESH)
