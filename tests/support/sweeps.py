"""Sweep files for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from harness.spec import sweep as spec
from harness.spec.sweep import Sweep

DIGITS = {"mlp": {"data": {"source": "digits"}}}


def write(folder: Path, workloads: Any = DIGITS, **keys: Any) -> Path:
    """A sweep file of the workloads, an MLP on digits unless given, with further keys."""
    path = folder / "sweep.yaml"
    content = {"name": "demo", "workloads": workloads, **keys}
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


def load(
    folder: Path,
    workloads: Any = DIGITS,
    sets: Sequence[str] = (),
    data: Sequence[str] = (),
    **keys: Any,
) -> Sweep:
    """What the file asks for."""
    return spec.load_sweep(write(folder, workloads, **keys), sets, data)
