"""What a pre-flight finds: each mistake that is planted, by its name, and nothing in sound workloads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, Optimizer

from harness.preflight import data_checks, learning_checks
from harness.preflight.report import CheckFinding, WorkloadReport
from harness.preflight.worker import FURTHER, REHEARSED, REQUIRED, examine
from harness.records.assignment import Assignment
from harness.spec.axes import Axes
from harness.spec.cell import Trial
from harness.spec.sweep import load_sweep, ready_sweeps
from harness.training.entry import load_workload
from tests.support import tokens
from tests.support.tokens import Unweighted, Weighted
from workloads import Classifier, Settings, Splits, Target, TensorSamples
from workloads.base import Batch

FEATURES, CLASSES, SAMPLES = 12, 5, 320
CPU = torch.device("cpu")
FEW_STEPS = 20  # of a rehearsal that nothing is asserted about


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


class NotANumber(Sound):
    def samples(self) -> tuple[Tensor, Tensor]:
        inputs, labels = make_samples()
        inputs[7, 3] = float("nan")
        return inputs, labels


class SameTestSet(Sound):
    def splits(self) -> Splits:
        train = super().splits().train
        return Splits(train, train)


class LabelsFromOne(Sound):
    def samples(self) -> tuple[Tensor, Tensor]:
        inputs, labels = make_samples()
        return inputs, labels + 1


class RareLabelOutOfRange(Sound):
    """The label that does not fit is in none of the batches that other checks use."""

    def samples(self) -> tuple[Tensor, Tensor]:
        inputs, labels = make_samples()
        labels[-1] = CLASSES
        return inputs, labels


class OneClass(Sound):
    def samples(self) -> tuple[Tensor, Tensor]:
        inputs, labels = make_samples()
        return inputs, torch.full_like(labels, 3)


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


class WholeNumbersAsInputs(Sound):
    def samples(self) -> tuple[Tensor, Tensor]:
        inputs, labels = make_samples()
        return (inputs * 50).clamp(0, 255).to(torch.uint8), labels


class ShortLabels(Sound):
    def samples(self) -> tuple[Tensor, Tensor]:
        inputs, labels = make_samples()
        return inputs, labels.int()


class HiddenLayers(Net):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = [nn.Linear(64, 64)]

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks[0](functional.relu(self.body(inputs))))
        return logits


class TensorsOnTheCPU(Net):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) * self.scale


class Views(Net):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.view(len(inputs), -1))


class ViewOfImages(Sound):
    def samples(self) -> tuple[Tensor, Tensor]:
        inputs, labels = make_samples()
        return inputs.reshape(SAMPLES, 3, -1), labels

    def build_model(self) -> nn.Module:
        return Views()


class MixedSamples(Net):
    """Attends over the samples of a batch instead of over features."""

    def forward(self, inputs: Tensor) -> Tensor:
        logits = super().forward(inputs)
        return logits - logits.mean(0) + logits.sum(0) * 0.1


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


class TwoSoftmaxes(Net):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).softmax(dim=1)


class LargeHead(Net):
    def __init__(self) -> None:
        super().__init__()
        nn.init.normal_(self.head.weight, std=20.0)


class Unused(Net):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(64, 64)


class Deep(nn.Module):
    """Sixteen layers between input and logits."""

    def __init__(self, activation: type[nn.Module], gain: float) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Linear(FEATURES, 32)]
        for _ in range(15):
            layers += [activation(), nn.Linear(32, 32)]
        self.layers = nn.Sequential(*layers, nn.Linear(32, CLASSES))
        with torch.no_grad():
            for parameter in self.layers[:-1].parameters():
                parameter.mul_(gain)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.layers(inputs)
        return logits


class ChangedInPlace(Net):
    """Overwrites what the backward of the sigmoid needs."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.sigmoid(self.body(inputs))
        hidden *= 2
        logits: Tensor = self.head(hidden)
        return logits


class DeadUnits(Net):
    """Its ReLUs are off for every sample."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.constant_(self.body.bias, -100.0)


class ForgetfulAdam(Adam):
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget to clear the gradients."""


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


class GradientsThatPileUp(Sound):
    def optimizer(self, model: nn.Module) -> Optimizer:
        return ForgetfulAdam(model.parameters(), lr=1e-2)


class TooSlow(Sound):
    def optimizer(self, model: nn.Module) -> Optimizer:
        return SGD(model.parameters(), lr=1e-7)


