"""How far the tensors of a trial are from those of a reference, and the rung that they reach.

`harness.analysis.rungs` compares rows of numbers in records. Parameters are too large to be recorded,
so a trial that is compared with a reference leaves a few figures of each tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.rungs import (
    FACTOR,
    FACTOR_OF_FEW,
    FEW_NUMBERS,
    Rung,
    fp64_excess,
    fp64_repeats,
)
from harness.records.bounds import Amount, Number, Ordinal

# The distance from 1.0 to the next float, by torch's name of the type.
EPSILONS = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
}
HALF_TYPES = ("float16", "bfloat16")
KERNEL_DIMENSIONS = 4  # of a convolution of images: channels out and in, height, width


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

        2, and 3 where noise weighs more: in half precision, in small tensors and in 1x1 kernels.
        """
        is_pointwise = len(self.shape) == KERNEL_DIMENSIONS and tuple(self.shape[2:]) == (1, 1)
        is_half = self.dtype in HALF_TYPES or self.reference_dtype in HALF_TYPES
        elements = math.prod(self.shape)
        if is_half or elements < FEW_NUMBERS or is_pointwise:
            return FACTOR_OF_FEW
        return FACTOR

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
        if self.differing == 0:
            return True
        excess = self.excess
        return excess is not None and excess <= 1

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
