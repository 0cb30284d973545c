"""Snapshots are taken at the steps that were promised, and distances of tensors are right."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from harness.core.errors import HarnessError
from harness.records.trace import Mark, value_name
from harness.reproduce.divergence import RankMark
from harness.reproduce.snapshot import MOST_ELEMENTS, MOST_SNAPSHOTS, snapshot_path, snapshot_steps
from harness.reproduce.trajectory import distance, distances
from harness.reproduce.values import TensorDifference, difference, ulp_distance
from harness.training.digests import digest_tensors


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


EXACT = torch.full((2,), 0.1, dtype=torch.float64)
NAN = torch.tensor([1.0, float("nan")])
MASK = torch.tensor([0.0, -math.inf])
HUGE = torch.full((2,), 1e200, dtype=torch.float64)  # whose square is infinite


@pytest.mark.parametrize(
    ("tensor", "reference", "exact", "differing", "passes"),
    [
        (NAN, EXACT.float(), EXACT, 2, False),
        (EXACT.float(), NAN, EXACT, 2, False),
        (torch.tensor(4), torch.tensor(5), torch.tensor(5), 1, False),  # no float, so bits count
        (torch.tensor(5), torch.tensor(5), torch.tensor(5), 0, True),
        (MASK, MASK, MASK.double(), 0, True),
        (HUGE, EXACT, EXACT, 2, False),
        (EXACT, EXACT.float(), EXACT, 2, True),  # another type is compared by its error
    ],
)
def test_what_is_no_finite_float_meets_the_rule_by_its_bits_only(
    tensor: Tensor, reference: Tensor, exact: Tensor, differing: int, passes: bool
) -> None:
    found = distance(1, "weight", tensor, reference, exact)
    assert (found.differing, found.is_within_fp64_rule) == (differing, passes)


def save_snapshots(folder: Path, tensor: str, *steps: int) -> Path:
    folder.mkdir()
    for step in steps:
        save_file({tensor: torch.ones(1)}, snapshot_path(folder, step))
    return folder


def test_trials_are_compared_at_the_steps_that_both_have(tmp_path: Path) -> None:
    a = save_snapshots(tmp_path / "a", "weight", 1, 2, 3, 4, 7, 11)
    b = save_snapshots(tmp_path / "b", "weight", 1, 2, 4, 7, 12, 23)
    assert [distance.step for distance in distances(a, b, b)] == [1, 2, 4, 7]
    other = save_snapshots(tmp_path / "other", "bias", 1)
    with pytest.raises(HarnessError, match="other tensors"):
        distances(a, other, None)
    late = save_snapshots(tmp_path / "late", "weight", 12)
    with pytest.raises(HarnessError, match="steps"):
        distances(a, late, None)


@pytest.mark.parametrize(
    ("a", "b", "floats"),
    [(1.0, 1.0, 0), (0.0, -0.0, 0), (1.0, -1.0, 9214364837600034816), (3.0, -3.0, 2**63 - 1)],
)
def test_floats_between_fp64_values_do_not_overflow(a: float, b: float, floats: int) -> None:
    tensors = [torch.tensor([value], dtype=torch.float64) for value in (a, b)]
    assert ulp_distance(*tensors) == floats


def test_units_in_the_last_place_count_floats() -> None:
    one = torch.tensor([1.0, -1.0, 0.0])
    assert ulp_distance(one, torch.nextafter(one, torch.full_like(one, math.inf))) == 1
    assert ulp_distance(torch.tensor([0.0]), torch.tensor([-0.0])) == 0
    tiny = torch.tensor([torch.finfo(torch.float32).smallest_normal])
    assert ulp_distance(tiny, -tiny) == 2 * 2**23


@pytest.mark.parametrize("tensor", [torch.empty(0), torch.tensor(1.0), torch.tensor(math.nan)])
def test_tensors_without_dimensions_elements_or_numbers_have_digests(tensor: Tensor) -> None:
    assert digest_tensors([("a", tensor)]) == digest_tensors([("a", tensor.clone())])


def compare_values(folder: Path, a: Tensor, b: Tensor) -> TensorDifference:
    """Return the difference of two tensors that were kept in files."""
    mark = Mark(step=1, micro_step=1, phase="backward", name="weight", digest="")
    paths = folder / "a.safetensors", folder / "b.safetensors"
    for path, tensor in zip(paths, (a, b), strict=True):
        save_file({value_name(mark): tensor}, path)
    return difference(*paths, RankMark(rank=0, mark=mark))


def test_a_difference_has_counts_and_sizes_and_another_shape_differs_as_a_whole(
    tmp_path: Path,
) -> None:
    a, b = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 2.0, 3.0, 5.0])
    measured = compare_values(tmp_path, a, b)
    assert (measured.elements, measured.differing) == (4, 1)
    assert (measured.largest_absolute, measured.largest_ulp) == (1, 2**21)
    assert measured.largest_relative == pytest.approx(0.2)
    measured = compare_values(tmp_path, torch.ones(3), torch.ones(4))
    assert (measured.differing, measured.largest_ulp) == (3, None)
