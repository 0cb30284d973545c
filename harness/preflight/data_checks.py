"""Checks of a workload's samples, before any model sees them, and of what else its code reads."""

from __future__ import annotations

import inspect
import os
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.core.text import listed
from harness.core.variables import LIBRARY_VARIABLE, PUBLIC_VARIABLES
from harness.preflight.advice import READ_SEVERAL_CLASSES, USE_LABELS_IN_RANGE
from harness.preflight.probe import (
    Probe,
    draw,
    row_digests,
    seeded_batch,
    spread_indices,
)
from harness.preflight.report import CheckFinding, noted, passed, problem, skipped
from harness.spec.cell import Cell
from harness.spec.files import describe_dynamic_files
from harness.training.ranks import seed_everything
from workloads.base import Batch, Classifier, Samples, Workload
from workloads.code import is_installed
from workloads.datasets import load_splits

CODE_SUFFIXES = (".py", ".pyc", ".so")
MACHINE = ("/dev/", "/etc/", "/proc/", "/run/", "/sys/", "/usr/")  # folders of what belongs to it
LIMIT = 50_000  # samples of a set to check
SECONDS = 5.0  # after which no further samples of a set are checked
CHUNK = 512  # samples at once
# The share of the test set that may occur in the training set beyond what the training set repeats
# of itself: short texts and tiny images coincide by chance.
TOLERATED_OVERLAP = 0.01
CLOCK_SECONDS = 1.1  # after which samples are drawn again
SEED_IT = (
    "draw from torch, numpy or random, which the harness seeds, or from a generator with a fixed seed:"
    " ranks that start at other times would train on other data"
)
IGNORED_LABEL = -100  # torch's default of `ignore_index`


def check_indices(probe: Probe) -> CheckFinding:
    """Check that a batch has the requested samples, in their order.

    The harness shuffles by requesting other indices. Samples that ignore them are never shuffled.
    """
    samples = probe.splits.train
    indices = spread_indices(samples)
    if len(indices) < 2:
        return skipped("the training set has a single sample")
    forward = probe.drawn["training"]
    for seed in (probe.seed, probe.seed + 1):
        if not _equal(forward, seeded_batch(samples, indices, seed)):
            return skipped("samples are drawn again each time")
    backward = seeded_batch(samples, indices[::-1], probe.seed)
    expected = tuple(tensor.flip(0) for tensor in forward)
    if not _equal(backward, expected):
        return problem(
            f"batch({indices[::-1]}) is not batch({indices}) in reverse",
            "index your tensors by `indices` and keep their order: shuffling has no effect otherwise",
        )
    return passed("batches have the requested samples, in their order")


def check_repeatable(probe: Probe) -> CheckFinding:
    """Check that the same seed gives the same samples and the same new model, at another time.

    Each rank reads the data and builds the model separately, so values that depend on the clock or
    the system differ between ranks.
    """
    first = probe.drawn
    # A generator may be seeded by whole seconds.
    time.sleep(max(0.0, probe.started + CLOCK_SECONDS - time.monotonic()))
    seed_everything(probe.seed)
    again = draw(load_splits(probe.workload), probe.seed)
    for name, batch in first.items():
        if name not in again or not _equal(batch, again[name]):
            return problem(f"the same seed gives other {name} samples at another time", SEED_IT)
    parameters = probe.build().state_dict()
    for name, tensor in probe.build().state_dict().items():
        if not torch.equal(tensor, parameters[name]):
            return problem(f"the same seed gives a new model another {name}", SEED_IT)
    return passed("the same seed gives the same samples and the same new model")


def _equal(a: Batch, b: Batch) -> bool:
    """Return whether two batches have the same tensors."""
    if len(a) != len(b):
        return False
    return all(torch.equal(left, right) for left, right in zip(a, b, strict=True))


def check_finite_samples(probe: Probe) -> CheckFinding:
    """Check that no sample has values that are not finite."""
    count = 0
    bad = 0
    for samples in _all_sets(probe):
        for batch in _within_time(samples):
            count += len(batch[0])
            bad += _count_not_finite(batch)
    if bad:
        return problem(
            f"{bad:,} of {count:,} samples have values that are NaN or infinite",
            "repair or drop them where the samples are made: one of them spoils its whole batch",
        )
    return passed(f"{count:,} samples are finite")


def _count_not_finite(batch: Batch) -> int:
    """Return how many samples of a batch have a value that is not finite."""
    is_bad = torch.zeros(len(batch[0]), dtype=torch.bool)
    for tensor in batch:
        if tensor.is_floating_point():
            is_bad |= ~tensor.cpu().isfinite().reshape(len(tensor), -1).all(dim=1)
    return int(is_bad.sum())


def check_labels(probe: Probe) -> CheckFinding:
    """Check that all labels of a classifier are numbers of classes, and of more than one class."""
    if not isinstance(probe.workload, Classifier) or not probe.calls:
        return skipped("the workload is no Classifier")
    classes = probe.calls[-1].classes
    count = 0
    outside: Counter[int] = Counter()
    trained: Counter[float] = Counter()
    for samples in _all_sets(probe):
        for batch in _within_time(samples):
            labels = batch[-1]
            count += len(labels)
            outside.update(_labels_outside(labels, classes))
            if samples is probe.splits.train and labels.ndim == 1:
                trained.update(labels.tolist())
    if outside:
        examples = ", ".join(str(label) for label in sorted(outside)[:3])
        return problem(
            f"{outside.total():,} of {count:,} labels are not within 0 to {classes - 1}: {examples}",
            USE_LABELS_IN_RANGE,
        )
    # A large training set may be sorted by class, and only its first samples were checked.
    if len(trained) == 1 and trained.total() == len(probe.splits.train) > 1:
        (label,) = trained
        return problem(
            f"all {trained.total():,} labels of the training set are {label}", READ_SEVERAL_CLASSES
        )
    return passed(f"{count:,} labels are within 0 to {classes - 1}")


