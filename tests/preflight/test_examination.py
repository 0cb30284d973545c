"""What a pre-flight finds: each mistake that is planted, by its name, and nothing in sound workloads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, Optimizer

from harness.preflight import checks
from harness.preflight.report import CheckFinding, WorkloadReport, passed
from harness.preflight.worker import CHECKS, examine
from harness.records.assignment import Assignment
from harness.sweep.axes import Axes
from harness.sweep.cell import Trial
from harness.sweep.sweep import load_sweep, ready_sweeps
from harness.training.entry import load_workload
from tests.support import tokens
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

    def splits(self) -> Splits:
        inputs, labels = self.samples()
        cut = SAMPLES * 3 // 4
        return Splits(
            TensorSamples((inputs[:cut], labels[:cut])), TensorSamples((inputs[cut:], labels[cut:]))
        )

    def samples(self) -> tuple[Tensor, Tensor]:
        return make_samples()

    def build_model(self) -> nn.Module:
        return Net()

    def optimizer(self, model: nn.Module) -> Optimizer:
        return Adam(model.parameters(), lr=1e-2)

    def flops_per_sample(self) -> float:
        return 6.0 * FEATURES * 64


class OrderedSamples(TensorSamples):
    """Samples that come in their own order, whichever are asked for."""

    def batch(self, indices: Sequence[int]) -> Batch:
        return super().batch(sorted(indices))


class ForgottenShuffling(Sound):
    def splits(self) -> Splits:
        sound = super().splits()
        assert isinstance(sound.train, TensorSamples)
        return replace(sound, train=OrderedSamples(sound.train.tensors))


class LabelsFromOne(Sound):
    def samples(self) -> tuple[Tensor, Tensor]:
        inputs, labels = make_samples()
        return inputs, labels + 1


class UnreadableSamples(Sound):
    """As a source does that looks at a label when it is read."""

    def splits(self) -> Splits:
        splits = super().splits()
        return replace(splits, train=Unreadable())


class Unreadable:
    def __len__(self) -> int:
        return 240

    def batch(self, indices: Sequence[int]) -> Batch:
        raise ValueError("classes: found label 5; allowed: 0 to 4")


class LossThatRaises(Sound):
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        batches = {"train": batch}
        return super().loss(model, batches["batch"])


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


def with_model(build: Any) -> type[Sound]:
    """Return a sound workload but for its model."""

    class WithModel(Sound):
        def build_model(self) -> nn.Module:
            model: nn.Module = build()
            return model

    return WithModel


class LossInEvaluationMode(Sound):
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return super().loss(model.eval(), batch)


class Evaluating(Sound):
    """Returns a model in evaluation mode, as `from_pretrained` of transformers does."""

    def build_model(self) -> nn.Module:
        return super().build_model().eval()


class SummedLoss(Sound):
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")


class LossPerSample(Sound):
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


class InfiniteLoss(Sound):
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return super().loss(model, batch) - torch.log(torch.zeros(()))


class DetachedLoss(Sound):
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return functional.cross_entropy(model(batch[0]).detach(), batch[1])


class HalfAnOptimizer(Sound):
    def optimizer(self, model: nn.Module) -> Optimizer:
        return Adam(list(model.parameters())[:2], lr=1e-2)


class OptimizerOfAnotherModel(Sound):
    def optimizer(self, model: nn.Module) -> Optimizer:
        return Adam([*model.parameters(), *Net().parameters()], lr=1e-2)


class TooSlow(Sound):
    def optimizer(self, model: nn.Module) -> Optimizer:
        return SGD(model.parameters(), lr=1e-7)


class ShuffledLabels(Sound):
    """Every loss sees other labels, so there is nothing to learn."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        labels = batch[1][torch.randperm(len(batch[1]))]
        return super().loss(model, (batch[0], labels))


class DataOfTheClock(Sound):
    """Each rank would have other data."""

    def samples(self) -> tuple[Tensor, Tensor]:
        inputs, labels = make_samples()
        generator = torch.Generator().manual_seed(time.time_ns())
        return inputs + torch.rand(inputs.shape, generator=generator), labels


