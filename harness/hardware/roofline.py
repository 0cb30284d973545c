"""Where a trial stands under the roofs of its machine: model FLOPs utilization and the roofline.

MFU (Chowdhery et al. 2022, PaLM, appendix B) is the FLOPs that the model's derivation asks for over those that the
hardware could have done in the time: what is computed again, as by activation checkpointing, does not count.

The roofline (Williams, Waterman and Patterson 2009): at an intensity of I FLOP per byte a rank can do at most
min(peak, I * bandwidth) FLOP/s. The bytes are those of `measure.traffic`: every operator's operands once. A compiler
that fuses, or a cache that keeps what is used again, moves fewer, so that the intensity is a lower bound: a trial can
stand above the roof of main memory, and one that is bound by memory in this count may not be by its machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from harness.hardware.machine import Device, Machine, machine_key
from harness.hardware.vendor_peaks import DTYPE_OF_PRECISION, vendor_peak
from harness.records.environment import Hardware
from harness.records.record import Record


@dataclass(frozen=True, kw_only=True)
class RooflinePoint:
    """One rank of a trial under the roofs that were measured."""

    flops_per_s: float  # achieved
    intensity: float  # FLOP per byte
    peak: float  # FLOP/s
    bandwidth: float  # bytes/s of main memory

    @property
    def roof(self) -> float:
        """FLOP/s at this intensity."""
        return min(self.peak, self.intensity * self.bandwidth)

    @property
    def share(self) -> float:
        """Of the roof; above 1 where caches or fusion spare main memory traffic that was counted."""
        return self.flops_per_s / self.roof

    @property
    def bound(self) -> Literal["memory", "compute"]:
        return "memory" if self.intensity * self.bandwidth < self.peak else "compute"


def mfu(throughput: float, flops_per_sample: float, world_size: int, peak: float) -> float:
    """Samples/s over all ranks times FLOP a sample, over `world_size` times the peak of one rank in FLOP/s."""
    return throughput * flops_per_sample / (world_size * peak)


def device_of(record: Record) -> Device:
    """Only ranks on a GPU have allocated its memory."""
    return "cuda" if any("allocated" in rank.memory for rank in record.ranks) else "cpu"


def machine_of(record: Record, machines: Mapping[str, Machine]) -> Machine | None:
    """The measured machine that a trial ran on, of machines by key."""
    hardware = _hardware(record)
    return machines.get(machine_key(hardware, device_of(record))) if hardware else None


def roofs_of_rank(record: Record, machine: Machine) -> tuple[float | None, float | None]:
    """The peak in FLOP/s and the bandwidth in bytes/s of main memory that one rank could have had to itself.

    On a CPU: as measured with the rank's number of threads; None where that many were not measured, or where the
    ranks of a node have more threads than it has cores. Memory is shared by the ranks of a node.
    """
    axes = record.trial.cell.axes
    dtype = DTYPE_OF_PRECISION[axes.precision]
    if device_of(record) == "cuda":
        return machine.peak(dtype, None), machine.bandwidth(None)
    cores = machine.hardware.usable_cores
    beside = max(Counter(rank.host for rank in record.ranks).values())
    if beside * axes.num_threads > cores:
        return None, None
    alone, shared = machine.bandwidth(axes.num_threads), machine.bandwidth(cores)
    bandwidth = None if alone is None or shared is None else min(alone, shared / beside)
    return machine.peak(dtype, axes.num_threads), bandwidth


def roofline_point(record: Record, machine: Machine) -> RooflinePoint | None:
    """None where something that it takes was not measured."""
    achieved = _achieved(record)
    peak, bandwidth = roofs_of_rank(record, machine)
    moved = record.rank0.bytes_per_sample if record.rank0 else None
    if achieved is None or peak is None or bandwidth is None or not moved or not record.rank0:
        return None
    intensity = record.rank0.flops_per_sample / moved
    return RooflinePoint(flops_per_s=achieved, intensity=intensity, peak=peak, bandwidth=bandwidth)


def with_mfu(record: Record, machines: Mapping[str, Machine]) -> Record:
    """The record with its MFU against the vendor's peak and the measured one, where they are known."""
    achieved = _achieved(record)
    if record.summary is None or achieved is None:
        return record
    machine, hardware = machine_of(record, machines), _hardware(record)
    measured = roofs_of_rank(record, machine)[0] if machine else None
    told = (
        vendor_peak(hardware, record.trial.cell.axes.precision)
        if hardware is not None and device_of(record) == "cuda"
        else None
    )
    summary = replace(
        record.summary,
        mfu=achieved / told if told else None,
        mfu_measured=achieved / measured if measured else record.summary.mfu_measured,
    )
    return replace(record, summary=summary)


def _achieved(record: Record) -> float | None:
    """FLOP/s of one rank."""
    if record.summary is None or record.summary.throughput is None or record.rank0 is None:
        return None
    return mfu(
        record.summary.throughput,
        record.rank0.flops_per_sample,
        record.trial.cell.axes.world_size,
        1.0,
    )


def _hardware(record: Record) -> Hardware | None:
    return record.rank0.environment.hardware if record.rank0 else None
