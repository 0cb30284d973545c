"""Labeled samples of the built-in workloads: which of them are trained on, validated with and tested on."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from workloads.settings import Fraction, Seed, Settings, unfilled_batch

# The fraction of each class to test on where a source has no test set.
HELD_OUT = 0.15
Row = tuple[Any, str]  # a text, or the number of an image, and its label


@dataclass(frozen=True, kw_only=True)
class Labeled(Settings):
    """Base of the settings of labeled samples.

    Without a test set, 15% of each class are held out for testing. The share `validation` of each
    class is then taken out of the training samples.
    """

    validation: Fraction = 0.0  # 0: there is no validation set
    split_seed: Seed = 0  # of the draws that hold samples out

    def samples(self) -> tuple[list[Row], list[Row]]:
        """Return the samples to train on and those of the test set, none if the source has no test set.

        Files are as `check` wants them.
        """
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """Return the settings without their paths, and without the seed of draws that nobody makes."""
        values = super().identity()
        has_test_files = len(self.files()) > 1
        if has_test_files and not self.validation:
            del values["split_seed"]
        return values

    def conflict(self, axes: dict[str, Any]) -> str | None:
        """Return a conflict if no batch of the size that the axes ask for can be filled."""
        return unfilled_batch(axes, self.training_samples)

    @cached_property  # cells of a sweep ask again and again, and files have to be read
    def training_samples(self) -> int:
        """Return the number of samples to train on."""
        return len(self.split()["train"])

    def split(self) -> dict[str, list[Row]]:
        """Return the samples of `train` and `test`, and of `validation` if there is one."""
        train, test = self.samples()
        if not test:
            train, test = stratified(train, self.split_seed, HELD_OUT)
        if not self.validation:
            return {"train": train, "test": test}
        # A class that has a single sample keeps it: it would not be trained at all.
        train, validation = stratified(train, self.split_seed, self.validation, kept=1)
        if not validation:
            raise ValueError("validation: found no class with 2 samples; allowed: one or more")
        return {"train": train, "test": test, "validation": validation}

    def check(self) -> None:
        """Raise ValueError unless there are 2 labels or more, and samples to train on of each."""
        splits = self.split()
        trained = labels_of(splits["train"])
        untrained = sorted(labels_of(splits["test"]) - trained)
        if untrained or len(trained) < 2:
            found = f"no sample to train on of {untrained or 'a second label'}"
            raise ValueError(
                f"{self.files()[-1]}: found {found}; allowed: some of 2 labels or more"
            )


def labels_of(rows: Sequence[Row]) -> set[str]:
    """Return the labels that occur among samples."""
    return {label for _, label in rows}


def stratified(
    rows: Sequence[Row], seed: int, share: float, kept: int = 0
) -> tuple[list[Row], list[Row]]:
    """Return the samples to train on and those to hold out, both in the order that they have.

    Of each class, `share` is held out, rounded: at least one sample, and at most all but `kept`. The
    draws follow from `seed` and the labels alone.
    """
    indices_by_label: defaultdict[str, list[int]] = defaultdict(list)
    for index, (_, label) in enumerate(rows):
        indices_by_label[label].append(index)
    rng = random.Random(seed)
    held_out = set()
    for label in sorted(indices_by_label):
        of_label = indices_by_label[label]
        wanted = max(1, round(share * len(of_label)))
        count = min(wanted, len(of_label) - kept)
        held_out.update(rng.sample(of_label, count))
    train = [row for index, row in enumerate(rows) if index not in held_out]
    return train, [rows[index] for index in sorted(held_out)]
