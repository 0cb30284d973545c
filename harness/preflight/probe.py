"""What the checks of one workload share: its samples, a small batch, and ways to compute on it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import xxhash
from torch import Tensor, nn, special
from torch.nn import functional
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from harness.spec.axes import Axes
from harness.training.model import build_model, evaluation_mode, place_batch
from harness.training.optimization import make_optimizer
from harness.training.ranks import seed_everything
from workloads.base import Batch, Samples, Splits, Workload

BATCH_SIZE = 8  # samples of the batch that most checks use
PARTS = 3  # that the batch is cut into, of 3, 3 and 2 samples
TEST_BATCH_SIZE = 64
DROPOUT = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)
CANDIDATES = 128  # samples that the batch is chosen from


@dataclass(frozen=True, kw_only=True)
class CrossEntropy:
    """A call of torch's cross-entropy."""

    scores: Tensor  # what it takes the softmax of, shape (samples, classes, ...)
    target: Tensor  # classes, or a probability of each class in the shape of `scores`
    label_smoothing: float  # the share of each label that is spread over all classes
    losses: Tensor  # what it returned: one number, or one for each target with reduction="none"

    @property
    def class_dim(self) -> int:
        """Return the dimension of the classes."""
        return 0 if self.scores.ndim == 1 else 1

    @property
    def classes(self) -> int:
        """Return the number of classes."""
        return self.scores.shape[self.class_dim]

    @property
    def chance(self) -> float:
        """Return the loss of a guess without knowledge: ln(classes), in nats."""
        return math.log(self.classes)

    @property
    def mean(self) -> float:
        """Return the mean of the losses that it returned."""
        return float(self.losses.double().mean())

    @property
    def floor(self) -> float:
        """Return the loss of a model that knows every label: the mean entropy of the smoothed labels."""
        spread = self.label_smoothing / self.classes
        if self.target.is_floating_point():
            labels = (1 - self.label_smoothing) * self.target.double() + spread
            return float(special.entr(labels).sum(self.class_dim).mean())
        if not spread:
            return 0.0
        peak = 1 - self.label_smoothing + spread
        return -peak * math.log(peak) - (self.classes - 1) * spread * math.log(spread)


class CrossEntropyWatch(TorchFunctionMode):
    """Keeps the calls of cross-entropy within a block, whether by function or by module."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[CrossEntropy] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Keep the arguments and the result of a cross-entropy, and call every function as it is."""
        keywords = kwargs or {}
        result = func(*args, **keywords)
        if func is functional.cross_entropy:
            scores = args[0] if args else keywords["input"]
            target = args[1] if len(args) > 1 else keywords["target"]
            smoothing = keywords.get("label_smoothing", 0.0)
            call = CrossEntropy(
                scores=scores.detach(),
                target=target.detach(),
                label_smoothing=smoothing,
                losses=result.detach(),
            )
            self.calls.append(call)
        return result


