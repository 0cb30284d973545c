"""What a pre-flight finds: each mistake that is planted, by its name, and nothing in sound workloads."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, Optimizer
from torch.utils.data import TensorDataset

from harness.preflight import checks
from harness.preflight.report import CheckFinding, WorkloadReport, passed
from harness.preflight.worker import CHECKS, examine
from harness.records.assignment import Assignment
from harness.sweep.axes import Axes
from harness.sweep.cell import Trial
from harness.sweep.sweep import load_sweep, ready_sweeps
from harness.training.entry import load_workload
from tests.support import tokens
from tests.support.commands import harness
from tests.support.pages import GUIDE, write_files
from tests.support.tokens import Unweighted, Weighted
from workloads import Classifier, Settings, Splits, TensorSamples
from workloads.base import Batch, Workload

FEATURES, CLASSES, SAMPLES = 12, 5, 320
CPU = torch.device("cpu")


class Net(nn.Module):
    """Two layers with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(FEATURES, 64)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden: Tensor = self.dropout(functional.relu(self.body(inputs)))
        logits: Tensor = self.head(hidden)
        return logits


def make_samples() -> tuple[Tensor, Tensor]:
    """Return inputs float32 (SAMPLES, FEATURES) and labels that a linear model gives them."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(SAMPLES, FEATURES, generator=generator)
    return inputs, (inputs @ torch.randn(FEATURES, CLASSES, generator=generator)).argmax(1)


class Sound(Classifier):
    """A classifier without a mistake; its subclasses have one each."""

    batch_size = 32
    train_samples = TensorSamples  # the class of the samples to train on

    def splits(self) -> Splits:
        inputs, labels = self.samples()
        cut = SAMPLES * 3 // 4
        train = self.train_samples((inputs[:cut], labels[:cut]))
        return Splits(train, TensorSamples((inputs[cut:], labels[cut:])))

    def samples(self) -> tuple[Tensor, Tensor]:
        return make_samples()

    def build_model(self) -> nn.Module:
        return Net()

    def optimizer(self, model: nn.Module) -> Optimizer:
        return Adam(model.parameters(), lr=1e-2)

    def flops_per_sample(self) -> float:
        return 6.0 * FEATURES * 64


def planted(**members: Any) -> type[Sound]:
    """Return a sound workload but for these methods or attributes."""

    class Planted(Sound):
        pass

    for name, member in members.items():
        setattr(Planted, name, member)
    return Planted


def with_loss(loss: Callable[[Tensor, Tensor], Tensor]) -> type[Sound]:
    """Return a sound workload but for its loss of logits and labels."""
    return planted(loss=lambda self, model, batch: loss(model(batch[0]), batch[1]))


def with_optimizer(optimizer: Callable[[nn.Module], Optimizer]) -> type[Sound]:
    return planted(optimizer=lambda self, model: optimizer(model))


def clock() -> torch.Generator:
    """Return a generator that draws other numbers at another time, as on another rank."""
    return torch.Generator().manual_seed(time.time_ns())


def labels_from_1(self: Sound) -> tuple[Tensor, Tensor]:
    inputs, labels = make_samples()
    return inputs, labels + 1


def data_of_the_clock(self: Sound) -> tuple[Tensor, Tensor]:
    inputs, labels = make_samples()
    return inputs + torch.rand(inputs.shape, generator=clock()), labels


def model_of_the_clock(self: Sound) -> nn.Module:
    model = Net()
    nn.init.normal_(model.body.weight, generator=clock())
    return model


class OrderedSamples(TensorSamples):
    """Samples that come in their own order, whichever are asked for."""

    def batch(self, indices: Sequence[int]) -> Batch:
        return super().batch(sorted(indices))


class DropoutInEvaluation(Net):
    def forward(self, inputs: Tensor) -> Tensor:
        return functional.dropout(super().forward(inputs), 0.3)


class NormInTrainingMode(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(FEATURES)

    def forward(self, inputs: Tensor) -> Tensor:
        self.norm.train()
        return super().forward(self.norm(inputs))


class UnreadableSamples(TensorSamples):
    """As a source does that looks at a label when it is read."""

    def batch(self, indices: Sequence[int]) -> Batch:
        raise ValueError("classes: found label 5; allowed: 0 to 4")


class Noisy(TensorSamples):
    """Draws noise by the second of the clock."""

    def batch(self, indices: Sequence[int]) -> Batch:
        inputs, labels = super().batch(indices)
        generator = torch.Generator().manual_seed(int(time.time()))
        return inputs + torch.rand(inputs.shape, generator=generator), labels


class OwnNoise(TensorSamples):
    """Draws noise from a generator that each worker has a copy of."""

    def __init__(self, tensors: Batch) -> None:
        super().__init__(tensors)
        object.__setattr__(self, "generator", torch.Generator().manual_seed(0))

    def batch(self, indices: Sequence[int]) -> Batch:
        inputs, labels = super().batch(indices)
        generator = self.__dict__["generator"]
        return inputs + 0.1 * torch.randn(inputs.shape, generator=generator), labels


# Each mistake, with the check that names it and a part of what is said.
PLANTED: dict[str, tuple[type[Sound], str, str]] = {
    "shuffling forgotten": (planted(train_samples=OrderedSamples), "indices", "in reverse"),
    "labels from 1": (planted(samples=labels_from_1), "loss", "out of bounds"),
    "an exception": (
        with_loss(lambda logits, labels: {"train": logits}["batch"]),
        "loss",
        "KeyError: 'batch' (test_examination.py:",
    ),
    "dropout in evaluation": (
        planted(build_model=lambda self: DropoutInEvaluation()), "evaluation", "differ",
    ),
    "batch norm in training mode": (
        planted(build_model=lambda self: NormInTrainingMode()), "evaluation", "running_mean",
    ),
    "data of the clock": (
        planted(samples=data_of_the_clock), "repeatable", "other training samples at another time",
    ),
    "a model of the clock": (
        planted(build_model=model_of_the_clock), "repeatable", "a new model another body.weight",
    ),
    "a generator of its own": (
        planted(train_samples=OwnNoise), "workers", "another batch 1 than one",
    ),
    "the loss switches to evaluation": (
        planted(loss=lambda self, model, batch: Sound.loss(self, model.eval(), batch)),
        "training mode",
        "the model",
    ),
    "a model in evaluation mode": (  # as `from_pretrained` of transformers returns it
        planted(build_model=lambda self: Net().eval()),
        "training mode",
        "found a model in evaluation mode",
    ),
    "a summed loss": (
        with_loss(partial(cross_entropy, reduction="sum")), "mean loss", "off its parts' mean",
    ),
    "a loss for each sample": (
        with_loss(partial(cross_entropy, reduction="none")), "loss", "shape (8,)",
    ),
    "an infinite loss": (with_loss(lambda x, y: cross_entropy(x, y) + math.inf), "loss", "inf"),
    "a detached loss": (
        with_loss(lambda x, y: cross_entropy(x.detach(), y)), "loss", "no gradient",
    ),
    "half of the parameters": (
        with_optimizer(lambda model: Adam(list(model.parameters())[:2], lr=1e-2)),
        "optimizer",
        "head.weight",
    ),
    "parameters of another model": (
        with_optimizer(lambda model: Adam([*model.parameters(), *Net().parameters()], lr=1e-2)),
        "optimizer",
        "not the model's",
    ),
    "a learning rate that is too small": (
        with_optimizer(lambda model: SGD(model.parameters(), lr=1e-7)), "one batch", "Adam at 0.001",
    ),
    "nothing to learn": (  # every loss sees other labels
        with_loss(lambda x, y: cross_entropy(x, y[torch.randperm(len(y))])),
        "one batch",
        "goes from",
    ),
}  # fmt: skip


class LongSentences(Unweighted):
    """Pads to the longest sentence of a batch, and counts padding as samples' words."""

    def splits(self) -> Splits:
        sound = super().splits()
        assert isinstance(sound.train, TensorSamples)
        return replace(sound, train=CutSamples(sound.train.tensors))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        words, targets = batch
        return cross_entropy(model(words), targets.flatten().clamp(min=0))


