"""Defines what a workload is: model, data, loss, optimizer, schedule and target metric in one
class.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from workloads.settings import Settings, Target

TEST_SHARE = 0.1  # of a single data set, which is kept for testing
SPLIT_SEED = 0
# The tensors of a batch. The first dimension of each counts the samples, shape (samples, ...).
Batch = tuple[Tensor, ...]


class Samples(Protocol):
    """A set of samples with a fixed order.

    A class that also has a method `to(device)`, which returns the same samples on that device,
    allows the `input` axis to keep the whole set on the GPU.
    """

    def __len__(self) -> int: ...

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return the samples at `indices`, in that order, as CPU tensors of shape (len(indices),
        ...).
        """
        ...


@dataclass(frozen=True)
class TensorSamples:
    """Samples that fit in memory, as tensors of shape (samples, ...)."""

    tensors: Batch

    def __len__(self) -> int:
        return len(self.tensors[0])

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return the samples at `indices`, on the device that the tensors are on."""
        rows = torch.from_numpy(np.asarray(indices, dtype=np.int64))
        rows = rows.to(self.tensors[0].device)
        return tuple([_take_rows(tensor, rows) for tensor in self.tensors])

    def to(self, device: torch.device) -> TensorSamples:
        """Return the same samples on `device`."""
        return TensorSamples(tuple(tensor.to(device) for tensor in self.tensors))


def _take_rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """Return some rows of a tensor, in its own layout.

    On CPUs, `index_select` copies whole rows, in a fifth of the time of `tensor[rows]`. It takes no
    unsigned numbers without a second dimension, and forgets channels-last.
    """
    is_taken = tensor.ndim > 1 or tensor.dtype.is_signed
    if is_taken and tensor.is_cpu and tensor.is_contiguous():
        return tensor.index_select(0, rows)
    return tensor[rows]


@dataclass(eq=False)
class StreamSamples:
    """Samples that can only be read one after the other, such as the lines of a file.

    An epoch has them in the order of the stream, from its beginning; every rank and every loader
    worker reads all of it, and leaves out the samples of others. A trial that is resumed reads up
    to where it was.
    """

    # The harness draws no order for them.
    in_order: ClassVar[bool] = True

    # Opens the stream, given the seed of the trial and the epoch. A stream that shuffles must draw from it, so
    # that every rank and every loader worker has the same order.
    read: Callable[[int], Iterator[Any]]
    length: int  # samples that are taken from each stream
    # Makes a batch of some samples, of whatever width they need.
    collate: Callable[[Sequence[Any]], Batch]

    def __post_init__(self) -> None:
        self._stream: Iterator[Any] | None = None
        self._position = 0  # of the next sample in the stream
        self._seed = 0  # of the epoch

    def begin_epoch(self, seed: int) -> None:
        """Have the stream read anew from its beginning, unless it has this seed already."""
        if seed != self._seed:
            self._seed, self._stream = seed, None

    def __reduce__(self) -> tuple[Any, ...]:
        """Have pickle leave out the open stream, which is no state of a training."""
        return type(self), (self.read, self.length, self.collate)

    def __len__(self) -> int:
        return self.length

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return the samples at `indices`; those before them are read, and dropped."""
        return self.collate([self._sample(index) for index in indices])

    def _sample(self, index: int) -> Any:
        """Return one sample; raises ValueError for a stream that ends before it."""
        if self._stream is None or index < self._position:
            self._stream, self._position = iter(self.read(self._seed)), 0
        for sample in self._stream:
            self._position += 1
            if self._position == index + 1:
                return sample
        raise ValueError(f"stream: found {self._position} samples; needed: {self.length}")


@dataclass(frozen=True)
class Splits:
    """The samples to train on and the samples to test on.

    Which parameters are the best is decided on the validation set if there is one, otherwise on the test
    set, whose figures are somewhat too good then. A rule that stops trials needs a validation set.
    """

    train: Samples
    test: Samples
    validation: Samples | None = None