class ShuffledLabels(Sound):
    """Every loss sees other labels, so there is nothing to learn."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        labels = batch[1][torch.randperm(len(batch[1]))]
        return super().loss(model, (batch[0], labels))


class WrongDirection(Sound):
    target = Target("loss", higher_is_better=True)


class OtherMetrics(Sound):
    """`harness run` refuses it too."""

    target = Target("accuracy_top1", higher_is_better=True)


class RowsWithoutNumbers(Sound):
    def evaluate(self, model: nn.Module, batch: Batch) -> Tensor:
        return super().evaluate(model, batch) * float("nan")


class MeanOverNothing(Sound):
    def metrics(self, rows: Tensor) -> dict[str, float]:
        return super().metrics(rows) | {"accuracy": float(rows[:0].mean())}


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


# Each mistake, with the check that names it and a part of what is said.
PLANTED: dict[str, tuple[type[Sound], str, str]] = {
    "shuffling forgotten": (ForgottenShuffling, "indices", "in reverse"),
    "NaN among the inputs": (NotANumber, "finite samples", "1 of 320 samples"),
    "train and test coincide": (SameTestSet, "split", "240 of 240 test samples"),
    "labels from 1": (LabelsFromOne, "loss", "out of bounds"),
    "a rare label out of range": (RareLabelOutOfRange, "labels", "1 of 320 labels"),
    "one class": (OneClass, "labels", "all 240 labels of the training set are 3"),
    "an exception": (LossThatRaises, "loss", "KeyError: 'batch' (test_examination.py:"),
    "integer inputs": (WholeNumbersAsInputs, "loss", "must have the same dtype"),
    "int32 labels": (ShortLabels, "loss", "Long"),
    "a list of layers": (with_model(HiddenLayers), "layers", "blocks"),
    "a device mismatch": (with_model(TensorsOnTheCPU), "device", "stay on the CPU"),
    "view of what is not contiguous": (ViewOfImages, "layout", "view size"),
    "samples that see each other": (with_model(MixedSamples), "independence", "other samples"),
    "dropout in evaluation": (with_model(DropoutInEvaluation), "evaluation", "differ"),
    "batch norm in training mode": (with_model(NormInTrainingMode), "evaluation", "running_mean"),
    "a target that no metric is": (OtherMetrics, "metrics", "metrics with 'accuracy_top1' among"),
    "NaN in evaluation": (RowsWithoutNumbers, "metrics", "NaN for all of 80 test samples"),
    "a metric that is NaN": (MeanOverNothing, "metrics", "accuracy of 80 test samples is NaN"),
    "data of the clock": (DataOfTheClock, "repeatable", "other training samples at another time"),
    "a model of the clock": (ModelOfTheClock, "repeatable", "a new model another body.weight"),
    "the loss switches to evaluation": (LossInEvaluationMode, "training mode", "the model"),
    "a model in evaluation mode": (Evaluating, "training mode", "found a model in evaluation mode"),
    "two softmaxes": (with_model(TwoSoftmaxes), "logits", "probabilities"),
    "a large head": (with_model(LargeHead), "start", "a guess among 5 classes"),
    "a summed loss": (SummedLoss, "mean loss", "twice the loss"),
    "a loss for each sample": (LossPerSample, "loss", "shape (8,)"),
    "an infinite loss": (InfiniteLoss, "loss", "inf"),
    "a detached loss": (DetachedLoss, "loss", "no gradient"),
    "unused parameters": (with_model(Unused), "gradients", "spare.weight, spare.bias"),
    "vanishing gradients": (with_model(lambda: Deep(nn.Sigmoid, 1.0)), "gradients", "vanish"),
    "exploding gradients": (with_model(lambda: Deep(nn.Identity, 12.0)), "gradients", "explode"),
    "a backward that raises": (with_model(ChangedInPlace), "gradients", "an inplace operation"),
    "dead units": (with_model(DeadUnits), "reach", "body.weight, body.bias"),
    "half of the parameters": (HalfAnOptimizer, "optimizer", "head.weight"),
    "parameters of another model": (OptimizerOfAnotherModel, "optimizer", "not the model's"),
    "zero_grad forgotten": (GradientsThatPileUp, "optimizer", "zero_grad()"),
    "a learning rate that is too small": (TooSlow, "one batch", "Adam at 0.001"),
    "nothing to learn": (ShuffledLabels, "one batch", "goes from"),
    "a metric of the wrong direction": (WrongDirection, "direction", "while the batch is learned"),
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
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(learning_checks, "MAX_STEPS", FEW_STEPS)
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
    monkeypatch.setattr(data_checks, "CLOCK_SECONDS", 0.0)


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_named(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    workload_class, check, text = PLANTED[mistake]
    if check not in REHEARSED:
        monkeypatch.setattr(learning_checks, "MAX_STEPS", FEW_STEPS)
    problems = {finding.check: finding for finding in examine_class(workload_class).problems}
    assert check in problems
    assert text in problems[check].measured
    assert problems[check].advice


def test_samples_of_the_second_of_the_clock_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_checks, "CLOCK_SECONDS", 1.1)
    problems = {finding.check: finding for finding in examine_class(BatchesOfTheClock).problems}
    assert "other training samples at another time" in problems["repeatable"].measured


@pytest.mark.parametrize("workload_class", [OtherMetrics, MeanOverNothing, DataOfTheClock])
def test_one_mistake_is_named_once(workload_class: type[Sound]) -> None:
    assert len(examine_class(workload_class).problems) == 1


def test_samples_that_cannot_be_read_are_one_mistake() -> None:
    (only,) = examine_class(UnreadableSamples).findings
    assert "found label 5" in only.measured
    assert only.advice.startswith("labels count from 0")


def test_every_check_is_seen_to_find_a_mistake() -> None:
    assert {check for _, check, _ in PLANTED.values()} == {*REQUIRED, *FURTHER, *REHEARSED}


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_found_in_a_sound_workload(seed: int) -> None:
    report = examine_class(Sound, seed)
    assert report.problems == []
    assert [norms.name for norms in report.norms] == [
        "body.weight", "body.bias", "head.weight", "head.bias",
    ]  # fmt: skip


class NegativeCosine(Sound):
    """A loss without a softmax, which falls from about -1 to -2."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, labels = batch
        wanted = functional.one_hot(labels, CLASSES).float()
        return -1.0 - functional.cosine_similarity(model(inputs), wanted).mean()


