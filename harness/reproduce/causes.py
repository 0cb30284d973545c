"""What can explain that two cells part where they do.

A setting can only be the cause if the two cells differ in it, and if it can change what is computed
in the phase in which they part. An earlier phase would have parted first; a later one has not come yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.records.trace import PHASES
from harness.spec.cell import Cell, axis_names

OPTIMIZER = ("optimizer state", "optimizer")
# Phases of arithmetic on a rank.
COMPUTING = ("forward", "buffers", "backward", *OPTIMIZER, "evaluation")
SHARING = ("all-reduce",)


@dataclass(frozen=True)
class Cause:
    """What a setting changes in the arithmetic."""

    name: str
    phases: Sequence[str]  # in which it can show first


REDUCTION_ORDER = Cause("reduction order", SHARING)
# An evaluation adds up what each rank has counted on its part of the test set.
RANKS = Cause("reduction order", (*SHARING, "evaluation"))
BUCKET_LAYOUT = Cause("bucket layout", SHARING)
COMPRESSION = Cause("compressed gradients", SHARING)
SPLIT_PRODUCTS = Cause("split products", ("forward", "buffers", "backward"))
COMPILER = Cause("compiler", ("forward", "buffers", "backward"))
# Initial parameters are drawn by vectorized kernels too.
ISA = Cause("ISA", ("parameters", *COMPUTING))
THREADS = Cause("threads", COMPUTING)
RNG = Cause("RNG", ("random", "forward", "buffers", "backward"))
# By axis. One that is not here explains a difference by its own name, in any phase.
CAUSES = {
    "precision": Cause("dtype", ("parameters", *COMPUTING)),
    "num_threads": THREADS,
    "env.OMP_NUM_THREADS": THREADS,
    "env.MKL_NUM_THREADS": THREADS,
    "env.ATEN_CPU_CAPABILITY": ISA,
    "env.ONEDNN_MAX_CPU_ISA": ISA,
    "env.MKL_ENABLE_INSTRUCTIONS": ISA,
    "env.MKL_CBWR": ISA,
    "execution": COMPILER,
    "dynamic": COMPILER,
    "fullgraph": COMPILER,
    "cache": COMPILER,
    "channels_last": Cause("memory format", COMPUTING),
    "activation_checkpointing": Cause("recomputed activations", ("backward",)),
    "strategy": REDUCTION_ORDER,
    "world_size": RANKS,
    "shard_size": REDUCTION_ORDER,
    "tensor_parallel": SPLIT_PRODUCTS,
    "grad_accum_steps": REDUCTION_ORDER,
    "reduction": REDUCTION_ORDER,
    "comm_hook": COMPRESSION,
    "matrix_approximation_rank": COMPRESSION,
    "reduce_dtype": COMPRESSION,
    "bucket_cap_mb": BUCKET_LAYOUT,
    "gradient_as_bucket_view": BUCKET_LAYOUT,
    "static_graph": BUCKET_LAYOUT,
    "fsdp_wrap": BUCKET_LAYOUT,
    "reshard_after_forward": BUCKET_LAYOUT,
    "optimizer_impl": Cause("optimizer implementation", OPTIMIZER),
    "num_workers": Cause("RNG", ("data",)),
}
# The axes that decide which rank, or which micro-step, computes which samples.
SPLITTING = ("world_size", "tensor_parallel", "grad_accum_steps")


def differing_axes(a: Cell, b: Cell) -> list[str]:
    """Return the names of the axes in which two cells differ."""
    return [name for name in axis_names([a, b]) if a.level(name) != b.level(name)]


def splits_differently(a: Cell, b: Cell) -> bool:
    """Return whether the ranks or micro-steps of two cells have different samples."""
    return any(name in SPLITTING for name in differing_axes(a, b))


def likely_causes(a: Cell, b: Cell, phase: str, *, draws_random: bool) -> list[str]:
    """Return what can explain that two cells part in `phase`, the names of causes.

    `draws_random` is whether ranks draw random numbers while they train. Where ranks have different
    samples, phases before the all-reduce can't be compared, so that whatever shows in them shows in
    the all-reduce.
    """
    axes = differing_axes(a, b)
    is_split = splits_differently(a, b)
    causes = [CAUSES.get(axis, Cause(axis, PHASES)) for axis in axes]
    if draws_random and is_split:
        causes.append(RNG)  # each rank has a stream of its own
    if a.axes.tensor_parallel_size != b.axes.tensor_parallel_size:
        causes.append(SPLIT_PRODUCTS)
    names = [cause.name for cause in causes if _shows_in(cause, phase, is_split=is_split)]
    if phase == "random" and RNG.name not in names:
        names.append(RNG.name)
    return list(dict.fromkeys(names))


def _shows_in(cause: Cause, phase: str, *, is_split: bool) -> bool:
    """Return whether a cause can show first in a phase."""
    if phase in cause.phases:
        return True
    if not is_split or phase != "all-reduce":
        return False
    return any(PHASES.index(shown) < PHASES.index(phase) for shown in cause.phases)
