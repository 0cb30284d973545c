"""Where two trainings in this process part: what is planted is named by what it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from harness.core.paths import TrialFolder
from harness.records.trace import Recording, read_traces
from harness.reproduce.recorder import Recorder
from harness.reproduce.tracing import TraceDiff, TracedRun, TracedTrial, diff_traced
from harness.sweep.cell import Trial
from harness.training.build import TrialParts
from harness.training.state import TrainingState
from harness.training.train import Trainer
from harness.view.reproduce import description
from tests.factories import make_cell
from tests.support.training import SINGLE_RANK, make_assignment
from workloads import Classifier, Splits, TensorSamples
from workloads.settings import Settings

WORDS = 12


class Words(nn.Module):
    """An embedding and a head, whose weights may be one tensor, with a buffer that scales them."""

    scale: Tensor

    def __init__(self, head: str, *, tied: bool) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(WORDS, 8), nn.LayerNorm(8)
        self.head_name = head
        self.add_module(head, nn.Linear(8, WORDS))
        weight = self.embedding.weight if tied else nn.Parameter(self.embedding.weight.clone())
        self.get_submodule(head).weight = weight
        self.register_buffer("scale", torch.ones(()))

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.norm(self.embedding(words))
        logits: Tensor = self.get_submodule(self.head_name)(hidden) * self.scale
        return logits


class Successors(Classifier):
    """Learns which word follows which; attributes plant what makes two trainings part."""

    tied = False
    head = "head"
    scale = 1.0
    decay: float | None = None  # of a weight after each step
    count_twice = False
    frozen_from: int | None = None  # the step from which a weight gets no gradient
    note: float | None = None  # a number in the optimizer's state
    scaled_by_hook = 1.0  # a gradient, after the backward
    make_optimizer: Callable[..., Optimizer] = Adam
    settings: ClassVar[Mapping[str, Any]] = {}

    def splits(self) -> Splits:
        self.steps = 0
        words = torch.randint(WORDS, (96,), generator=torch.Generator().manual_seed(1))
        samples = TensorSamples((words, (words * 5 + 1) % WORDS))
        return Splits(train=samples, test=samples)

    def build_model(self) -> nn.Module:
        model = Words(self.head, tied=self.tied)
        model.scale.fill_(self.scale)
        return model

    def optimizer(self, model: nn.Module) -> Optimizer:
        if self.scaled_by_hook != 1.0:
            weight = model.get_parameter("norm.weight")
            weight.register_post_accumulate_grad_hook(self._scale_gradient)  # type: ignore[no-untyped-call]
        optimizer = type(self).make_optimizer(model.parameters(), lr=0.01, **self.settings)
        if self.note is not None:
            optimizer.state[model.get_parameter("norm.weight")]["note"] = self.note
        return optimizer

    def _scale_gradient(self, weight: Tensor) -> None:
        assert weight.grad is not None
        weight.grad.mul_(self.scaled_by_hook)

    def after_step(self, model: nn.Module) -> None:
        if self.frozen_from is not None and self.steps == self.frozen_from - 2:
            model.get_parameter("norm.weight").requires_grad_(False)
        self.steps += 2 if self.count_twice and self.steps == 2 else 1
        if self.decay is not None and self.steps == 3:
            with torch.no_grad():
                model.get_parameter("norm.weight").mul_(self.decay)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]

    def flops_per_sample(self) -> float:
        return 1.0


@dataclass
class InProcessTracer:
    """Trains one of two workloads in this process instead of starting ranks."""

    folder: Path
    workloads: Sequence[type[Successors]]  # of the seeds 0 and 1
    runs: int = 0

    def trace(self, name: str, traced: TracedTrial, recording: Recording) -> TracedRun:
        """Train up to the last recorded step, and return the folder of the trial and its trace."""
        self.runs += 1
        folder = TrialFolder(self.folder / str(self.runs))
        folder.path.mkdir(parents=True)
        workload = self.workloads[traced.trial.seed](Settings(), Settings())
        assignment = replace(make_assignment(steps=6), trial=replace(traced.trial, seed=0))
        state = TrainingState()
        parts = TrialParts(assignment, workload, folder, SINGLE_RANK, state)
        with Recorder(parts, state, recording) as recorder:
            Trainer(parts, state, recorder).run(min(recording.last_step, 6))
        traces = read_traces(folder.path, 1)
        return TracedRun(trial=traced.trial, folder=folder.path, traces=traces)


def with_attributes(**changes: Any) -> type[Successors]:
    class Other(Successors):
        pass

    for name, value in changes.items():
        setattr(Other, name, value)
    return Other


def part(folder: Path, a: type[Successors] = Successors, **changes: Any) -> tuple[TraceDiff, str]:
    """Return where a training and one with other attributes part, and what is said of it."""
    b = with_attributes(**changes)
    cell = replace(make_cell(), length=make_assignment(steps=6).trial.cell.length)
    first, second = Trial(cell=cell, seed=0), Trial(cell=cell, seed=1)
    diff = diff_traced(
        InProcessTracer(folder, [a, b]),  # type: ignore[arg-type]
        TracedTrial(trial=first, base_folder=folder),
        TracedTrial(trial=second, base_folder=folder),
    )
    return diff, "\n".join(description(first, second, diff))


def test_the_same_training_is_the_same(tmp_path: Path) -> None:
    diff, text = part(tmp_path)
    assert diff.is_same
    assert text.startswith("same bits: ")


@pytest.mark.parametrize(
    ("changes", "moment", "explanation"),
    [
        ({"count_twice": True}, "step 3, workload state", "own state is not"),
        ({"decay": 0.5}, "step 3, after_step", "after_step makes other parameters"),
        ({"scale": 2.0}, "step 1, buffers before", "the models begin with other buffers"),
        ({"settings": {"amsgrad": True}}, "step 1, optimizer settings", "other settings"),
        ({"settings": {"weight_decay": 0.1}}, "step 1, optimizer settings", "other settings"),
    ],
)
def test_what_is_planted_is_named(
    tmp_path: Path, changes: dict[str, Any], moment: str, explanation: str
) -> None:
    diff, text = part(tmp_path, **changes)
    assert not diff.is_same
    (where,) = [line for line in text.splitlines() if line.startswith("they diverge in ")]
    assert where.startswith(f"they diverge in {moment}, at rank 0: ")
    assert explanation in where


def test_a_gradient_that_only_one_has_is_where_they_part(tmp_path: Path) -> None:
    _, text = part(tmp_path, frozen_from=3)
    assert "only A has: backward norm.weight" in text
    assert "step 3, backward: only one of them has a gradient of norm.weight" in text


def test_a_number_in_the_optimizers_state_is_compared(tmp_path: Path) -> None:
    noted = with_attributes(make_optimizer=SGD, note=2.5)
    diff, text = part(tmp_path, noted, make_optimizer=SGD, note=3.5)
    assert not diff.is_same
    assert "they diverge in step 1, optimizer state" in text


def test_a_gradient_that_a_hook_changes_is_no_mean_of_ranks(tmp_path: Path) -> None:
    _, text = part(tmp_path, scaled_by_hook=2.0)
    assert "they diverge in step 1, all-reduce" in text or "step 1, backward" in text
    assert "their mean is not" not in text


def test_a_whole_number_is_as_good_a_setting_as_a_fraction(tmp_path: Path) -> None:
    whole = with_attributes(make_optimizer=SGD, settings={"momentum": 1})
    assert part(tmp_path, whole, make_optimizer=SGD, settings={"momentum": 1.0})[0].is_same


def test_tied_weights_part_in_the_first_backward(tmp_path: Path) -> None:
    diff, text = part(tmp_path, tied=True)
    only_a, where, *_ = text.splitlines()
    assert only_a.startswith("only A has: parameters head.weight, backward head.weight")
    assert where.startswith("they diverge in step 1, backward, at rank 0: ")
    assert [entry.at.mark.name for entry in diff.differences] == ["embedding.weight"]


def test_all_others_are_compared_where_one_tensor_has_another_name(tmp_path: Path) -> None:
    diff, text = part(tmp_path, head="output")
    assert not diff.is_same
    assert "parameters head.weight" in diff.only_a
    assert "parameters output.bias" in diff.only_b
    assert "same bits of the tensors that both have: " in text
    diff, text = part(tmp_path / "more", head="output", decay=0.5)
    assert "they diverge in step 3, after_step, at rank 0: " in text
    assert [entry.at.mark.name for entry in diff.differences] == ["norm.weight"]
