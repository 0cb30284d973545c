"""Watching the steps of a loop that is not the harness's own, in this process."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import SGD

import harness
from harness.core.errors import NonFiniteLoss, NotApplied
from harness.core.paths import TrialFolder
from harness.records.assignment import Assignment, Lane
from harness.sweep.cell import Length
from harness.training import script
from harness.training.ranks import Ranks
from harness.training.script import ScriptObserver, observe
from harness.training.script_watch import Reports
from harness.training.state import TrainingState
from tests.support.training import SINGLE_RANK, make_assignment
from workloads import Target


def watched_cell(steps: int | None = None, target: str | None = None) -> Assignment:
    """Return a trial of a script, of a length if it has one, without any file."""
    assignment = replace(make_assignment(steps=1, batch_size=1), device="cpu")
    workload = replace(
        assignment.trial.cell.workload,
        uses="train.py",
        arguments=["--seed", "{seed}", "--to={folder}", "{dim}", "{lr}", "{flag}", "{{raw}}"],
        settings={"options.dim": 4, "options.lr": 0.5, "options.flag": ""},
        target=None if target is None else Target(target),
    )
    length = Length(epochs=1) if steps is None else Length(steps=steps)
    cell = replace(assignment.trial.cell, workload=workload, length=length, warmup=2)
    return replace(assignment, trial=replace(assignment.trial, cell=cell))


@contextmanager
def watching(
    folder: Path, assignment: Assignment | None = None, ranks: Ranks = SINGLE_RANK
) -> Iterator[ScriptObserver]:
    """Watch a loop in this process until it ends; leave the process the GPUs that no script must see."""
    assignment = assignment or watched_cell()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(script.VISIBLE_GPUS, "")
        observer = ScriptObserver(assignment, TrialFolder(folder), ranks, TrainingState())
        with observe(observer):
            yield observer
            observer.finish()


def train(steps: int, *, before: bool = True, scale: float = 1.0, second: bool = False) -> None:
    """Take steps as a script does, which reports its loss before its optimizer or after it."""
    torch.manual_seed(0)
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    optimizers = [SGD(model.parameters(), lr=0.1)]
    if second:
        optimizers.append(SGD(other.parameters(), lr=0.1))
    for step in range(steps):
        loss = (model(torch.ones(3, 2)) + other(torch.ones(3, 2))).square().mean() * scale
        if before:
            harness.report(loss=float(step), samples=3)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if not before:
            harness.report(loss=torch.tensor(float(step)), samples=3)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_steps_losses_and_samples(tmp_path: Path, *, before: bool, second: bool) -> None:
    with watching(tmp_path) as observer:
        train(9, before=before, second=second)
    observer.check()
    train(4)  # which nobody watches any more
    harness.report(loss=1.0, anything="outside of a trial")
    state = observer.state
    assert state.step == len(state.series["seconds"]) == 9
    assert state.series["loss"] == [float(step) for step in range(9)]
    assert observer.samples_per_step == 3
    assert state.result()["step_phases"] == {}
    assert len(observer.optimizers) == 1 + second


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_loss_is_of_its_step_where_few_steps_are_reported(
    tmp_path: Path, *, before: bool, set_to_none: bool
) -> None:
    """The first report may come before a later step, or after it."""
    with watching(tmp_path) as observer:
        model = nn.Linear(2, 1)
        optimizer = SGD(model.parameters(), lr=0.1)
        for step in range(9):
            optimizer.zero_grad(set_to_none=set_to_none)
            model(torch.ones(3, 2)).mean().backward()
            if before and step % 4 == 3:
                harness.report(loss=float(step))
            optimizer.step()
            if not before and step % 4 == 3:
                harness.report(loss=float(step))
    losses = enumerate(observer.state.series["loss"])
    assert {step: loss for step, loss in losses if not math.isnan(loss)} == {3: 3.0, 7: 7.0}


def test_losses_of_micro_steps_are_averaged_and_missing_ones_unknown() -> None:
    reports = Reports()
    for steps_done, loss in ((0, 1.0), (0, 2.0), (2, 5.0)):
        reports.add(steps_done, loss, 4)
    losses = reports.mean_losses(0, 3)
    assert (losses[0], losses[2]) == (1.5, 5.0)
    assert math.isnan(losses[1])
    assert reports.samples == {0: 8, 2: 4}


def test_samples_of_a_step_that_never_ended_do_not_count(tmp_path: Path) -> None:
    """A script that reports at the end of its loop body reports a step's last micro-batch after the step."""
    with watching(tmp_path) as observer:
        model = nn.Linear(2, 1)
        optimizer = SGD(model.parameters(), lr=0.1)
        for number in range(1, 83):
            model(torch.ones(8, 2)).sum().backward()
            if number % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            harness.report(samples=8)
    assert (observer.state.step, observer.samples_per_step) == (20, 32)


