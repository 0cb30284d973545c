"""Cells and trials: what is run, and the stable ids that hash all that decides its result."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from harness.spec.axes import DEFAULTS, Axes
from workloads.options import Between, Count, Strict

SHORT = (
    "execution",
    "precision",
    "strategy",
    "world_size",
    "num_workers",
    "num_threads",
)  # the axes that every label shows
IDENTITY = 1  # counts the meanings that an id has had; a new one makes every id a new id


@dataclass(frozen=True, kw_only=True)
class Length(Strict):
    """A stretch of training: either optimizer steps or epochs."""

    steps: Count | None = None
    epochs: Count | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            found = "neither steps nor epochs" if self.steps is None else "both steps and epochs"
            raise ValueError(f"found {found}; allowed: one of them")

    def in_steps(self, steps_per_epoch: int) -> int:
        return self.steps if self.steps is not None else (self.epochs or 0) * steps_per_epoch

    def __str__(self) -> str:
        return f"{self.steps} steps" if self.steps is not None else f"{self.epochs} epochs"


@dataclass(frozen=True, kw_only=True)
class Profiling(Strict):
    """A profiler's trace of further steps once a trial is over: it changes nothing of what the trial measures."""

    steps: Annotated[int, Between(1, 1000)]


@dataclass(frozen=True, kw_only=True)
class WorkloadRef:
    """A workload as a sweep names it."""

    label: str  # the sweep's own name for it; no part of the identity
    uses: str  # a built-in name, package.module:Class, file.py:Class or an entry point
    options: Mapping[str, Any]
    data: Mapping[str, Any]
    identity: Mapping[
        str, Any
    ]  # options and data that differ from their defaults, and the digest of their files


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One point of the matrix."""

    workload: WorkloadRef
    axes: Axes
    length: Length
    evaluate: Length  # how often the test set is evaluated, besides once at the end
    warmup: int  # steps before the measured window

    @cached_property  # asked for thousands of times where a sweep has many trials
    def id(self) -> str:
        decides = {
            "identity": IDENTITY,
            "workload": self.workload.identity,
            "axes": without_defaults(self.axes),
            "length": asdict(self.length),
            "evaluate": asdict(self.evaluate),
            "warmup": self.warmup,
        }
        digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
        return f"{short_name(self.workload.uses)}-{digest[:10]}"

    @property
    def label(self) -> str:
        """For people: the workload and its axes, as in `mlp compile bf16 ddp×2 w0 b64 t1`."""
        axes = self.axes
        ranks = axes.strategy if axes.strategy == "single" else f"{axes.strategy}×{axes.world_size}"
        others = [
            name for name in DEFAULTS if name not in SHORT and getattr(axes, name) != DEFAULTS[name]
        ]
        return (
            f"{self.workload.label} {axes.execution} {axes.precision} {ranks}"
            f" w{axes.num_workers} b{axes.batch_size} t{axes.num_threads}"
            + "".join(f" {name}={_word(getattr(axes, name))}" for name in others)
        )


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One execution of a cell."""

    cell: Cell
    seed: int
    repeat: int = 0

    @property
    def id(self) -> str:
        return f"{self.cell.id}-s{self.seed}-r{self.repeat}"


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def short_name(uses: str) -> str:
    """`mlp` for `mlp`, `spiral` for `examples/spiral.py:Spiral`."""
    return re.sub(r"[^a-z0-9]+", "-", uses.rpartition(":")[2].lower()).strip("-") or "workload"


def without_defaults(settings: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults, so that a new field changes no old id."""
    values = settings.identity() if hasattr(settings, "identity") else asdict(settings)
    defaults = {
        f.name: f.default_factory() if f.default_factory is not MISSING else f.default
        for f in fields(settings)
    }
    return {name: value for name, value in values.items() if value != defaults.get(name, MISSING)}


def digest_files(paths: Sequence[Path]) -> str | None:
    """SHA-256 over the files' names below their common folder, sizes and contents; None without files."""
    if not paths:
        return None
    top = os.path.commonpath([path.absolute().parent for path in paths])
    whole = hashlib.sha256()
    for path in paths:
        whole.update(f"{os.path.relpath(path.absolute(), top)}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()
