"""Every rung is reached by the evidence that its rule names, and by no less."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch._dynamo.utils import rmse, same

from harness.analysis.rungs import (
    EPSILONS,
    Rung,
    TensorDistance,
    tensor_rung,
    worst_distance,
)

NEAR = TensorDistance(
    step=1,
    name="weight",
    dtype="float32",
    shape=(64, 64),
    differing=3,
    error=1e-6,
    reference_error=1e-6,
    scale=0.1,
)
EQUAL = replace(NEAR, differing=0)
FAR = replace(NEAR, error=1e-3)
SPREAD = replace(NEAR, differing=4000)


@pytest.mark.parametrize(
    ("same_bits", "distances", "rung"),
    [
        (True, (), "bitwise"),
        (True, (EQUAL,), "bitwise"),
        (True, (EQUAL, NEAR), "rounding"),  # digests of some steps, tensors of others
        (False, (EQUAL, NEAR), "rounding"),
        (False, (NEAR, FAR), None),
        (False, (), None),
    ],
)
def test_the_highest_rung_that_is_reached(
    same_bits: bool, distances: Any, rung: Rung | None
) -> None:
    assert tensor_rung(same_bits=same_bits, distances=distances) == rung


@pytest.mark.parametrize(
    ("change", "passes"),
    [
        ({"error": 2e-6}, True),
        ({"error": 2.1e-6}, False),
        ({"error": 2.1e-6, "shape": (999,)}, True),
        ({"error": 2.1e-6, "dtype": "bfloat16"}, True),
        ({"error": 1e-6, "reference_error": 2.1e-6}, False),  # from the other side too
        ({"error": 0.0, "reference_error": 1e-8}, True),
        ({"error": 0.0, "reference_error": 1e-3}, False),
        ({"error": 1e-8, "reference_error": 0.0}, True),  # one rounding: 0.1 times 2^-23
        ({"error": 1e-7, "reference_error": 0.0}, False),
        ({"error": 1e-8, "reference_error": 0.0, "scale": 0.0}, False),
        ({"error": None, "is_finite": False}, False),
        ({"error": None, "reference_error": None, "scale": None}, False),
        ({"dtype": "int64", "error": None}, False),
    ],
)
def test_the_fp64_rule(change: dict[str, Any], passes: bool) -> None:
    distance = replace(NEAR, **change)
    assert distance.is_within_fp64_rule == passes


@given(
    size=st.sampled_from([10, 999, 1000, 5000]),
    noise=st.floats(0.0, 5.0),
    seed=st.integers(0, 100),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_the_multiplier_is_torchs(size: int, noise: float, seed: int, dtype: torch.dtype) -> None:
    """Of values so large that torch's absolute tolerance does not count, torch says the same.

    It is asked twice, as each of the two is its reference in turn.
    """
    generator = torch.Generator().manual_seed(seed)
    exact = torch.randn(size, generator=generator, dtype=torch.float64) * 1e6
    step = torch.finfo(dtype).eps * 1e6
    reference = (exact + step * torch.randn(size, generator=generator)).to(dtype)
    result = (exact + noise * step * torch.randn(size, generator=generator)).to(dtype)
    distance = TensorDistance(
        step=1,
        name="weight",
        dtype=str(dtype).removeprefix("torch."),
        shape=(size,),
        differing=size,
        error=float(rmse(exact, result)),
        reference_error=float(rmse(exact, reference)),
        scale=0.0,
    )
    excess = distance.excess
    assert excess is not None
    assume(abs(excess - 1) > 1e-6)
    of_torch = [
        same(*pair, exact, tol=1e-12) for pair in ((reference, result), (result, reference))
    ]
    assert distance.is_within_fp64_rule == all(of_torch)


@pytest.mark.parametrize("name", EPSILONS)
def test_epsilons_are_torchs(name: str) -> None:
    assert torch.finfo(getattr(torch, name)).eps == EPSILONS[name]


def test_the_worst_tensor_decides() -> None:
    assert worst_distance([EQUAL]) is None
    assert worst_distance([NEAR, FAR, SPREAD]) == FAR
    counter = replace(NEAR, dtype="int64", error=None)
    assert worst_distance([FAR, counter]) == counter
    without_fp64 = [replace(one, reference_error=None) for one in (NEAR, SPREAD)]
    assert worst_distance(without_fp64) == without_fp64[1]
    assert replace(FAR, error=math.inf).excess == math.inf
