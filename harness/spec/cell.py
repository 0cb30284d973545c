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

# The axes that every label shows.
LABEL_AXES = ("execution", "precision", "strategy", "world_size", "num_workers", "num_threads")
IDENTITY = 1  # counts the meanings that an id has had; a new one makes every id a new id


@dataclass(frozen=True, kw_only=True)
class Length(Strict):
    """A length of training, in optimizer steps or in epochs."""

    steps: Count | None = None
    epochs: Count | None = None

    def __post_init__(self) -> None:
        if self.steps is None and self.epochs is None:
            raise ValueError("found neither steps nor epochs; allowed: one of them")
        if self.steps is not None and self.epochs is not None:
            raise ValueError("found both steps and epochs; allowed: one of them")

    def in_steps(self, steps_per_epoch: int) -> int:
        """Return the length in optimizer steps."""
        if self.steps is not None:
            return self.steps
        return (self.epochs or 0) * steps_per_epoch

    def __str__(self) -> str:
        return f"{self.steps} steps" if self.steps is not None else f"{self.epochs} epochs"


@dataclass(frozen=True, kw_only=True)
class Profiling(Strict):
    """A profiler's trace of further steps after a trial, so that the trial's own measurement stays as it is."""

    steps: Annotated[int, Between(1, 1000)]  # that are traced


@dataclass(frozen=True, kw_only=True)
class WorkloadRef:
    """A workload as a sweep refers to it."""

    label: str  # the sweep's name for it; no part of the identity
    uses: str  # a built-in name, package.module:Class, file.py:Class or an entry point
    options: Mapping[str, Any]
    data: Mapping[str, Any]
    # Options and data that differ from their defaults, and the digest of their files.
    identity: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One point of the matrix: a workload with every axis set."""

    workload: WorkloadRef
    axes: Axes
    length: Length
    evaluate: Length  # how often the test set is evaluated, besides once at the end
    warmup: int  # steps before the measured window

    @cached_property  # a sweep of many trials needs it thousands of times
    def id(self) -> str:
        """The id: the workload's name and a hash of everything that decides the cell's result."""
        identity = {
            "identity": IDENTITY,
            "workload": self.workload.identity,
            "axes": without_defaults(self.axes),
            "length": asdict(self.length),
            "evaluate": asdict(self.evaluate),
            "warmup": self.warmup,
        }
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        return f"{short_name(self.workload.uses)}-{digest[:10]}"

    @property
    def label(self) -> str:
        """The workload and its axes for people, as in `mlp compile bf16 ddp×2 w0 b64 t1`."""
        axes = self.axes
        ranks = axes.strategy if axes.strategy == "single" else f"{axes.strategy}×{axes.world_size}"
        parts = [
            self.workload.label,
            axes.execution,
            axes.precision,
            ranks,
            f"w{axes.num_workers}",
            f"b{axes.batch_size}",
            f"t{axes.num_threads}",
        ]
        for name, default in DEFAULTS.items():
            value = getattr(axes, name)
            if name not in LABEL_AXES and value != default:
                parts.append(f"{name}={_as_yaml(value)}")
        return " ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One execution of a cell."""

    cell: Cell
    seed: int
    repeat: int = 0

    @property
    def id(self) -> str:
        return f"{self.cell.id}-s{self.seed}-r{self.repeat}"


def _as_yaml(value: Any) -> str:
    """Return a value as a sweep file has it: `true` for True."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def short_name(uses: str) -> str:
    """Return `mlp` for `mlp`, `spiral` for `examples/spiral.py:Spiral`."""
    return re.sub(r"[^a-z0-9]+", "-", uses.rpartition(":")[2].lower()).strip("-") or "workload"


def without_defaults(settings: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults, so that a new field changes no old id."""
    values = settings.identity() if hasattr(settings, "identity") else asdict(settings)
    defaults: dict[str, Any] = {}
    for setting in fields(settings):
        if setting.default_factory is not MISSING:
            defaults[setting.name] = setting.default_factory()
        else:
            defaults[setting.name] = setting.default
    return {name: value for name, value in values.items() if value != defaults.get(name, MISSING)}


def digest_files(paths: Sequence[Path]) -> str | None:
    """Return the SHA-256 over names below the common folder, sizes and contents of files; None without files."""
    if not paths:
        return None
    common_folder = os.path.commonpath([path.absolute().parent for path in paths])
    digest = hashlib.sha256()
    for path in paths:
        name = os.path.relpath(path.absolute(), common_folder)
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
