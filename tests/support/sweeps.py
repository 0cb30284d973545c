"""Writes and loads sweep files for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from harness.sweep import sweep as spec
from harness.sweep.sweep import Sweep


class DumperWithoutAliases(yaml.SafeDumper):
    """Writes parts that occur twice as often, since sweep files may have no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return True."""
        return True


DIGITS = {"mlp": {"data": {"source": "digits"}}}


def write(
    folder: Path, workloads: Any = DIGITS, file_name: str = "sweep.yaml", **keys: Any
) -> Path:
    """Write a sweep file and return its path; `keys` are further keys of the file.

    Its workload is an MLP on digits unless there are others.
    """
    path = folder / file_name
    content = {"name": "demo", "workloads": workloads, **keys}
    text = yaml.dump(content, Dumper=DumperWithoutAliases, sort_keys=False)
    path.write_text(text, encoding="utf-8")
    return path


def load(
    folder: Path,
    workloads: Any = DIGITS,
    sets: Sequence[str] = (),
    data: Sequence[str] = (),
    **keys: Any,
) -> Sweep:
    """Write a sweep file and return the sweep it defines, with `--set` and `--data` applied."""
    return spec.load_sweep(write(folder, workloads, **keys), sets, data)
