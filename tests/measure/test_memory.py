"""Tests of the memory that training takes, also where the kernel reports less than usual."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness.measure import memory
from harness.measure.memory import PeakMemory

CPU = torch.device("cpu")
MIB = 2**20


def peak_of(mib: int) -> dict[str, float]:
    """Return what is measured of `mib` MiB that are allocated and freed before the reading."""
    peak_memory = PeakMemory(CPU)
    allocated = torch.ones(mib * MIB, dtype=torch.uint8)
    del allocated
    return peak_memory.read()


def test_a_higher_peak_before_does_not_count() -> None:
    torch.ones(200 * MIB, dtype=torch.uint8)
    assert peak_of(100)["memory_training_mib"] == pytest.approx(100, rel=0.05)


def test_a_peak_that_cannot_be_reset_counts_once_it_has_grown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PeakMemory, "forget_peak", lambda _: False)
    torch.ones(100 * MIB, dtype=torch.uint8)  # so that this process has had a higher peak
    assert "memory_training_mib" not in peak_of(1)
    life = memory._resident_bytes()["VmHWM"] // MIB
    assert peak_of(life)["memory_training_mib"] == pytest.approx(life, rel=0.05)


def test_without_proc_nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "SELF", tmp_path / "none")
    assert peak_of(1) == {}
