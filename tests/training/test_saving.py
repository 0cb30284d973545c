"""Checkpoints at intervals: killed at any moment of a save, a trial loses at most one interval."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from harness.core.paths import TrialFolder
from harness.core.validation import decode_value
from harness.launch.launcher import RankProgram
from harness.launch.torchrun import Torchrun
from harness.records.assignment import Assignment, read_assignment, write_assignment
from harness.records.record import RankResult
from harness.sweep.cell import CheckpointRules
from harness.training import checkpoint
from harness.training.checkpoint import SEAL_FILE, Checkpointer, read_seal
from harness.training.digests import State
from tests.support.line import LineFit, Options
from tests.support.training import (
    NoEvaluation,
    digest_of,
    make_assignment,
    make_trainer,
)
from tests.training.test_interruption import (
    PLAIN,
    SERIES,
    attempt,
    load_assignment,
    names_in,
    outcome_of,
)
from workloads.cnn import CNN
from workloads.cnn_settings import CNNOptions
from workloads.images import Digits
from workloads.settings import Settings

EVERY = 4  # steps between two saves, of 20


VOTES = Checkpointer.votes


def votes_of_done(checkpointer: Checkpointer, step: int) -> Any:
    """Have every save end with the segment after it: segments of one step are shorter than a save."""
    checkpointer.stop()
    return VOTES(checkpointer, step)


@pytest.fixture(autouse=True)
def wait_for_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checkpointer, "votes", votes_of_done)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RankResult:
    """Return the result of the trial without saves."""
    folder = tmp_path_factory.mktemp("whole")
    return attempt(TrialFolder(folder / "trial"), load_assignment(PLAIN), None)


def saving_assignment(keep: int = 2) -> Assignment:
    """Return the test trial with a save every few steps."""
    plan = CheckpointRules(every=f"{EVERY} steps", keep=keep)
    return replace(load_assignment(PLAIN), saves=plan)


def killed_attempt(folder: TrialFolder, moment: str) -> int:
    """Train in a process that is killed at a moment of a save; return its exit code.

    A forkserver forks it: in a fork of this process, torch refuses a backward where another test has
    had it start threads.
    """
    program = RankProgram(
        module=__name__, arguments=[moment], folder=folder, world_size=1, num_threads=1
    )
    return Torchrun(environment={}, fork=True).start(program).wait(300)


def attempt_until(folder: TrialFolder, moment: str) -> None:
    """Train until a moment kills this process."""
    prepare, _ = MOMENTS[moment]
    prepare()
    Checkpointer.votes = votes_of_done  # type: ignore[assignment, method-assign]
    attempt(folder, read_assignment(folder.assignment_path), None)


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


# Of the third save, which removes the first; each with the steps of whole checkpoints afterwards.
MOMENTS: dict[str, tuple[Callable[[], None], list[int]]] = {
    # A save flushes five times: numbers, file, seal, and the names of the last two.
    "in the series": (die_at_call(os, "fsync", 11, after=False), [4, 8]),
    "before the file": (die_at_call(torch, "save", 3, after=False), [4, 8]),
    "before the seal": (die_at_call(checkpoint, "write_atomically", 3, after=False), [4, 8]),
    "after the seal": (die_at_call(checkpoint, "write_atomically", 3, after=True), [4, 8, 12]),
    "before others go": (die_at_call(Checkpointer, "_newest_first", 4, after=False), [4, 8, 12]),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_a_moment_of_a_save_it_resumes_to_the_same_bits(
    tmp_path: Path, whole: RankResult, moment: str
) -> None:
    assignment, folder = saving_assignment(), TrialFolder(tmp_path / "killed")
    _, steps = MOMENTS[moment]
    folder.path.mkdir()
    write_assignment(folder.assignment_path, assignment)
    ended = killed_attempt(folder, moment)
    assert ended == -signal.SIGKILL, folder.launch_log.read_text(encoding="utf-8")
    sealed = sorted(path.parent.name for path in folder.resume_checkpoints.glob("*/rank0.seal"))
    assert sealed == [f"step-{step:09d}" for step in steps]
    result = attempt(folder, assignment, None)
    assert outcome_of(result) == outcome_of(whole)
    assert [entry.step for entry in result.interruptions] == [steps[-1]]
    assert list(result.refused_checkpoints) == []


def test_saving_changes_nothing_and_keeps_what_was_asked_for(
    tmp_path: Path, whole: RankResult
) -> None:
    folder = TrialFolder(tmp_path / "saved")
    saved = attempt(folder, saving_assignment(keep=1), None)
    assert outcome_of(saved) == outcome_of(whole)
    assert saved.unsaved == []
    assert saved.phases["checkpoint"] > 0
    assert "checkpoint" not in whole.phases
    assert names_in(folder.resume_checkpoints) == [SERIES, "step-000000016"]


def test_copies_take_the_memory_of_the_save_before_once_it_is_written(tmp_path: Path) -> None:
    """New memory costs more time than the copy, and training waits for both."""
    assignment = make_assignment(steps=4)
    trainer = make_trainer(assignment, CNN(CNNOptions(width=4), Digits()), tmp_path)
    checkpointer, is_written = trainer.checkpointer, Event()
    first = checkpointer._capture(trainer.state)
    checkpointer._writer = Thread(target=is_written.wait, daemon=True)
    checkpointer._writer.start()
    second = checkpointer._capture(trainer.state)
    assert not addresses(first) & addresses(second), "what is still written is changed"
    is_written.set()
    checkpointer.stop()
    assert addresses(checkpointer._capture(trainer.state)) == addresses(second)


def addresses(content: State) -> set[int]:
    """Return where the copies of the parameters are in memory."""
    return {copy.data_ptr() for copy in content["shared"]["model"].values()}


def full_disk(*arguments: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_costs_a_message_and_no_trial(
    tmp_path: Path,
    whole: RankResult,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch, "save", full_disk)
    folder = TrialFolder(tmp_path / "trial")
    result = attempt(folder, saving_assignment(), None)
    assert outcome_of(result) == outcome_of(whole)
    path = folder.resume_checkpoints / "step-000000004" / "rank0.pt"
    message = f"step 4 was not saved: {path}: No space left on device; free: "
    assert result.unsaved[0].startswith(message)
    assert message in capsys.readouterr().out


def test_a_disk_that_refuses_the_best_model_costs_a_message_and_no_trial(
    tmp_path: Path, whole: RankResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it keep the trial from saving."""
    monkeypatch.setattr(checkpoint, "save_file", full_disk)
    folder = TrialFolder(tmp_path / "trial")
    assignment = replace(saving_assignment(), checkpoint="best")
    result = attempt(folder, assignment, None)
    assert outcome_of(result) == outcome_of(whole)
    assert result.rank0 is not None
    assert result.rank0.checkpoint is None, "nothing is called the best that is not there"
    assert re.match(r"the best model, step \d+, was not saved: .*No space", result.unsaved[0])
    assert not folder.best_checkpoints.exists(), "nothing is left of it"


