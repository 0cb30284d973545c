"""Compares a trial with the peaks of its machine: model FLOPs utilization.

MFU (Chowdhery et al. 2022, PaLM, appendix B) is the FLOPs that the model's derivation asks for,
divided by those that the hardware could have done in the same time. What is computed twice, as with
activation checkpointing, counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from harness.hardware.machine import Machine, machine_key
from harness.hardware.vendor_peaks import DTYPE_OF_PRECISION, vendor_peak
from harness.records.numbers import RATE
from harness.records.record import RankResult, Record


def mfu_numbers(
    record: Record, ranks: Sequence[RankResult], machines: Mapping[str, Machine]
) -> dict[str, float]:
    """Return the MFU of a trial of the vendor's peak and of the measured one, as far as they are known.

    `machines` are the measured machines by key.
    """
    achieved = _achieved_flops_per_s(record)
    if achieved is None or record.environment is None:
        return {}
    hardware = record.environment.hardware
    numbers = {}
    precision = record.trial.cell.axes.precision
    if record.device == "cuda":
        vendor = vendor_peak(hardware, precision)
        if vendor:
            numbers["mfu"] = achieved / vendor
    machine = machines.get(machine_key(hardware, record.device))
    if machine is not None:
        measured = machine.peak(DTYPE_OF_PRECISION[precision])
        if measured and record.device == "cpu":  # the ranks of a node share the peak of its cores
            ranks_by_host = Counter(rank.host for rank in ranks)
            measured /= max(ranks_by_host.values())
        if measured:
            numbers["mfu_measured"] = achieved / measured
    return numbers


def _achieved_flops_per_s(record: Record) -> float | None:
    """Return the FLOP/s that one rank achieved."""
    samples_per_s = record.numbers.get(RATE)
    if samples_per_s is None or record.rank0 is None:
        return None
    flops_per_sample = record.rank0.flops_per_sample
    if flops_per_sample is None:
        return None
    flops_per_s = samples_per_s * flops_per_sample  # of all ranks
    return flops_per_s / record.trial.cell.axes.world_size
