"""How alike two rows of numbers, or two tensors, are: the rungs of a ladder from the same bits to other results.

A rung holds for two trials if it holds for everything that both have recorded: each series of losses,
the evaluations, each tensor. Parameters are too large to be recorded, so a trial that is compared with
a reference leaves a few figures of each tensor.

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
from dataclasses import dataclass
from typing import Literal

import numpy as np

from harness.core.errors import BadInput, did_you_mean
from harness.records.bounds import Amount, Number, Ordinal
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
# The distance from 1.0 to the next float, by torch's name of the type.
EPSILONS = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
}
HALF_TYPES = ("float16", "bfloat16")
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


@dataclass(frozen=True, kw_only=True)
class TensorDistance:
    """How far a tensor is from that of a reference, and both of them from a run in fp64."""

    step: Ordinal  # after which the tensor was kept, counted from 1
    name: str
    dtype: str  # of the trial's tensor, as torch calls it without `torch.`
    shape: Sequence[Number]
    differing: Number  # elements whose bits differ from the reference's
    # Root mean squares, None for what is no float and without a run in fp64. An error that is not
    # finite is None too, with `is_finite` false.
    error: Amount | None = None  # of the trial against fp64
    reference_error: Amount | None = None  # of the reference against fp64
    scale: Amount | None = None  # of the values in fp64 themselves
    is_finite: bool = True
    reference_dtype: str | None = None  # of the reference's tensor; None: the same type

    @property
    def multiplier(self) -> float:
        """Return how many times the smaller error is allowed, as torch has it.

        2, and 3 where noise weighs more: in half precision and in small tensors.
        """
        is_half = self.dtype in HALF_TYPES or self.reference_dtype in HALF_TYPES
        is_small = math.prod(self.shape) < FEW_NUMBERS
        return FACTOR_OF_FEW if is_half or is_small else FACTOR

    @property
    def excess(self) -> float | None:
        """Return the larger error over the allowed one: the rule holds up to 1. None without fp64.

        One rounding of the coarser of both types at the scale of the values is allowed besides.
        Torch adds 1e-5, whatever the scale: made for outputs near 1, it would let pass any bias of
        1e-6.
        """
        if not self.is_finite:
            return math.inf
        if self.error is None or self.reference_error is None or self.scale is None:
            return None
        epsilon = EPSILONS.get(self.dtype, 0.0)
        if self.reference_dtype is not None:
            epsilon = max(epsilon, EPSILONS.get(self.reference_dtype, 0.0))
        return fp64_excess(
            self.error,
            self.reference_error,
            factor=self.multiplier,
            rounding=epsilon * self.scale,
        )

    @property
    def is_within_fp64_rule(self) -> bool:
        """Return whether the error is allowed. What is no float must be the same."""
        return self.differing == 0 or (self.excess is not None and self.excess <= 1)

    @property
    def repeats_exactly(self) -> bool:
        """Return whether this is the distance of two runs in fp64 that can judge others.

        The reference is the one in fp64 as well then.
        """
        if self.differing == 0:
            return True
        if self.error is None or self.scale is None:
            return False
        return fp64_repeats(self.error, self.scale)


def tensor_rung(*, same_bits: bool, distances: Sequence[TensorDistance]) -> Rung | None:
    """Return the highest rung that tensors reach, None where they reach none: seeds decide then.

    `same_bits` is whether all digests that were compared are the same. `distances` are those of all
    tensors that were kept along the trajectory, each of which has to meet the rule; without any,
    `rounding` can't be shown.
    """
    if same_bits and all(distance.differing == 0 for distance in distances):
        return "bitwise"
    if distances and all(distance.is_within_fp64_rule for distance in distances):
        return "rounding"
    return None


def worst_distance(distances: Sequence[TensorDistance]) -> TensorDistance | None:
    """Return the tensor that decides the rung: the one farthest beyond what the fp64 rule allows.

    Without a run in fp64, it is the one of which the largest share differs. None where none differs.
    """
    differing = [distance for distance in distances if distance.differing]
    if not differing:
        return None
    return max(differing, key=_severity)


def _severity(distance: TensorDistance) -> tuple[float, float]:
    """Return what distances are ordered by; what is no float may not differ at all."""
    if distance.dtype not in EPSILONS:
        return math.inf, math.inf
    return distance.excess or 0.0, distance.differing / math.prod(distance.shape)
