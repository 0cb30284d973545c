"""What a workload is: model, data, loss, optimizer recipe, schedule and target metric, in one class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from workloads.options import Settings

Batch = tuple[Tensor, ...]


class Samples(Protocol):
    """A set of samples with a fixed order.

    With a method `to(device)` that returns the same samples there, the input axis can keep them on the device.
    """

    def __len__(self) -> int: ...

    def batch(self, indices: Sequence[int]) -> Batch:
        """The samples at `indices`, in that order: CPU tensors whose first dimension is `len(indices)`."""
        ...


@dataclass(frozen=True)
class TensorSamples:
    """Samples held in memory: tensors whose first dimension counts the samples."""

    tensors: Batch

    def __len__(self) -> int:
        return len(self.tensors[0])

    def batch(self, indices: Sequence[int]) -> Batch:
        rows = torch.as_tensor(indices, device=self.tensors[0].device)
        return tuple(tensor[rows] for tensor in self.tensors)

    def to(self, device: torch.device) -> TensorSamples:
        return TensorSamples(tuple(tensor.to(device) for tensor in self.tensors))


@dataclass(frozen=True)
class Splits:
    train: Samples
    test: Samples


@dataclass(frozen=True)
class Target:
    """The metric that a workload is trained towards."""

    name: str
    higher_is_better: bool = True


class Workload(ABC):
    """One per process and trial. Deterministic given its settings and the seeded generators of the process.

    `options` and `data` are instances of the class's `Options` and `Data`. `splits()` is called once, before
    `build_model()`.
    """

    Options: ClassVar[type[Settings]] = Settings
    Data: ClassVar[Any] = (
        Settings  # a Settings class, or a union of them told apart by a literal field `source`
    )
    batch_size: ClassVar[int] = 64  # samples in a global batch unless the sweep sets it
    target: ClassVar[Target] = Target("accuracy")

    def __init__(self, options: Any, data: Any) -> None:
        self.options = options
        self.data = data

    @abstractmethod
    def splits(self) -> Splits:
        """The training and the test samples."""

    @abstractmethod
    def build_model(self) -> nn.Module:
        """A freshly initialised model on the CPU. Give it a class with its own `forward`, or compile may skip it."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss over the batch: a scalar that can be differentiated."""

    @abstractmethod
    def optimizer(self, model: nn.Module) -> Optimizer:
        """The optimizer recipe."""

    def schedule(self, optimizer: Optimizer, steps: int) -> LRScheduler | None:
        """The learning-rate schedule, stepped after each of the `steps` optimizer steps; None keeps it constant."""
        return None

    @abstractmethod
    def evaluate(self, model: nn.Module, batch: Batch) -> Tensor:
        """What `metrics` needs to know of each sample: shape [samples of the batch, k]."""

    @abstractmethod
    def metrics(self, rows: Tensor) -> dict[str, float]:
        """Metrics over the whole test set, the target among them; `rows` is `evaluate`'s, float64, in sample order."""

    def layers(self, model: nn.Module) -> Sequence[nn.Module]:
        """The submodules that FSDP2 shards one by one; without any, the whole model is one unit."""
        return ()

    @abstractmethod
    def flops_per_sample(self) -> float:
        """Floating-point operations (a multiply-add counts 2) of one training sample, forward and backward."""


class Classifier(Workload):
    """Batches are (inputs, labels), the loss is cross-entropy; reports accuracy, macro-F1 and test loss."""

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """Shape [samples, classes]. The last tensor of a batch holds the labels."""
        result: Tensor = model(*batch[:-1])
        return result

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(self.logits(model, batch), batch[-1])

    def evaluate(self, model: nn.Module, batch: Batch) -> Tensor:
        """Columns: cross-entropy, predicted class, label."""
        logits, labels = self.logits(model, batch).float(), batch[-1]
        losses = nn.functional.cross_entropy(logits, labels, reduction="none")
        return torch.stack([losses.double(), logits.argmax(1).double(), labels.double()], dim=1)

    def metrics(self, rows: Tensor) -> dict[str, float]:
        losses, predicted, labels = rows[:, 0], rows[:, 1].long(), rows[:, 2].long()
        return {
            "accuracy": float((predicted == labels).double().mean()),
            "macro_f1": macro_f1(predicted, labels),
            "test_loss": float(losses.mean()),
        }


def macro_f1(predicted: Tensor, labels: Tensor) -> float:
    """Unweighted mean over the classes seen of 2TP / (2TP + FP + FN); a class never predicted right counts 0."""
    classes = int(torch.maximum(predicted.max(), labels.max())) + 1
    hits = torch.bincount(labels[predicted == labels], minlength=classes).double()
    seen = (
        torch.bincount(predicted, minlength=classes) + torch.bincount(labels, minlength=classes)
    ).double()
    present = seen > 0
    return float((2 * hits[present] / seen[present]).mean())
