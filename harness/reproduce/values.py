"""Measures how far two tensors differ: in units in the last place, absolutely and relatively."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from harness.analysis.rungs import floats_apart
from harness.records.trace import value_name
from harness.reproduce.divergence import RankMark

# The unsigned types that have as many bits as a float, for its units in the last place.
UNSIGNED = {
    torch.float64: torch.uint64,
    torch.float32: torch.uint32,
    torch.bfloat16: torch.uint16,
    torch.float16: torch.uint16,
}
MOST_FLOATS = 2**63 - 1  # that are counted, the largest int64


@dataclass(frozen=True, kw_only=True)
class TensorDifference:
    """The difference of a tensor of one rank between two trials."""

    at: RankMark  # which tensor
    elements: int  # of the tensor in the first trial
    differing: int  # elements whose bits differ; all of them where the shapes do
    # The largest distances of an element, None where there are none to compare: of another shape or
    # type. Units in the last place count the floats between two values, and are of floats only.
    largest_ulp: int | None = None
    largest_absolute: float | None = None
    largest_relative: float | None = None  # of the larger value; NaN where one is NaN


def difference(path_a: Path, path_b: Path, at: RankMark) -> TensorDifference:
    """Return the difference of a tensor between two files of values."""
    name = value_name(at.mark)
    a = read_tensor(path_a, name)
    b = read_tensor(path_b, name)
    if a.shape != b.shape or a.dtype != b.dtype:
        return TensorDifference(at=at, elements=a.numel(), differing=a.numel())
    largest_ulp = None
    if a.dtype in UNSIGNED:
        largest_ulp = ulp_distance(a, b)
    exact_a = a.reshape(-1).double()
    exact_b = b.reshape(-1).double()
    gap = (exact_a - exact_b).abs()
    larger = torch.maximum(exact_a.abs(), exact_b.abs())
    scale = larger.clamp_min(torch.finfo(torch.float64).tiny)
    return TensorDifference(
        at=at,
        elements=a.numel(),
        differing=differing_elements(a, b),
        largest_ulp=largest_ulp,
        largest_absolute=float(gap.max()),
        largest_relative=float((gap / scale).max()),
    )


def differing_elements(a: Tensor, b: Tensor) -> int:
    """Return how many elements of two tensors of one type and shape have other bits."""
    differ = _bits(a) != _bits(b)
    return int(differ.any(dim=1).sum())


def ulp_distance(a: Tensor, b: Tensor) -> int:
    """Return the largest number of floats between corresponding elements, MOST_FLOATS if it is more."""
    unsigned = UNSIGNED[a.dtype]
    bits_a = a.reshape(-1).view(unsigned).numpy()
    bits_b = b.reshape(-1).view(unsigned).numpy()
    largest = int(floats_apart(bits_a, bits_b).max())
    return min(largest, MOST_FLOATS)


def _bits(tensor: Tensor) -> Tensor:
    """Return the bytes of each element, shape (elements, bytes of an element)."""
    flat = tensor.contiguous().reshape(-1)
    shape = (len(flat), tensor.element_size())
    return flat.view(torch.uint8).reshape(shape)


def read_tensor(path: Path, name: str) -> Tensor:
    """Return one tensor of a file of tensors."""
    with safe_open(path, framework="pt") as file:
        tensor: Tensor = file.get_tensor(name)
    return tensor