class BatchesOfTheClock(Sound):
    def splits(self) -> Splits:
        sound = super().splits()
        assert isinstance(sound.train, TensorSamples)
        return replace(sound, train=Noisy(sound.train.tensors))


class Noisy(TensorSamples):
    def batch(self, indices: Sequence[int]) -> Batch:
        inputs, labels = super().batch(indices)
        generator = torch.Generator().manual_seed(int(time.time()))
        return inputs + torch.rand(inputs.shape, generator=generator), labels


class ModelOfTheClock(Sound):
    def build_model(self) -> nn.Module:
        model = super().build_model()
        generator = torch.Generator().manual_seed(time.time_ns())
        nn.init.normal_(next(model.parameters()), generator=generator)
        return model


class OwnGenerator(Sound):
    """Draws noise from a generator that each worker has a copy of."""

    def splits(self) -> Splits:
        sound = super().splits()
        assert isinstance(sound.train, TensorSamples)
        return replace(sound, train=OwnNoise(sound.train.tensors))


class OwnNoise(TensorSamples):
    def __init__(self, tensors: Batch) -> None:
        super().__init__(tensors)
        object.__setattr__(self, "generator", torch.Generator().manual_seed(0))

    def batch(self, indices: Sequence[int]) -> Batch:
        inputs, labels = super().batch(indices)
        generator = self.__dict__["generator"]
        return inputs + 0.1 * torch.randn(inputs.shape, generator=generator), labels


# Each mistake, with the check that names it and a part of what is said.
PLANTED: dict[str, tuple[type[Sound], str, str]] = {
    "shuffling forgotten": (ForgottenShuffling, "indices", "in reverse"),
    "labels from 1": (LabelsFromOne, "loss", "out of bounds"),
    "an exception": (LossThatRaises, "loss", "KeyError: 'batch' (test_examination.py:"),
    "dropout in evaluation": (with_model(DropoutInEvaluation), "evaluation", "differ"),
    "batch norm in training mode": (with_model(NormInTrainingMode), "evaluation", "running_mean"),
    "data of the clock": (DataOfTheClock, "repeatable", "other training samples at another time"),
    "a model of the clock": (ModelOfTheClock, "repeatable", "a new model another body.weight"),
    "a generator of its own": (OwnGenerator, "workers", "another batch 1 than one"),
    "the loss switches to evaluation": (LossInEvaluationMode, "training mode", "the model"),
    "a model in evaluation mode": (Evaluating, "training mode", "found a model in evaluation mode"),
    "a summed loss": (SummedLoss, "mean loss", "off its parts' mean"),
    "a loss for each sample": (LossPerSample, "loss", "shape (8,)"),
    "an infinite loss": (InfiniteLoss, "loss", "inf"),
    "a detached loss": (DetachedLoss, "loss", "no gradient"),
    "half of the parameters": (HalfAnOptimizer, "optimizer", "head.weight"),
    "parameters of another model": (OptimizerOfAnotherModel, "optimizer", "not the model's"),
    "a learning rate that is too small": (TooSlow, "one batch", "Adam at 0.001"),
    "nothing to learn": (ShuffledLabels, "one batch", "goes from"),
}


class LongSentences(Unweighted):
    """Pads to the longest sentence of a batch, and counts padding as samples' words."""

    def splits(self) -> Splits:
        sound = super().splits()
        assert isinstance(sound.train, TensorSamples)
        return replace(sound, train=CutSamples(sound.train.tensors))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        words, targets = batch
        return functional.cross_entropy(model(words), targets.flatten().clamp(min=0))


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
        return super().loss(model, batch) + functional.cross_entropy(
            model(batch[0]), torch.randint(tokens.WORDS, (batch[1].numel(),))
        )


def mean_loss_finding(workload_class: type[Unweighted], **options: Any) -> CheckFinding:
    """Return what is found of the loss of a language model."""
    workload = workload_class(tokens.Options(**options), Settings())
    report = examine("tokens", workload, Axes(batch_size=32), 0, CPU)
    return next(finding for finding in report.findings if finding.check == "mean loss")