def test_a_loss_below_zero_is_not_taken_for_learned() -> None:
    report = examine_class(NegativeCosine)
    assert report.problems == []
    findings = {finding.check: finding for finding in report.findings}
    assert findings["reach"].status == "passed"
    for check in ("one batch", "direction"):
        assert findings[check].status == "skipped"
        assert findings[check].measured.startswith("the loss begins at -")
        assert findings[check].measured.endswith(", and how far it can fall is unknown")


def test_a_model_that_is_too_slow_to_overfit_a_batch_in_time_is_not_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(learning_checks, "MAX_SECONDS", 0.0)
    report = examine_class(TooSlow)
    assert report.problems == []
    findings = {finding.check: finding for finding in report.findings}
    assert findings["one batch"].status == "skipped"
    assert findings["one batch"].measured.endswith(" in 5 steps, when time was up")


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_labels_that_are_probabilities_are_learned_down_to_their_entropy(
    label_smoothing: float,
) -> None:
    class Distilled(Sound):
        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            inputs, labels = batch
            probabilities = 0.5 * functional.one_hot(labels, CLASSES) + 0.1
            return functional.cross_entropy(
                model(inputs), probabilities, label_smoothing=label_smoothing
            )

    report = examine_class(Distilled)
    assert report.problems == []
    findings = {finding.check: finding.status for finding in report.findings}
    assert findings["one batch"] == "passed"


@pytest.mark.parametrize(
    ("smoothings", "one_batch"),
    [((0.0, 0.0), "passed"), ((0.1, 0.1), "skipped"), ((0.1, 0.0), "skipped")],
)
def test_a_sum_of_cross_entropies_is_not_compared_with_one_of_them(
    smoothings: tuple[float, float], one_batch: str
) -> None:
    class TwoHeads(Sound):
        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            logits, labels = model(batch[0]), batch[1]
            first, second = smoothings
            return functional.cross_entropy(
                logits, labels, label_smoothing=first
            ) + functional.cross_entropy(logits, labels, label_smoothing=second)

    report = examine_class(TwoHeads)
    assert report.problems == []
    findings = {finding.check: finding for finding in report.findings}
    assert findings["start"].measured == "the loss has several cross-entropies"
    assert findings["one batch"].status == one_batch


class WithOtherTerm(Sound):
    """Predicts numbers besides a class, as a detector its boxes."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        numbers = 3 * model(batch[0]) + 3
        return super().loss(model, batch) + functional.smooth_l1_loss(numbers, 0 * numbers)


def test_a_loss_with_another_term_is_not_compared_with_a_guess(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(learning_checks, "MAX_STEPS", FEW_STEPS)
    findings = {finding.check: finding for finding in examine_class(WithOtherTerm).findings}
    assert findings["start"].status == "skipped"
    assert findings["start"].measured == "the loss has terms or factors besides its cross-entropy"

    class SureOfWrongAnswers(WithOtherTerm):
        def build_model(self) -> nn.Module:
            return LargeHead()

    findings = {finding.check: finding for finding in examine_class(SureOfWrongAnswers).findings}
    assert "a guess among 5 classes" in findings["start"].measured


@pytest.mark.parametrize("label", ["mlp", "cnn", "distilbert"])
def test_nothing_is_found_in_what_is_built_in(label: str) -> None:
    sweep = load_sweep(ready_sweeps()["quickstart"])
    cell = next(cell for cell in sweep.cells if cell.workload.label == label)
    workload = load_workload(
        Assignment(trial=Trial(cell=cell, seed=0), base_folder=str(sweep.base_folder))
    )
    report = examine(label, workload, cell.axes, 0, CPU)
    assert report.problems == []
    assert [finding.check for finding in report.findings if finding.status == "skipped"] == []