class CutSamples(TensorSamples):
    """Sentences without the columns that none of them needs."""

    def batch(self, indices: Sequence[int]) -> Batch:
        words, targets = super().batch(indices)
        width = int((targets != tokens.PAD).sum(1).max())
        return words[:, :width], targets[:, :width]


class VectorOfWeights(Unweighted):
    def loss_weight(self, batch: Batch) -> Tensor:
        return (batch[1] != tokens.PAD).sum(1)


class DrawsItsTargets(Unweighted):
    """As a masked language model does that draws its masks in the loss."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return super().loss(model, batch) + cross_entropy(
            model(batch[0]), torch.randint(tokens.WORDS, (batch[1].numel(),))
        )


def mean_loss_finding(workload_class: type[Unweighted], **options: Any) -> CheckFinding:
    """Return what is found of the loss of a language model."""
    workload = workload_class(tokens.Options(**options), Settings())
    report = examine("tokens", workload, Axes(batch_size=32), 0, CPU)
    return next(finding for finding in report.findings if finding.check == "mean loss")


@pytest.mark.parametrize(
    ("workload_class", "options", "status", "measured", "advice"),
    [
        (Unweighted, {}, "problem", "mean, weighted by samples", "define loss_weight(batch)"),
        (Weighted, {"weight": "wrong"}, "problem", "weighted by what loss_weight() counts", "divides its sum"),
        (LongSentences, {}, "problem", "if each part is padded separately", "leave out padding"),
        (VectorOfWeights, {}, "problem", "loss_weight() returned [", "divides its sum by"),
        (Weighted, {}, "passed", "", ""),
        (Weighted, {"weight": "fraction", "empty": True}, "passed", "", ""),
        (Weighted, {"batch_norm": True}, "passed", "", ""),
        (DrawsItsTargets, {}, "skipped", "", ""),
    ],
)  # fmt: skip
def test_a_loss_is_a_mean_weighted_by_what_it_divides_by(
    workload_class: type[Unweighted],
    options: dict[str, Any],
    status: str,
    measured: str,
    advice: str,
) -> None:
    finding = mean_loss_finding(workload_class, **options)
    assert finding.status == status
    assert measured in finding.measured
    assert advice in finding.advice


def examine_class(workload_class: type[Sound], seed: int = 0) -> WorkloadReport:
    """Examine a workload of this module in this process."""
    workload = workload_class(Settings(), Settings())
    return examine("planted", workload, Axes(batch_size=32), seed, CPU)


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples are drawn again without a pause."""
    monkeypatch.setattr(checks, "CLOCK_SECONDS", 0.0)


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_named(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    workload_class, check, text = PLANTED[mistake]
    if check != "workers":  # which take a second to start
        monkeypatch.setitem(CHECKS, "workers", lambda probe: passed(""))
    problems = {finding.check: finding for finding in examine_class(workload_class).problems}
    assert check in problems
    assert text in problems[check].measured


def test_samples_of_the_second_of_the_clock_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "CLOCK_SECONDS", 1.1)
    problems = {
        finding.check: finding for finding in examine_class(planted(train_samples=Noisy)).problems
    }
    assert "other training samples at another time" in problems["repeatable"].measured


