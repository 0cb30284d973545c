"""Labeled samples of the built-in workloads: which of them are trained on, validated with and tested on."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from workloads.settings import Fraction, Seed, Settings, unfilled_batch

# The fraction of each class to test on where a source has no test set.
HELD_OUT = 0.15


@dataclass(frozen=True, kw_only=True)
class Labeled(Settings):
    """Base of the settings of labeled samples: those to train on, then those to test on.

    Without a test set, 15% of each class are held out for testing. The share `validation` of each
    class is then taken out of the training samples.
    """

    validation: Fraction = 0.0  # 0: there is no validation set
    split_seed: Seed = 0  # of the draws that hold samples out

    @property
    def draw_seed(self) -> int:
        """Return the seed of the draws that hold samples out."""
        return self.split_seed

    @property
    def has_test_set(self) -> bool:
        """Return whether the source comes with a test set, so that none is drawn."""
        return False

    def labels(self) -> tuple[Sequence[str], int]:
        """Return the label of each sample, and how many at their end are a test set.

        Files are as `check` wants them.
        """
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """Return the settings without their paths, and without the seed of draws that nobody makes."""
        values = super().identity()
        if self.has_test_set and not self.validation:
            values.pop("split_seed", None)
        return values

    def conflict(self, axes: dict[str, Any]) -> str | None:
        """Return a conflict if no batch of the size that the axes ask for can be filled."""
        return unfilled_batch(axes, self.training_samples)

    @cached_property  # cells of a sweep ask again and again, and files have to be read
    def training_samples(self) -> int:
        """Return the number of samples to train on."""
        labels, tested = self.labels()
        return len(self.split(labels, tested)["train"])

    def split(self, labels: Sequence[str], tested: int) -> dict[str, list[int]]:
        """Return the indices of the samples in `train` and `test`, and in `validation` if there is one.

        The arguments are what `labels` returns.
        """
        train = list(range(len(labels) - tested))
        test = list(range(len(train), len(labels)))
        if not tested:
            train, test = stratified(labels, train, self.draw_seed, _held_out_count)
        if not self.validation:
            return {"train": train, "test": test}
        train, validation = stratified(labels, train, self.draw_seed, self._validation_count)
        if not validation:
            raise ValueError("validation: found no class with 2 samples; allowed: one or more")
        return {"train": train, "test": test, "validation": validation}

    def check(self) -> None:
        """Raise ValueError unless there are 2 labels or more, and samples to train on of each."""
        labels, tested = self.labels()
        train = self.split(labels, tested)["train"]
        trained = {labels[index] for index in train}
        untrained = sorted(set(labels) - trained)
        if untrained or len(trained) < 2:
            found = f"no sample to train on of {untrained or 'a second label'}"
            raise ValueError(
                f"{self.files()[-1]}: found {found}; allowed: some of 2 labels or more"
            )

    def _validation_count(self, count: int) -> int:
        """Return how many of a class's training samples are taken for validation.

        At least one, but none of a class that has a single sample: it would not be trained at all.
        """
        wanted = max(1, round(self.validation * count))
        return min(count - 1, wanted)


def stratified(
    labels: Sequence[str], indices: Sequence[int], seed: int, held_out_count: Callable[[int], int]
) -> tuple[list[int], list[int]]:
    """Return those of the `indices` to train on and those to hold out, each ascending.

    `held_out_count` takes the number of samples of a class, and returns how many to hold out. The
    draws follow from `seed` and the labels alone.
    """
    indices_by_label: defaultdict[str, list[int]] = defaultdict(list)
    for index in indices:
        indices_by_label[labels[index]].append(index)
    rng = random.Random(seed)
    held_out: set[int] = set()
    for label in sorted(indices_by_label):
        of_label = indices_by_label[label]
        count = held_out_count(len(of_label))
        held_out.update(rng.sample(of_label, count))
    train = [index for index in indices if index not in held_out]
    return train, sorted(held_out)


def _held_out_count(count: int) -> int:
    """Return how many of a class's samples are tested on: the fraction HELD_OUT, at least one."""
    return max(1, round(HELD_OUT * count))