class Workload(ABC):
    """What is trained. Each rank of a trial creates one instance.

    A class must define `splits`, `build_model` and `loss`; everything else has a default.

    Everything that a workload returns must follow from its settings and from the generators that
    the harness has seeded (`torch`, `numpy`, `random`); a trial can be reproduced only then.

    The harness first calls `splits()`, once, then `build_model()`, and the other methods after
    that. `options` and `data` are instances of the class's `Options` and `Data`.
    """

    # The keys that a sweep file may set under `options`.
    Options: ClassVar[type[Settings]] = Settings
    # The keys that a sweep file may set under `data`: a Settings class, or a union of Settings
    # classes whose literal field `source` says which of them is meant.
    Data: ClassVar[Any] = Settings
    # Samples in a global batch, unless the sweep file sets the axis `batch_size`.
    batch_size: ClassVar[int] = 64
    target: Target = Target("accuracy")

    def __init__(self, options: Any, data: Any) -> None:
        self.options = options
        self.data = data

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Have a class without its own metrics train towards the loss, which it is evaluated by."""
        super().__init_subclass__(**keywords)
        if cls.metrics is Workload.metrics and cls.target is Workload.target:
            cls.target = Target("loss", higher_is_better=False)

    @abstractmethod
    def splits(self) -> Splits | Dataset[Any]:
        """Return the training and the test samples, and the validation samples if there are any.

        Each may be a torch `Dataset` with a length, whose samples `collate_fn` makes batches of. Of
        a single `Dataset`, a tenth of the samples is kept for testing, drawn by a fixed seed.
        """

    def collate_fn(self, samples: Sequence[Any]) -> Any:
        """Return some samples of a `Dataset` as a batch: a tensor, or a tuple of tensors.

        By default they are stacked, as a DataLoader does it.
        """
        return default_collate(list(samples))

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Return a freshly initialized model on the CPU.

        The model should be of a class that defines `forward`: torch.compile skips frames that belong to
        torch, and so may compile nothing of a bare `nn.Sequential`.
        """

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss over the batch: a scalar with a gradient.

        It is a mean over samples, or over what `loss_weight` counts. A class must define it.
        """
        raise NotImplementedError(f"{type(self).__name__} has no loss")

    def loss_weight(self, batch: Batch) -> Tensor | float:
        """Return the number that `loss` divides by, such as the number of target tokens in the batch.

        The loss of a global batch is the mean of its parts' by these weights, however it is cut into
        micro-batches and ranks. By default, samples weigh the same.

        It must follow from the batch alone: a loss that draws which tokens count would draw others.
        Return a tensor as it is, because `item()` would wait for the device in every step.
        """
        return float(len(batch[0]))

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Return the optimizer for the model's parameters; by default AdamW at a rate of 1e-3."""
        trained = [part for part in model.parameters() if part.requires_grad]
        return AdamW(trained, lr=1e-3)

    def schedule(self, optimizer: Optimizer, steps: int) -> LRScheduler | None:
        """Return the learning-rate schedule, or None to keep the learning rate constant.

        It is stepped after each of the trial's `steps` optimizer steps.
        """
        return None

    def after_step(self, model: nn.Module) -> None:
        """Do what follows an optimizer step, such as to move an average of the weights.

        It is a part of the step, and timed.
        """
        return

    def evaluate(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return what `metrics` needs of each sample, shape (samples, k) with a k of your choice.

        By default each sample gets an equal share of the batch's summed loss and of its weight.
        """
        loss = self.loss(model, batch).double()
        samples = len(batch[0])
        weight = torch.as_tensor(self.loss_weight(batch), dtype=loss.dtype, device=loss.device)
        # A batch without any weight has a loss of NaN, and counts 0.
        total = torch.where(weight == 0, torch.zeros_like(loss), loss * weight)
        share = torch.stack([total, weight]).div(samples)
        return share.expand(samples, 2)

    def metrics(self, rows: Tensor) -> dict[str, float]:
        """Return the metrics over a whole test or validation set by name, the target among them.

        `rows` holds what `evaluate` returned, float64, shape (samples, k), in sample order. By
        default, the loss is the only one.
        """
        total, weight = rows.sum(0).tolist()
        return {"loss": total / weight}

    def layers(self, model: nn.Module) -> Sequence[nn.Module]:
        """Return the submodules that FSDP2 shards one by one, such as a transformer's layers.

        Without any, FSDP2 shards the whole model as one unit. Activation checkpointing uses the
        same modules.
        """
        return ()

    def state_dict(self) -> dict[str, Any]:
        """Return what training changes in this object, such as a moving average of the weights.

        It is saved in checkpoints, and digested together with the parameters. Allowed are tensors,
        numbers, texts, None, and lists, tuples and dicts of them. Each rank saves its own.

        An interrupted trial starts again from step 0 if training has changed attributes and the class
        has no `state_dict`. One that returns an empty dict says that they have no effect.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned, with all tensors unsharded and on the CPU."""
        raise NotImplementedError(f"{type(self).__name__} has no load_state_dict")

    def tokens_per_sample(self) -> float | None:
        """Return the tokens that a sample trains on in the mean, None where samples have none.

        With it, tables and MLflow show tokens per second next to samples per second.
        """
        return None

    def flops_per_sample(self) -> float | None:
        """Return the floating-point operations of training on one sample, forward and backward.

        A multiply-add counts 2. This is the work that the mathematics asks for: it is what MFU is
        computed from, so leave out what an implementation computes twice. By default None: the
        matrix products, convolutions and attentions of a step are counted where a rank alone can
        compute one.
        """
        return None


def missing_methods(workload_class: type[Workload]) -> list[str]:
    """Return the methods that a class must still define, sorted.

    Evaluation needs a `loss`, or both `evaluate` and `metrics`, which belong together.
    """
    missing = set(workload_class.__abstractmethods__)
    if workload_class.loss is Workload.loss:
        missing.add("loss")
    has_evaluate = workload_class.evaluate is not Workload.evaluate
    has_metrics = workload_class.metrics is not Workload.metrics
    if has_metrics and not has_evaluate:
        missing.add("evaluate")
    if has_evaluate and not has_metrics:
        missing.add("metrics")
    return sorted(missing)


IGNORED_LABEL = -100  # torch's default of `ignore_index`


class Classifier(Workload):
    """A workload whose batches are (inputs, ..., labels) and whose loss is cross-entropy.

    Its metrics are accuracy, macro-F1 and the loss.
    """

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the logits, shape (samples, classes). The last tensor of a batch holds the labels."""
        result: Tensor = model(*batch[:-1])
        return result

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of the batch, a scalar."""
        logits = self.logits(model, batch)
        return cross_entropy(logits, batch[-1])

    def evaluate(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return cross-entropy, predicted class and label of each sample, shape (samples, 3)."""
        labels = batch[-1]
        logits = self.logits(model, batch)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        losses = cross_entropy(logits, labels, reduction="none")
        columns = (losses, logits.argmax(1), labels)
        return torch.stack([column.double() for column in columns], dim=1)

    def metrics(self, rows: Tensor) -> dict[str, float]:
        """Return accuracy, macro-F1 and the mean cross-entropy."""
        # Those that cross-entropy ignores count for nothing.
        counted = rows[rows[:, 2] != IGNORED_LABEL]
        losses, predicted, labels = counted.unbind(1)
        is_correct = predicted == labels
        return {
            "accuracy": float(is_correct.double().mean()),
            "macro_f1": macro_f1(predicted.long(), labels.long()),
            "loss": float(losses.mean()),
        }


def macro_f1(predicted: Tensor, labels: Tensor) -> float:
    """Return the unweighted mean over classes of F1 = 2 TP / (2 TP + FP + FN).

    Both arguments are int64 of shape (samples,). Classes that occur neither as a label nor as a
    prediction are left out; a class that is never predicted correctly counts 0.
    """
    classes = int(torch.cat([predicted, labels]).max()) + 1
    correct = labels[predicted == labels]
    true_positives = torch.bincount(correct, minlength=classes).double()
    # Each class occurs TP + FP times as a prediction and TP + FN times as a label.
    as_prediction = torch.bincount(predicted, minlength=classes)
    as_label = torch.bincount(labels, minlength=classes)
    occurrences = (as_prediction + as_label).double()
    occurring = occurrences > 0
    scores = 2 * true_positives[occurring] / occurrences[occurring]
    return float(scores.mean())


@dataclass(frozen=True)
class DatasetSamples:
    """Samples of a map-style Dataset, made into batches by a collate function."""

    dataset: Any
    collate: Callable[[Sequence[Any]], Any]
    rows: Sequence[int]  # the indices in `dataset` of the samples

    def __len__(self) -> int:
        return len(self.rows)

    def batch(
        self, indices: Sequence[int], before_sample: Callable[[int], None] = lambda index: None
    ) -> Batch:
        """Return the samples at `indices`, in that order; raises TypeError if they make no tensors.

        `before_sample` is called with the index of each sample before it is fetched.
        """
        samples = []
        for index in indices:
            before_sample(int(index))
            samples.append(self.dataset[self.rows[index]])
        batch = self.collate(samples)
        if isinstance(batch, Tensor):
            return (batch,)
        is_sequence = isinstance(batch, list | tuple)
        if is_sequence and all(isinstance(part, Tensor) for part in batch):
            return tuple(batch)
        found = type(batch).__name__
        raise TypeError(f"collate_fn(): found a {found}; allowed: a tensor or a tuple of tensors")


def load_splits(workload: Workload) -> Splits:
    """Return the samples of a workload, those of Datasets made into batches by its `collate_fn`.

    Raises TypeError for a DataLoader, and for anything else that has no samples by index.
    """
    splits: Any = workload.splits()
    collate = workload.collate_fn
    if not isinstance(splits, Splits):
        everything = range(_length_of(splits))
        # Drawn, because every tenth sample may be of one class, or a neighbor of those before it.
        test_count = max(1, round(TEST_SHARE * len(everything)))
        rng = random.Random(SPLIT_SEED)
        test = sorted(rng.sample(everything, test_count))
        train = sorted(set(everything).difference(test))
        test_samples = DatasetSamples(splits, collate, test)
        return Splits(DatasetSamples(splits, collate, train), test_samples)
    adapted = {}
    for name, samples in vars(splits).items():
        if samples is not None and not hasattr(samples, "batch"):
            rows = range(_length_of(samples))
            samples = DatasetSamples(samples, collate, rows)
        adapted[name] = samples
    return Splits(**adapted)


def _length_of(dataset: Any) -> int:
    """Return the length of a data set; raises TypeError for one that has no samples by index."""
    # Not every Dataset derives from torch's, such as those of the Hub.
    has_samples = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if isinstance(dataset, DataLoader | IterableDataset | list | tuple | dict) or not has_samples:
        raise TypeError(
            f"splits(): found a {type(dataset).__name__}; allowed: Splits(train, test) of Datasets with a"
            " length, such as the `.dataset` of a DataLoader, or of samples such as TensorSamples or"
            " StreamSamples; the harness makes the batches"
        )
    return len(dataset)
