"""What the checks of one workload share: its samples, a small batch, and ways to compute on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from harness.sweep.axes import Axes
from harness.training.model import build_model, place_batch
from harness.training.ranks import seed_everything
from workloads.base import Batch, Samples, Splits, Workload

BATCH_SIZE = 8  # samples of the batch that most checks use
DROPOUT = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)
PARTS = 3  # that the batch is cut into, of 3, 3 and 2 samples


@dataclass(kw_only=True)
class Probe:
    """A workload under examination, on one device, without a strategy."""

    workload: Workload
    splits: Splits
    axes: Axes  # of the sweep, apart from those that need several ranks or a compiler
    device: torch.device
    seed: int

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
        """Up to BATCH_SIZE training samples, drawn by the seed."""
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(len(self.splits.train), generator=generator)
        shuffled: list[int] = order.tolist()
        return shuffled[:BATCH_SIZE]

    @cached_property
    def batch(self) -> Batch:
        """The samples of `indices`."""
        return self._fetch(self.indices)

    def cut_parts(self) -> list[Batch]:
        """Return the batch cut into PARTS, which differ in size."""
        parts = min(PARTS, len(self.indices))
        cut = [tensor.tensor_split(parts) for tensor in self.batch]
        return list(zip(*cut, strict=True))

    def fetched_parts(self) -> list[Batch]:
        """Return the same parts as ranks fetch them, each separately.

        There are none where every fetch draws samples again, as augmentation does.
        """
        seed_everything(self.seed, 1)
        if not is_equal(self.batch, self._fetch(self.indices)):
            return []
        parts = []
        position = 0
        for part in self.cut_parts():
            end = position + len(part[0])
            parts.append(self._fetch(self.indices[position:end]))
            position = end
        return parts

    def _fetch(self, indices: Sequence[int]) -> Batch:
        """Return training samples on the device, in the model's type."""
        batch = self.splits.train.batch(indices)
        return place_batch(batch, self.axes, self.device)

    def rows(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return what the workload's evaluation makes of a batch, in evaluation mode, float64."""
        model.eval()
        with torch.no_grad():
            rows = self.workload.evaluate(model, batch)
            return rows.double().cpu()


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


def is_equal(a: Batch, b: Batch) -> bool:
    """Return whether two batches have the same tensors."""
    if len(a) != len(b):
        return False
    return all(map(torch.equal, a, b))


def spread_indices(samples: Samples) -> list[int]:
    """Return up to four indices from the first to the last sample."""
    count = len(samples)
    return sorted({0, count // 3, count // 2, count - 1})


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
