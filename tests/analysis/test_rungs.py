"""Rungs: distances in ULP against NumPy's own spacing, and the rule of torch's compiler tests."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._dynamo.utils import same

from harness.analysis import rungs

FLOATS = st.floats(-(2.0**100), 2.0**100, width=32)


@given(FLOATS, st.integers(0, 50))
def test_distance_counts_the_floats_between(start: float, steps: int) -> None:
    begin = np.array([start], dtype=np.float32)
    end = begin
    for _ in range(steps):
        end = np.nextafter(end, np.float32(np.inf))
    assert int(rungs.ulp_distances(begin, end)[0]) == steps


@given(FLOATS, FLOATS)
def test_distance_is_symmetric_and_zero_of_equal_numbers_only(a: float, b: float) -> None:
    x, y = np.array([a], dtype=np.float32), np.array([b], dtype=np.float32)
    assert rungs.ulp_distances(x, y)[0] == rungs.ulp_distances(y, x)[0]
    assert (rungs.ulp_distances(x, y)[0] == 0) == (x[0] == y[0])


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_extremes_have_a_distance(kind: str) -> None:
    info = np.finfo(kind)
    low = np.array([info.min, np.nan, np.nan, 0.0], dtype=kind)
    high = np.array([info.max, np.nan, 1.0, -0.0], dtype=kind)
    distances = rungs.ulp_distances(low, high)
    assert distances[0] == 2 * int(np.array(info.max).view(f"u{info.bits // 8}"))
    assert list(distances[1:]) == [0, rungs.INCOMPARABLE, 0]


def test_the_first_difference_is_of_bits() -> None:
    a = np.array([0.0, 1.0, np.nan])
    assert rungs.first_difference(a, a.copy()) is None
    assert rungs.first_difference(a, np.array([-0.0, 1.0, np.nan])) == 0
    assert rungs.first_difference(a, a[:2]) == 2
    assert rungs.first_difference(a, a.astype(np.float32)) == 0
    assert rungs.same_bytes(a, a.copy())
    assert not rungs.same_bytes(a, a.astype(np.float32))


@pytest.mark.parametrize("size", [50, 2000])
@pytest.mark.parametrize("factor", [0.5, 1.5, 2.5, 3.5, 10.0])
def test_the_rule_is_that_of_torch(size: int, factor: float) -> None:
    exact = np.linspace(1.0, 2.0, size)
    noise = 1e-2 * np.sin(np.arange(size))
    reference = (exact + noise).astype(np.float32)
    result = (exact - factor * noise).astype(np.float32)
    expected = same(
        torch.tensor(reference),
        torch.tensor(result),
        torch.tensor(exact),
        tol=rungs.TOLERANCE,
        equal_nan=True,
        log_error=lambda *_, **__: None,
    )
    assert rungs.meets_fp64_rule(reference, result, exact) is bool(expected)


def test_without_double_precision_only_close_rows_are_judged() -> None:
    row = np.linspace(1.0, 2.0, 10)
    assert rungs.meets_fp64_rule(row, row * (1 + 1e-7), None) is True
    assert rungs.meets_fp64_rule(row, row * 1.1, None) is None
    assert rungs.meets_fp64_rule(row, row[:5], None) is False


def test_rungs_are_ordered() -> None:
    assert rungs.lowest([]) == "bitwise"
    assert rungs.lowest(["bitwise", "fp64", "ulp"]) == "fp64"
    assert rungs.at_least("ulp", "fp64")
    assert not rungs.at_least("equivalent", "fp64")
