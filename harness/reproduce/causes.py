"""Names the settings that can explain where two cells diverge.

A setting can only be the cause if the two cells differ in it and it can change the results of the
phase in which they diverge. A cause in an earlier phase would have shown there first; a later phase
has not run yet. A large difference excludes more: another order of sums changes roundings only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.cells import differing_axes
from harness.records.trace import PHASES
from harness.spec.cell import Cell

OPTIMIZER = ("optimizer state", "optimizer")
# Phases of arithmetic on a rank.
COMPUTING = (
    "forward", "buffers", "backward", *OPTIMIZER, "after_step", "workload state", "evaluation"
)  # fmt: skip
SHARING = ("all-reduce",)


@dataclass(frozen=True)
class Cause:
    """What a setting changes in the arithmetic."""

    name: str
    phases: Sequence[str]  # in which it can show first
    only_rounds: bool = False  # whether it changes roundings only


REDUCTION_ORDER = Cause("reduction order", SHARING, only_rounds=True)
# An evaluation sums the counts of all ranks, each of its part of the test set.
RANKS = Cause("reduction order", (*SHARING, "evaluation"), only_rounds=True)
BUCKET_LAYOUT = Cause("bucket layout", SHARING, only_rounds=True)
COMPRESSION = Cause("compressed gradients", SHARING)
# Compiled dropout draws other random numbers.
COMPILER = Cause("compiler", ("forward", "buffers", "backward"))
# Initial parameters are drawn by vectorized kernels too.
ISA = Cause("ISA", ("parameters", *COMPUTING))
THREADS = Cause("threads", COMPUTING, only_rounds=True)
RNG = Cause("RNG", ("random", "forward", "buffers", "backward"))
# Batch norm has its own statistics at each rank and in each micro-batch.
BATCH_STATISTICS = Cause("batch statistics", ("forward", "buffers", "backward"))
UNEXPLAINED = Cause("not explained by rounding", PHASES)
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
    "compile.dynamic": COMPILER,
    "compile.fullgraph": COMPILER,
    "cache": COMPILER,
    "channels_last": Cause("memory format", COMPUTING),
    "activation_checkpointing": Cause("recomputed activations", ("backward",), only_rounds=True),
    "strategy": REDUCTION_ORDER,
    "world_size": RANKS,
    "shard_size": REDUCTION_ORDER,
    "grad_accum_steps": REDUCTION_ORDER,
    "reduction": REDUCTION_ORDER,
    "comm_hook": COMPRESSION,
    "fsdp.reduce_dtype": COMPRESSION,
    "ddp.bucket_cap_mb": BUCKET_LAYOUT,
    "ddp.gradient_as_bucket_view": BUCKET_LAYOUT,
    "ddp.static_graph": BUCKET_LAYOUT,
    "fsdp.reshard_after_forward": BUCKET_LAYOUT,
    "optimizer_impl": Cause("optimizer implementation", OPTIMIZER, only_rounds=True),
    "num_workers": Cause("RNG", ("data",)),
}
# The axes that decide which rank, or which micro-step, computes which samples.
SPLITTING = ("world_size", "grad_accum_steps")


def splits_differently(a: Cell, b: Cell) -> bool:
    """Return whether the ranks or micro-steps of two cells have different samples."""
    return any(name in SPLITTING for name in differing_axes(a, b))


def likely_causes(
    a: Cell,
    b: Cell,
    phase: str,
    *,
    draws_random: bool,
    uses_batch_statistics: bool,
    is_beyond_rounding: bool,
) -> list[str]:
    """Return the names of the causes that can explain that two cells diverge in `phase`.

    `draws_random` is whether ranks draw random numbers in training, `uses_batch_statistics` is
    whether the model's buffers depend on its batches, and `is_beyond_rounding` is whether the cells
    differ by more than roundings can explain. Where ranks have different samples, phases before the
    all-reduce cannot be compared, so differences in them show in the all-reduce.
    """
    is_split = splits_differently(a, b)
    candidates = [CAUSES.get(axis, Cause(axis, PHASES)) for axis in differing_axes(a, b)]
    if is_split:
        if draws_random:
            candidates.append(RNG)  # each rank draws from a separate stream
        if uses_batch_statistics:
            candidates.append(BATCH_STATISTICS)
    if phase == "random":
        candidates.append(RNG)
    causes = [cause for cause in candidates if _shows_in(cause, phase, is_split=is_split)]
    if is_beyond_rounding:
        causes = [cause for cause in causes if not cause.only_rounds] or [UNEXPLAINED]
    return list(dict.fromkeys(cause.name for cause in causes))


def _shows_in(cause: Cause, phase: str, *, is_split: bool) -> bool:
    """Return whether a cause can show first in a phase."""
    if phase in cause.phases:
        return True
    if not is_split or phase != "all-reduce":
        return False
    return any(PHASES.index(shown) < PHASES.index(phase) for shown in cause.phases)
