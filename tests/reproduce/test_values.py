"""Digests see every change of a tensor, and distances are counted in floats."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from harness.records.trace import Mark, value_name
from harness.reproduce.divergence import RankMark
from harness.reproduce.values import (
    TensorDifference,
    difference,
    ulp_distance,
)
from harness.training.recorder import digest_tensor


@pytest.mark.parametrize("tensor", [torch.empty(0), torch.tensor(1.0), torch.tensor(math.nan)])
def test_tensors_without_dimensions_elements_or_numbers_have_digests(tensor: Tensor) -> None:
    assert digest_tensor(tensor) == digest_tensor(tensor.clone())


def test_units_in_the_last_place_count_floats() -> None:
    one = torch.tensor([1.0, -1.0, 0.0])
    next_up = torch.nextafter(one, torch.full_like(one, math.inf))
    assert ulp_distance(one, next_up) == 1
    assert ulp_distance(one, one) == 0
    assert ulp_distance(torch.tensor([0.0]), torch.tensor([-0.0])) == 0
    tiny = torch.tensor([torch.finfo(torch.float32).smallest_normal])
    assert ulp_distance(tiny, -tiny) == 2 * 2**23


def compare_values(folder: Path, a: Tensor, b: Tensor) -> TensorDifference:
    """Return the difference of two tensors that were kept in files."""
    mark = Mark(step=1, micro_step=1, phase="backward", name="weight", digest="")
    paths = folder / "a.safetensors", folder / "b.safetensors"
    for path, tensor in zip(paths, (a, b), strict=True):
        save_file({value_name(mark): tensor}, path)
    return difference(*paths, RankMark(rank=0, mark=mark))


def test_a_difference_has_counts_and_sizes(tmp_path: Path) -> None:
    a = torch.tensor([1.0, 2.0, 3.0, 4.0])
    b = torch.tensor([1.0, 2.0, 3.0, 5.0])
    measured = compare_values(tmp_path, a, b)
    assert (measured.elements, measured.differing) == (4, 1)
    assert measured.largest_absolute == 1
    assert measured.largest_relative == pytest.approx(0.2)
    assert measured.largest_ulp == 2**21


def test_tensors_of_another_shape_differ_as_a_whole(tmp_path: Path) -> None:
    measured = compare_values(tmp_path, torch.ones(3), torch.ones(4))
    assert measured.differing == 3
    assert measured.largest_ulp is None