def test_the_best_weights_are_a_file_of_safetensors(tmp_path: Path) -> None:
    folder = TrialFolder(tmp_path / "trial")
    assignment = load_assignment(PLAIN, best=True)
    result, trial = attempt(folder, assignment, None), assignment.trial.id
    assert result.rank0 is not None
    assert result.rank0.checkpoint == "best"
    assert result.rank0.best_evaluation is not None
    seal = read_seal(folder.best_checkpoints / SEAL_FILE, {"trial": trial})
    assert seal.step == result.rank0.best_evaluation.step
    weights = load_file(folder.best_checkpoints / "model.safetensors")
    assert "inner.layers.0.weight" in weights


# When


def test_intervals_are_read() -> None:
    assert CheckpointRules(every="10m").seconds == 600
    assert CheckpointRules(every="500 steps").steps == 500
    for text in ("10", "0 steps", "m", "10 m s", "-1s"):
        with pytest.raises(ValueError, match="allowed: a time such as 10m, steps such as 500"):
            decode_value(CheckpointRules, {"every": text})


def test_trials_save_by_themselves_under_slurm_alone() -> None:
    default, steps = CheckpointRules(), CheckpointRules(every="5 steps")
    assert default.of("torchrun", is_script=False) is None
    assert default.of("slurm", is_script=False) == CheckpointRules(every="10m")
    assert default.of("slurm", is_script=True) is None
    assert steps.of("torchrun", is_script=False) == steps


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
        trainer.run(stop)
        trainer.checkpointer.save(state)
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
            trainer.checkpointer.save(trainer.state)
        digests.append(digest_of(trainer))
    assert digests[0] == digests[1]


def test_a_rate_in_a_tensor_is_restored_to_its_device() -> None:
    """A GPU divides by a number on the CPU in other bits."""
    optimizer = SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    saved = optimizer.state_dict()
    saved["param_groups"][0]["lr"] = torch.tensor(0.1)
    optimizer.param_groups[0]["lr"] = torch.empty((), device="meta")
    checkpoint._load_optimizer(optimizer, saved)
    assert optimizer.param_groups[0]["lr"].device.type == "meta"


if __name__ == "__main__":
    attempt_until(TrialFolder(Path(sys.argv[1])), sys.argv[2])