@dataclass(kw_only=True)
class Probe:
    """A workload under examination, on one device, without a strategy."""

    workload: Workload
    splits: Splits
    axes: Axes  # of the sweep, apart from those that need several ranks or a compiler
    device: torch.device
    seed: int
    started: float = field(default_factory=time.monotonic)
    calls: list[CrossEntropy] = field(default_factory=list)  # of the last loss that was computed

    @cached_property
    def drawn(self) -> dict[str, Batch]:
        """Samples as they are first drawn, by the name of their set."""
        return draw(self.splits, self.seed)

    def build(self) -> nn.Module:
        """Return a new model, always with the same parameters."""
        seed_everything(self.seed)
        return build_model(self.workload, self.axes, self.device)

    @cached_property
    def indices(self) -> list[int]:
        """Up to BATCH_SIZE training samples, no two of which have the same inputs."""
        generator = torch.Generator().manual_seed(self.seed)
        shuffled: list[int] = torch.randperm(len(self.splits.train), generator=generator).tolist()
        candidates = shuffled[:CANDIDATES]
        digests = row_digests(self.splits.train.batch(candidates))
        by_digest = dict(zip(digests, candidates, strict=True))
        return list(by_digest.values())[:BATCH_SIZE]

    @cached_property
    def batch(self) -> Batch:
        """The samples of `indices`."""
        return self._fetch(self.indices)

    def cut_parts(self) -> list[Batch]:
        """Return the batch cut into PARTS, which differ in size."""
        parts = min(PARTS, len(self.indices))
        return list(zip(*(tensor.tensor_split(parts) for tensor in self.batch), strict=True))

    def fetched_parts(self) -> list[Batch]:
        """Return the same parts as ranks fetch them, each separately.

        There are none where every fetch draws samples again, as augmentation does.
        """
        seed_everything(self.seed, 1)
        again = self._fetch(self.indices)
        if not all(torch.equal(a, b) for a, b in zip(self.batch, again, strict=True)):
            return []
        parts, position = [], 0
        for part in self.cut_parts():
            indices = self.indices[position : position + len(part[0])]
            parts.append(self._fetch(indices))
            position += len(indices)
        return parts

    def _fetch(self, indices: Sequence[int]) -> Batch:
        """Return training samples on the device, in the model's type."""
        return place_batch(self.splits.train.batch(indices), self.axes, self.device)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Return the workload's optimizer as the axes ask for it."""
        return make_optimizer(self.workload, model, self.axes)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of a step; `calls` are then its cross-entropies."""
        with CrossEntropyWatch() as watch:
            loss = self.workload.loss(model, batch)
        self.calls = watch.calls
        return loss

    def test_rows(self, model: nn.Module, indices: Sequence[int]) -> Tensor:
        """Return what the evaluation makes of these test samples, float64."""
        rows = []
        for start in range(0, len(indices), TEST_BATCH_SIZE):
            batch = self.splits.test.batch(indices[start : start + TEST_BATCH_SIZE])
            rows.append(self.rows(model, place_batch(batch, self.axes, self.device)))
        return torch.cat(rows)

    def rows(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return what the workload's evaluation makes of a batch, in evaluation mode, float64."""
        with evaluation_mode(model), torch.no_grad():
            return self.workload.evaluate(model, batch).double().cpu()


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Set the probability of all dropout modules to 0 for a block."""
    saved = []
    for module in model.modules():
        if isinstance(module, DROPOUT):
            saved.append((module, module.p))
            module.p = 0.0
    try:
        yield
    finally:
        for module, probability in saved:
            module.p = probability


def spread_indices(samples: Samples) -> list[int]:
    """Return up to four indices from the first to the last sample."""
    return sorted({0, len(samples) // 3, len(samples) // 2, len(samples) - 1})


def seeded_batch(samples: Samples, indices: Sequence[int], seed: int) -> Batch:
    """Return a batch, drawn from generators that were seeded just before."""
    seed_everything(seed)
    return samples.batch(indices)


def draw(splits: Splits, seed: int) -> dict[str, Batch]:
    """Return a few samples of each set, drawn right after the seed, by the name of the set."""
    sets = {"training": splits.train, "test": splits.test, "validation": splits.validation}
    drawn = {}
    for name, samples in sets.items():
        if samples is not None:
            drawn[name] = seeded_batch(samples, spread_indices(samples), seed)
    return drawn


def row_digests(batch: Batch) -> list[int]:
    """Return a digest of each sample's inputs: all tensors of a batch but the last, its labels.

    Of a batch of one tensor, it is that tensor.
    """
    inputs = batch[:-1] or batch
    digests = []
    for row in range(len(inputs[0])):
        digest = xxhash.xxh3_64()
        for tensor in inputs:
            digest.update(_bytes_of(tensor[row]))
        digests.append(digest.intdigest())
    return digests


def _bytes_of(tensor: Tensor) -> Any:
    """Return the memory of a tensor on the CPU."""
    values = tensor.detach().cpu().contiguous().reshape(-1)
    if not values.numel():
        return b""
    return values.view(torch.uint8).numpy().data
