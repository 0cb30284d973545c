"""How alike two rows of numbers are: the rungs of a ladder from the same bits to other results.

A rung holds for two trials if it holds for everything that both have recorded, so a caller asks it
of each series of losses and of the evaluations, and takes the lowest answer.

1. bitwise: the same bytes.
2. ulp: at most so many floats lie between corresponding numbers.
3. fp64: as close to the first trial, or to a run in double precision, as torch demands of a
   compiled model (`torch._dynamo.utils.same`).
4. equivalent: the target metric over seeds differs by less than a margin (TOST), which
   `harness.statistics.verdict` tests.
5. different: none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from harness.core.errors import BadInput, did_you_mean
from harness.records.series import Numbers

Rung = Literal["bitwise", "ulp", "fp64", "equivalent", "different"]
RUNGS: Sequence[Rung] = ("bitwise", "ulp", "fp64", "equivalent", "different")  # most alike first
MAX_ULP = 4  # floats between two numbers that the rung `ulp` allows
# The tolerance of `torch._dynamo.utils.same`, absolute and relative, and its factors on the error
# of the reference: noise weighs more in few numbers.
TOLERANCE = 1e-4
FEW_NUMBERS = 1000
FACTOR = 2.0
FACTOR_OF_FEW = 3.0
INCOMPARABLE = 2**63  # the distance of a NaN from a number, more than any two floats have
# The unsigned type with as many bits as a float.
UNSIGNED: dict[int, type[np.unsignedinteger]] = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def at_least(rung: Rung, demanded: Rung) -> bool:
    """Return whether a rung is the demanded one or one that is more alike."""
    return RUNGS.index(rung) <= RUNGS.index(demanded)


def parse_rung(option: str, text: str) -> Rung:
    """Return the rung that an option names; raises BadInput for a word that is none."""
    for rung in RUNGS:
        if rung == text:
            return rung
    raise BadInput(f"{option}: found {text!r}; {did_you_mean(text, RUNGS)}")


def lowest(rungs: Sequence[Rung]) -> Rung:
    """Return the rung that holds for all parts of a comparison; of no parts, `bitwise`."""
    return max(rungs, key=RUNGS.index, default="bitwise")


def same_bytes(a: Numbers, b: Numbers) -> bool:
    """Return whether two arrays have the same type, shape and bits, NaN and -0.0 included."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def first_difference(a: Numbers, b: Numbers) -> int | None:
    """Return the first index at which two rows have other bits, None if there is none.

    A row that ends earlier differs at its end.
    """
    common = min(len(a), len(b))
    if a.dtype != b.dtype:
        return 0
    bits = UNSIGNED[a.dtype.itemsize]
    differing = np.flatnonzero(a[:common].view(bits) != b[:common].view(bits))
    if len(differing):
        return int(differing[0])
    return None if len(a) == len(b) else common


def ulp_distances(a: Numbers, b: Numbers) -> Numbers:
    """Return how many floats lie between corresponding numbers, as uint64.

    Floats of one sign are ordered as their bits are as integers, so their distance is that of the
    integers once those of negative numbers are mirrored (Dawson 2012, "Comparing Floating Point
    Numbers"). 0.0 and -0.0 are the same, and so is NaN and NaN; NaN and a number are INCOMPARABLE.

    Raises ValueError for rows of other lengths or types.
    """
    if a.dtype != b.dtype or a.shape != b.shape:
        raise ValueError(f"found {a.dtype} {a.shape} and {b.dtype} {b.shape}; allowed: the same")
    ordered_a, ordered_b = _ordered_bits(a), _ordered_bits(b)
    larger = np.maximum(ordered_a, ordered_b)
    smaller = np.minimum(ordered_a, ordered_b)
    distances: Numbers = (larger - smaller).astype(np.uint64)
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    distances[nan_a & nan_b] = 0
    distances[nan_a != nan_b] = INCOMPARABLE
    return distances


def _ordered_bits(values: Numbers) -> Numbers:
    """Return unsigned integers that are ordered as the floats are."""
    unsigned = UNSIGNED[values.dtype.itemsize]
    bits = np.ascontiguousarray(values).view(unsigned).astype(np.uint64)
    sign = np.uint64(1 << (8 * values.dtype.itemsize - 1))
    is_negative = (bits & sign) != 0
    ordered: Numbers = np.where(is_negative, sign - (bits ^ sign), bits + sign)
    return ordered


def largest_ulp(a: Numbers, b: Numbers) -> int | None:
    """Return the largest distance in ULP; None for rows that do not correspond to each other."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return None
    return int(ulp_distances(a, b).max(initial=0))


def meets_fp64_rule(reference: Numbers, result: Numbers, exact: Numbers | None) -> bool | None:
    """Return whether a result is as good as the reference, by the rule of torch's compiler tests.

    It is if both are the same within TOLERANCE, or if its error against `exact`, computed in double
    precision, is at most FACTOR times that of the reference: `same` in `torch._dynamo.utils`. None
    where only `exact` could tell and there is none.
    """
    if reference.shape != result.shape:
        return False
    before, now = reference.astype(np.float64), result.astype(np.float64)
    if np.allclose(before, now, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
        return True
    if exact is None:
        return None
    if exact.shape != reference.shape:
        return False
    factor = FACTOR_OF_FEW if reference.size < FEW_NUMBERS else FACTOR
    allowed = factor * _root_mean_square(before - exact) + TOLERANCE / 10
    return bool(_root_mean_square(now - exact) <= allowed)


def _root_mean_square(errors: Numbers) -> float:
    """Return the root of the mean square, 0 of nothing."""
    if not errors.size:
        return 0.0
    return float(np.sqrt(np.mean(np.square(errors))))
