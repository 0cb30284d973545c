"""Digests see every change of a tensor, and distances are counted in floats."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from harness.records.trace import Mark, value_name
from harness.reproduce.divergence import RankMark
from harness.reproduce.values import TensorDifference, difference, ulp_distance
from harness.training.recorder import digest_tensor

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64]


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Return a small tensor whose rows and elements all differ."""
    rows, columns = draw(st.integers(2, 5)), draw(st.integers(2, 5))
    start = draw(st.integers(1, 50))
    dtype = draw(st.sampled_from(DTYPES))
    values = torch.arange(start, start + rows * columns).reshape(rows, columns)
    return values.to(dtype)


@given(tensor=tensors(), mutation=st.integers(0, 6), data=st.data())
def test_every_mutation_of_a_tensor_changes_its_digest(
    tensor: Tensor, mutation: int, data: st.DataObject
) -> None:
    row = data.draw(st.integers(0, len(tensor) - 1))
    column = data.draw(st.integers(0, tensor.shape[1] - 1))
    mutant = tensor.clone()
    if mutation == 0:  # a sign
        mutant[row, column] *= -1
    elif mutation == 1:  # two elements swapped
        other = (column + 1) % tensor.shape[1]
        mutant[row, [column, other]] = tensor[row, [other, column]]
    elif mutation == 2:  # permuted rows
        mutant = tensor.roll(1, 0)
    elif mutation == 3:  # another shape
        mutant = tensor.reshape(-1)
    elif mutation == 4:  # another type
        mutant = tensor.to(torch.int32)
    elif mutation == 5:  # one bit
        mutant.view(torch.uint8)[row, column] ^= 1 << data.draw(st.integers(0, 7))
    else:  # transposed, with the same bytes in memory
        mutant = tensor.T
    assert digest_tensor(mutant) != digest_tensor(tensor)


@given(tensor=tensors())
def test_memory_layout_does_not_change_a_digest(tensor: Tensor) -> None:
    transposed_twice = tensor.T.contiguous().T
    assert digest_tensor(transposed_twice) == digest_tensor(tensor)


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