@pytest.mark.parametrize(
    ("workload_class", "options", "measured", "advice"),
    [
        (Unweighted, {}, "mean, weighted by samples", "define loss_weight(batch)"),
        (Weighted, {"weight": "wrong"}, "weighted by what loss_weight() counts", "divides its sum"),
        (LongSentences, {}, "if each part is padded separately", "leave out padding"),
        (VectorOfWeights, {}, "loss_weight() returned [", "divides its sum by"),
    ],
)
def test_a_loss_that_is_no_weighted_mean_is_named(
    workload_class: type[Unweighted], options: dict[str, Any], measured: str, advice: str
) -> None:
    finding = mean_loss_finding(workload_class, **options)
    assert finding.status == "problem"
    assert measured in finding.measured
    assert advice in finding.advice


@pytest.mark.parametrize(
    ("workload_class", "options", "status"),
    [
        (Weighted, {}, "passed"),
        (Weighted, {"weight": "fraction", "empty": True}, "passed"),
        (Weighted, {"batch_norm": True}, "passed"),
        (DrawsItsTargets, {}, "skipped"),
    ],
)
def test_weights_that_a_loss_divides_by_are_accepted(
    workload_class: type[Unweighted], options: dict[str, Any], status: str
) -> None:
    assert mean_loss_finding(workload_class, **options).status == status


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
    problems = {finding.check: finding for finding in examine_class(BatchesOfTheClock).problems}
    assert "other training samples at another time" in problems["repeatable"].measured


def test_samples_that_cannot_be_read_are_one_mistake() -> None:
    (only,) = examine_class(UnreadableSamples).findings
    assert "found label 5" in only.measured


def test_every_check_is_seen_to_find_a_mistake() -> None:
    assert {check for _, check, _ in PLANTED.values()} == set(CHECKS)


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_found_in_a_sound_workload(seed: int) -> None:
    report = examine_class(Sound, seed)
    assert [finding.status for finding in report.findings] == ["passed"] * len(CHECKS)


class Regression(Workload):
    """Has no evaluation of its own: each sample gets an equal share of the batch's loss."""

    def splits(self) -> Splits:
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(512, 8, generator=generator)
        targets = inputs[:, :1] * 2 + inputs[:, 1:2].square()
        return Splits(
            TensorSamples((inputs[:400], targets[:400])),
            TensorSamples((inputs[400:], targets[400:])),
        )

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        result: Tensor = (model(batch[0]) - batch[1]).square().mean()
        return result


def test_nothing_is_found_in_a_workload_without_an_evaluation_of_its_own() -> None:
    workload = Regression(Settings(), Settings())
    assert examine("regression", workload, Axes(batch_size=32), 0, CPU).problems == []


class NegativeCosine(Sound):
    """A loss without a softmax, which falls from about -1 to -2."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, labels = batch
        wanted = functional.one_hot(labels, CLASSES).float()
        return -1.0 - functional.cosine_similarity(model(inputs), wanted).mean()


def test_a_loss_below_zero_has_to_fall() -> None:
    assert examine_class(NegativeCosine).problems == []


@cache
def trained_weights() -> dict[str, Tensor]:
    """Return the parameters of a net that has learned the samples."""
    torch.manual_seed(0)
    model = Net()
    optimizer = Adam(model.parameters(), lr=1e-2)
    inputs, labels = make_samples()
    for _ in range(100):
        functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
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


class Untrained(Pretrained):
    """Starts from nothing at the rate of a fine-tuning."""

    def build_model(self) -> nn.Module:
        return Net()


def test_a_model_that_is_trained_only_has_to_lower_its_loss() -> None:
    """Without its weights, the same rate is a problem."""
    axes = Axes(batch_size=32)
    report = examine("pretrained", Pretrained(Settings(), Settings()), axes, 0, CPU)
    assert report.problems == []
    (only,) = examine("new", Untrained(Settings(), Settings()), axes, 0, CPU).problems
    assert only.check == "one batch"


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