def _labels_outside(labels: Tensor, classes: int) -> list[int]:
    """Return the labels that are no number of a class; probabilities of classes have none."""
    if labels.is_floating_point():
        return []
    is_outside = (labels < 0) | (labels >= classes)
    is_outside &= labels != IGNORED_LABEL
    outside: list[int] = labels[is_outside].tolist()
    return outside


def check_split(probe: Probe) -> CheckFinding:
    """Check that neither the test nor the validation set has samples of the training set.

    Texts from templates and tiny images coincide by chance. The training set shows how often
    they do so, and only a larger share is a leak.
    """
    train: Counter[int] = Counter()
    for batch in _within_time(probe.splits.train):
        train.update(row_digests(batch))
    repeated = sum(count for count in train.values() if count > 1) / train.total()
    counts = []
    for name, samples in (("test", probe.splits.test), ("validation", probe.splits.validation)):
        if samples is None:
            continue
        tested = shared = 0
        for batch in _within_time(samples):
            digests = row_digests(batch)
            tested += len(digests)
            shared += sum(digest in train for digest in digests)
        share = shared / tested
        if share > repeated + TOLERATED_OVERLAP:
            return problem(
                f"{shared:,} of {tested:,} {name} samples are training samples too ({share:.0%})",
                "split before samples are repeated or augmented, and take duplicates out: what is"
                " tested must not have been trained on",
            )
        counts.append(f"{shared:,} of {tested:,} {name} samples")
    return passed(f"{' and '.join(counts)} occur among {train.total():,} to train on")


def _all_sets(probe: Probe) -> list[Samples]:
    """Return the training, the test and, if there is one, the validation set."""
    splits = probe.splits
    sets = (splits.train, splits.test, splits.validation)
    return [samples for samples in sets if samples is not None]


def _within_time(samples: Samples) -> Iterator[Batch]:
    """Yield samples in batches until LIMIT or SECONDS are reached."""
    deadline = time.monotonic() + SECONDS
    count = min(len(samples), LIMIT)
    for start in range(0, count, CHUNK):
        yield samples.batch(range(start, min(start + CHUNK, count)))
        if time.monotonic() > deadline:
            return


class OpenedFiles:
    """Collects the files that some code opens to read, from now on until this process ends."""

    def __init__(self, code: Iterable[Path]) -> None:
        """Watch what the files of `code` open, or what they call opens."""
        self._opened: set[str] = set()
        self._written: set[str] = set()
        self._code = {os.path.realpath(path) for path in code}
        self._is_code: dict[str, bool] = {}  # by the name that a frame has
        sys.addaudithook(self._on_event)

    @property
    def paths(self) -> set[Path]:
        """Return the files that the code has opened and this process has not written."""
        return {Path(path) for path in self._opened - self._written}

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note an opened file."""
        if event != "open":
            return
        path, _, flags = arguments
        if not isinstance(path, str | bytes):
            return  # a file that is open already
        if flags & (os.O_WRONLY | os.O_CREAT):
            self._written.add(os.path.realpath(os.fsdecode(path)))
        elif self._is_called_by_code():
            self._opened.add(os.path.realpath(os.fsdecode(path)))

    def _is_called_by_code(self) -> bool:
        """Return whether a function of the code is being run."""
        frame = inspect.currentframe()
        while frame is not None:
            name = frame.f_code.co_filename
            if name not in self._is_code:
                self._is_code[name] = os.path.realpath(name) in self._code
            if self._is_code[name]:
                return True
            frame = frame.f_back
        return False


def check_reads(cell: Cell, workload: Workload, opened: Collection[Path]) -> CheckFinding:
    """Return which files, variables, modules and models decide a result and no id.

    `opened` are the files that the code of the workload has opened.
    """
    files = [*workload.options.files(), *workload.data.files()]
    known = {Path(os.path.realpath(path)) for path in files}
    reads = [f"the file {path}" for path in sorted(set(opened) - known) if _decides(path)]
    code = cell.workload.code
    for name in code.variables if code else ():
        is_recorded = name in PUBLIC_VARIABLES or LIBRARY_VARIABLE.match(name)
        if not is_recorded and name not in cell.environment:
            reads.append(f"the variable {name}")
    reads += [f"the module {name}" for name in describe_dynamic_files(cell.workload)]
    reads += [*workload.options.unpinned(), *workload.data.unpinned()]
    if not reads:
        return passed("the code was seen to read nothing but what its settings name")
    return noted(
        f"no cell's id has {listed(reads, most=10)}",
        "name files by settings of type Path, variables as axes (env.NAME), modules by import"
        " statements, and models with their revision: results of other content get the same id",
    )


def _decides(path: Path) -> bool:
    """Return whether a file may decide a result: no code, which is found by its imports."""
    if path.suffix in CODE_SUFFIXES or not path.is_file() or is_installed(path.parent):
        return False
    return not str(path).startswith((*MACHINE, sysconfig.get_path("data") + os.sep))
