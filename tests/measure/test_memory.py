"""What is told of memory where the kernel tells less than Linux does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness.measure import memory
from harness.measure.memory import PeakMemory, training_bytes

CPU = torch.device("cpu")
MIB = 2**20


def peak_of(mib: int) -> dict[str, int]:
    """What is counted while so much is held, and let go again before the look."""
    counted = PeakMemory(CPU)
    held = torch.ones(mib * MIB, dtype=torch.uint8)
    del held
    return counted.read()


def test_the_peak_since_is_told_though_there_was_a_higher_one_before() -> None:
    torch.ones(200 * MIB, dtype=torch.uint8)
    assert training_bytes(peak_of(100)) == pytest.approx(100 * MIB, rel=0.05)


def test_a_peak_that_cannot_be_reset_counts_once_it_has_grown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "_reset_peak", lambda: False)
    assert training_bytes(peak_of(1)) is None
    life = memory._peak() // MIB
    assert training_bytes(peak_of(life)) == pytest.approx(life * MIB, rel=0.05)


def test_without_a_proc_file_system_there_is_the_peak_of_the_whole_life(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory, "SELF", tmp_path / "none")
    found = peak_of(1)
    assert set(found) == {"resident"}
    assert found["resident"] > 50 * MIB
    assert training_bytes(found) is None


def test_on_a_gpu_training_takes_what_is_allocated_there() -> None:
    assert training_bytes({"resident": 9, "resident_before": 1, "allocated": 5, "reserved": 7}) == 5