def test_a_negative_number_of_samples_is_refused_at_once(tmp_path: Path) -> None:
    with (
        watching(tmp_path),
        pytest.raises(ValueError, match="samples: found -1; allowed: 0 or more"),
    ):
        harness.report(samples=-1)


def test_the_last_step_of_a_length_may_still_be_reported_and_evaluated(tmp_path: Path) -> None:
    """As most scripts do, after the optimizer has stepped, and once they have trained."""
    with watching(tmp_path, watched_cell(5, "accuracy")) as observer:
        harness.report(accuracy=0.1)
        train(5, before=False)
        harness.report(lr=0.1, perplexity=math.inf)  # which no record can hold
        harness.report(accuracy=torch.tensor(0.5))
    observer.check()
    assert observer.state.series["loss"] == [0.0, 1.0, 2.0, 3.0, 4.0]
    first, last = observer.state.evaluations
    assert (first.step, first.metrics) == (0, {"accuracy": 0.1})
    assert (last.step, last.metrics) == (5, {"lr": 0.1, "accuracy": 0.5})


def test_a_target_that_is_no_number_fails(tmp_path: Path) -> None:
    with watching(tmp_path, watched_cell(target="accuracy")):
        train(3)
        with pytest.raises(NonFiniteLoss, match="script reported accuracy=nan after step 3"):
            harness.report(accuracy=math.nan)


@pytest.mark.parametrize("steps", [None, 2])
def test_a_loss_of_nan_fails_also_after_the_last_step(tmp_path: Path, steps: int | None) -> None:
    with watching(tmp_path, watched_cell(steps)) as observer:
        train(2, before=steps is not None)
        harness.report(loss=math.nan)
    with pytest.raises(NonFiniteLoss, match="at step 2 of 2"):
        observer.check()


def test_what_did_not_train_as_its_cell_says_is_refused(tmp_path: Path) -> None:
    with watching(tmp_path, watched_cell(5)) as observer:
        with pytest.raises(NotApplied, match="ended without a step of an optimizer"):
            observer.check()
        train(3)
    with pytest.raises(
        NotApplied, match=r"length=5 steps had no effect: train.py ended after step 3"
    ):
        observer.check()
    with watching(tmp_path, ranks=Ranks(rank=0, local_rank=0, world_size=2)) as observer:
        train(3)
    with pytest.raises(NotApplied, match="world_size=2 had no effect: no rank joined a process gr"):
        observer.check()


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_steps_that_the_script_compiles_are_watched(tmp_path: Path) -> None:
    with watching(tmp_path) as observer:
        model = nn.Linear(2, 1)
        optimizer = SGD(model.parameters(), lr=0.1)

        @torch.compile(backend="aot_eager")
        def take_step() -> None:
            optimizer.step()

        for _ in range(5):
            model(torch.ones(3, 2)).sum().backward()
            take_step()
            optimizer.zero_grad()
    assert observer.state.step == 5


def test_placeholders_get_their_values(tmp_path: Path) -> None:
    arguments = script.script_arguments(watched_cell(), TrialFolder(tmp_path, 2))
    assert arguments == ["--seed", "0", f"--to={tmp_path}/attempt-2", "4", "0.5", "{raw}"]


@pytest.mark.parametrize(
    ("visible", "entries"), [("", "1,2"), ("4,5,6,7", "5,6"), ("GPU-a,MIG-b,GPU-c", "MIG-b,GPU-c")]
)
def test_gpus_of_a_lane_are_among_those_that_were_visible(
    monkeypatch: pytest.MonkeyPatch, visible: str, entries: str
) -> None:
    monkeypatch.setenv(script.VISIBLE_GPUS, visible)
    monkeypatch.setattr(script, "choose_device", lambda *_: torch.device("cpu"))
    lane = Lane(number=1, count=2, cores=(), gpus=(1, 2))
    script._visible_device(replace(watched_cell(), device="cuda", lane=lane), SINGLE_RANK)
    assert os.environ[script.VISIBLE_GPUS] == entries


def test_the_digest_is_of_the_parameters(tmp_path: Path) -> None:
    digests = []
    for scale in (1.0, 1.0, 2.0):
        with watching(tmp_path) as observer:
            train(3, scale=scale)
        digests.append(observer.digest_parameters())
    assert digests[0] == digests[1] != digests[2]