def test_samples_that_cannot_be_read_are_one_mistake() -> None:
    (only,) = examine_class(planted(train_samples=UnreadableSamples)).findings
    assert "found label 5" in only.measured


def test_every_check_is_seen_to_find_a_mistake() -> None:
    assert {check for _, check, _ in PLANTED.values()} == set(CHECKS)


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_found_in_a_sound_workload(seed: int) -> None:
    report = examine_class(Sound, seed)
    assert [finding.status for finding in report.findings] == ["passed"] * len(CHECKS)


class Regression(Workload):
    """Has no evaluation of its own: each sample gets an equal share of the batch's loss."""

    def splits(self) -> Any:
        inputs = torch.randn(512, 8, generator=torch.Generator().manual_seed(0))
        return TensorDataset(inputs, inputs[:, :1] * 2 + inputs[:, 1:2].square())

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        result: Tensor = (model(batch[0]) - batch[1]).square().mean()
        return result


def test_nothing_is_found_in_a_workload_without_an_evaluation_of_its_own() -> None:
    workload = Regression(Settings(), Settings())
    assert examine("regression", workload, Axes(batch_size=32), 0, CPU).problems == []


def negative_cosine(logits: Tensor, labels: Tensor) -> Tensor:
    """A loss without a softmax, which falls from about -1 to -2."""
    wanted = functional.one_hot(labels, CLASSES).float()
    return -1.0 - functional.cosine_similarity(logits, wanted).mean()


def test_a_loss_below_zero_has_to_fall() -> None:
    assert examine_class(with_loss(negative_cosine)).problems == []


@cache
def trained_weights() -> dict[str, Tensor]:
    """Return the parameters of a net that has learned the samples."""
    torch.manual_seed(0)
    model = Net()
    optimizer = Adam(model.parameters(), lr=1e-2)
    inputs, labels = make_samples()
    for _ in range(100):
        cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


class Pretrained(Sound):
    """Begins with a low loss, and is fine-tuned at a rate that hardly lowers it."""

    def build_model(self) -> nn.Module:
        model = Net()
        model.load_state_dict(trained_weights())
        return model

    def optimizer(self, model: nn.Module) -> Optimizer:
        return SGD(model.parameters(), lr=1e-6)


def test_a_model_that_is_trained_only_has_to_lower_its_loss() -> None:
    """Without its weights, the same rate is a problem."""
    assert examine_class(Pretrained).problems == []
    untrained = with_optimizer(lambda model: SGD(model.parameters(), lr=1e-6))
    assert [problem.check for problem in examine_class(untrained).problems] == ["one batch"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["quickstart", "gpt"])
def test_nothing_is_found_in_the_built_in_workloads(name: str) -> None:
    sweep = load_sweep(ready_sweeps()[name])
    for cell in {cell.workload.label: cell for cell in sweep.cells}.values():
        trial = Trial(cell=replace(cell, axes=Axes(batch_size=cell.axes.batch_size)), seed=0)
        assignment = Assignment(trial=trial, base_folder=str(sweep.base_folder), device="cpu")
        workload = load_workload(assignment)
        report = examine(cell.workload.label, workload, trial.cell.axes, 0, CPU)
        assert report.problems == []


@pytest.mark.distributed
def test_the_mistakes_of_the_manuals_example_are_found(tmp_path: Path) -> None:
    page = (GUIDE / "before.md").read_text(encoding="utf-8")
    write_files(page, tmp_path)
    ended = harness("check", str(tmp_path / "bug.yaml"))
    assert (ended.code, ended.err) == (1, "")
    printed, expected = (
        re.sub(r"[\d.]+ s$", "… s", text, flags=re.M) for text in (ended.out, page)
    )
    assert printed in expected
