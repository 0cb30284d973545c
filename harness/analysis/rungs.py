"""How alike two rows of numbers are: the rungs of a ladder from the same bits to other results.

A rung holds for two trials if it holds for everything that both have recorded, so a caller asks it
of each series of losses and of the evaluations, and takes the lowest answer.

1. bitwise: the same bytes.
2. rounding: both are about as far from a run in double precision, so that rounding errors explain
   their difference. The factors are those that torch allows a compiled model
   (`torch._dynamo.utils.same`).
3. equivalent: the target metric over seeds differs by less than a margin (TOST), which
   `harness.statistics.verdict` tests.
4. different: none of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from harness.core.errors import BadInput, did_you_mean
from harness.records.record import Numbers

Rung = Literal["bitwise", "rounding", "equivalent", "different"]
RUNGS: Sequence[Rung] = ("bitwise", "rounding", "equivalent", "different")  # most alike first
# The factors of `torch._dynamo.utils.same` on the smaller error: noise weighs more in few numbers.
FEW_NUMBERS = 1000
FACTOR = 2.0
FACTOR_OF_FEW = 3.0
# The distance from 1.0 to the next float32, the coarsest type that losses and metrics are recorded
# in. Two runs in double precision with a larger relative distance are not exact enough.
FP32_EPSILON = 2.0**-23
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


def floats_apart(bits_a: Numbers, bits_b: Numbers) -> Numbers:
    """Return how many floats are between those with the given bits, which are unsigned, as uint64.

    Floats of one sign are ordered as their bits are as integers, so their distance is that of the
    integers once those of negative numbers are mirrored (Dawson 2012, "Comparing Floating Point
    Numbers"). 0.0 and -0.0 are the same.
    """
    ordered_a, ordered_b = _ordered_bits(bits_a), _ordered_bits(bits_b)
    apart: Numbers = np.maximum(ordered_a, ordered_b) - np.minimum(ordered_a, ordered_b)
    return apart


def _ordered_bits(bits: Numbers) -> Numbers:
    """Return unsigned integers that are ordered as the floats with these bits are."""
    sign = np.uint64(1 << (8 * bits.dtype.itemsize - 1))
    bits = bits.astype(np.uint64)
    is_negative = (bits & sign) != 0
    ordered: Numbers = np.where(is_negative, sign - (bits ^ sign), bits + sign)
    return ordered


def fp64_excess(error_a: float, error_b: float, *, factor: float, rounding: float) -> float:
    """Return the larger of two errors over what the fp64 rule allows: the rule holds up to 1.

    The errors are root mean squares against one run in double precision. The larger one may be
    `factor` times the smaller, and `rounding` more, as the smaller may be 0 by chance; all are in
    the same unit. So it does not matter which of the two results is called the reference.
    """
    if not math.isfinite(error_a) or not math.isfinite(error_b):
        return math.inf
    larger = max(error_a, error_b)
    allowed = factor * min(error_a, error_b) + rounding
    if larger == 0:
        return 0.0
    return larger / allowed if allowed > 0 else math.inf


def fp64_repeats(error: float, scale: float) -> bool:
    """Return whether two runs in double precision agree well enough to judge others by them.

    `error` is the root mean square of their difference, `scale` that of the numbers themselves.
    """
    return error <= FP32_EPSILON * scale


def meets_fp64_rule(a: Numbers, b: Numbers, exact: Numbers, relative_rounding: float) -> bool:
    """Return whether rounding errors explain the difference of two rows, by the fp64 rule.

    `relative_rounding` is a share of the row's scale, the root mean square of `exact`. Rows of other
    lengths meet no rule.
    """
    if not a.shape == b.shape == exact.shape:
        return False
    excess = fp64_excess(
        root_mean_square(a - exact),
        root_mean_square(b - exact),
        factor=FACTOR_OF_FEW if exact.size < FEW_NUMBERS else FACTOR,
        rounding=relative_rounding * root_mean_square(exact),
    )
    return excess <= 1


def root_mean_square(values: Numbers) -> float:
    """Return the root of the mean square in fp64, 0 of nothing."""
    if not values.size:
        return 0.0
    return float(np.sqrt(np.mean(np.square(values.astype(np.float64)))))
