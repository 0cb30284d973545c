"""Rungs, and the rule of torch's compiler tests."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch._dynamo.utils import same

from harness.analysis import rungs
from harness.records.record import Numbers


@pytest.mark.parametrize("size", [50, 2000])
@pytest.mark.parametrize("factor", [0.1, 0.4, 1.5, 2.5, 3.5, 10.0])
def test_the_rule_is_that_of_torch_from_both_sides(size: int, factor: float) -> None:
    exact = np.linspace(1.0, 2.0, size)
    noise = 1e-2 * np.sin(np.arange(size))
    a = (exact + noise).astype(np.float32)
    b = (exact - factor * noise).astype(np.float32)

    def is_same(reference: Numbers, result: Numbers) -> bool:
        """Return what torch says, whose absolute tolerance does not count here."""
        arrays = (torch.tensor(array) for array in (reference, result, exact))
        return bool(same(*arrays, tol=1e-12, equal_nan=True, log_error=lambda *_, **__: None))

    expected = is_same(a, b) and is_same(b, a)
    assert rungs.meets_fp64_rule(a, b, exact, rungs.FP32_EPSILON) is expected
    assert rungs.meets_fp64_rule(b, a, exact, rungs.FP32_EPSILON) is expected


@pytest.mark.parametrize("scale", [1e-8, 1e-4, 1.0, 1e8])
def test_the_rule_is_relative_to_the_scale_of_the_row(scale: float) -> None:
    exact = scale * np.linspace(1.0, 2.0, 10)
    rounded = (exact * (1 + 1e-7)).astype(np.float32)
    assert rungs.meets_fp64_rule(exact, rounded, exact, rungs.FP32_EPSILON)
    assert not rungs.meets_fp64_rule(exact, exact * (1 + 1e-5), exact, rungs.FP32_EPSILON)
    assert not rungs.meets_fp64_rule(np.zeros(10), rounded, exact, rungs.FP32_EPSILON)


def test_rows_of_other_lengths_or_without_a_number_meet_no_rule() -> None:
    row = np.linspace(1.0, 2.0, 10)
    assert not rungs.meets_fp64_rule(row, row[:5], row, 1.0)
    for bad in (np.nan, np.inf):
        broken = row.copy()
        broken[3] = bad
        assert not rungs.meets_fp64_rule(row, broken, row, 1.0)
        assert not rungs.meets_fp64_rule(broken, broken, row, 1.0)


def test_rungs_are_ordered() -> None:
    assert rungs.lowest([]) == "bitwise"
    assert rungs.lowest(["bitwise", "rounding", "bitwise"]) == "rounding"
    assert rungs.at_least("bitwise", "rounding")
    assert not rungs.at_least("equivalent", "rounding")
