"""Snapshots are taken at the steps that were promised, and their distances are right."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from harness.core.errors import HarnessError
from harness.reproduce.snapshot import (
    MOST_ELEMENTS,
    MOST_SNAPSHOTS,
    list_snapshots,
    snapshot_path,
    snapshot_steps,
)
from harness.reproduce.trajectory import distance, distances
from harness.reproduce.values import ulp_distance


@given(total=st.integers(1, 10_000), elements=st.integers(1, 2**31))
def test_steps_are_few_and_the_last_is_among_them(total: int, elements: int) -> None:
    steps = snapshot_steps(total, elements)
    assert steps == sorted(set(steps))
    assert (steps[0] >= 1, steps[-1]) == (True, total)
    assert len(steps) <= MOST_SNAPSHOTS
    assert len(steps) == 1 or len(steps) * elements <= MOST_ELEMENTS


def test_steps_are_spaced_logarithmically() -> None:
    assert snapshot_steps(1000, 1) == [1, 4, 16, 63, 251, 1000]
    assert snapshot_steps(3, 1) == [1, 2, 3]
    assert snapshot_steps(1000, MOST_ELEMENTS // 2) == [1, 1000]


def test_errors_are_root_mean_squares_against_fp64() -> None:
    exact = torch.zeros(4, dtype=torch.float64)
    reference = torch.tensor([0.0, 0.0, 0.0, 2.0])
    tensor = torch.tensor([0.0, 3.0, 3.0, 0.0])
    found = distance(7, "weight", tensor, reference, exact)
    assert (found.step, found.name, found.dtype, found.shape) == (7, "weight", "float32", (4,))
    assert (found.differing, found.error, found.reference_error) == (3, 4.5**0.5, 1.0)
    assert found.scale == 0.0


def test_what_is_not_finite_meets_no_rule() -> None:
    exact = torch.ones(2, dtype=torch.float64)
    bad, good = torch.tensor([1.0, float("nan")]), torch.ones(2)
    assert not distance(1, "weight", bad, good, exact).is_within_fp64_rule
    assert not distance(1, "weight", good, bad, exact).is_within_fp64_rule


def test_what_is_no_float_has_bits_only() -> None:
    exact, counter = torch.tensor(5), torch.tensor(4)
    found = distance(1, "batches", counter, exact, exact)
    assert (found.differing, found.error) == (1, None)
    assert not found.is_within_fp64_rule
    assert distance(1, "batches", exact, exact, exact).is_within_fp64_rule


def test_another_type_is_compared_by_its_error_only() -> None:
    exact = torch.full((3,), 0.1, dtype=torch.float64)
    found = distance(1, "weight", exact, exact.float(), exact)
    assert (found.differing, found.error) == (3, 0.0)
    assert found.is_within_fp64_rule


def test_other_steps_or_tensors_are_refused(tmp_path: Path) -> None:
    for name, tensor, step in (("a", "weight", 1), ("b", "weight", 2), ("c", "bias", 1)):
        (tmp_path / name).mkdir()
        save_file({tensor: torch.ones(1)}, snapshot_path(tmp_path / name, step))
    assert list(list_snapshots(tmp_path / "b")) == [2]
    assert distances(tmp_path / "a", tmp_path / "a", None)[0].differing == 0
    with pytest.raises(HarnessError, match="steps"):
        distances(tmp_path / "a", tmp_path / "b", None)
    with pytest.raises(HarnessError, match="other tensors"):
        distances(tmp_path / "a", tmp_path / "c", None)


def test_trials_of_other_lengths_are_compared_at_the_steps_that_both_have(tmp_path: Path) -> None:
    for name, steps in (("a", (1, 2, 3, 4, 7, 11)), ("b", (1, 2, 4, 7, 12, 23))):
        (tmp_path / name).mkdir()
        for step in steps:
            save_file({"weight": torch.ones(1)}, snapshot_path(tmp_path / name, step))
    found = distances(tmp_path / "a", tmp_path / "b", tmp_path / "b")
    assert [distance.step for distance in found] == [1, 2, 4, 7]


@pytest.mark.parametrize(
    ("a", "b", "floats"),
    [(1.0, 1.0, 0), (0.0, -0.0, 0), (1.0, -1.0, 9214364837600034816), (3.0, -3.0, 2**63 - 1)],
)
def test_floats_between_fp64_values_do_not_overflow(a: float, b: float, floats: int) -> None:
    tensors = [torch.tensor([value], dtype=torch.float64) for value in (a, b)]
    assert ulp_distance(*tensors) == floats
