"""Compares a trial with the peaks of its machine: model FLOPs utilization.

MFU (Chowdhery et al. 2022, PaLM, appendix B) is the FLOPs that the model's derivation asks for,
divided by those that the hardware could have done in the same time. What is computed twice, as with
activation checkpointing, counts once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.hardware.machine import Device, Machine, machine_key, read_all
from harness.hardware.vendor_peaks import DTYPE_OF_PRECISION, vendor_peak
from harness.records.environment import Hardware
from harness.records.record import Record


def device_of(record: Record) -> Device:
    """Return the kind of device that a trial ran on."""
    # Only ranks on a GPU report allocated memory.
    on_gpu = "allocated" in record.ranks.across.memory
    return "cuda" if on_gpu else "cpu"


def machine_of(record: Record, machines: Mapping[str, Machine]) -> Machine | None:
    """Return the measured machine, of `machines` by key, that a trial ran on."""
    if not machines:
        return None
    hardware = _hardware(record)
    if hardware is None:
        return None
    return machines.get(machine_key(hardware, device_of(record)))


def peak_of_rank(record: Record, machine: Machine) -> float | None:
    """Return the FLOP/s that one rank of a trial could have reached, None if they were not measured.

    On a CPU, the ranks of a node share the peak of all its cores.
    """
    peak = machine.peak(DTYPE_OF_PRECISION[record.trial.cell.axes.precision])
    if peak is None or device_of(record) == "cuda":
        return peak
    return peak / record.ranks.across.ranks_per_node


def with_mfu(record: Record, machines: Mapping[str, Machine]) -> Record:
    """Return the record with its MFU of the vendor's peak and of the measured one, where known.

    `machines` are the measured machines by key. An MFU of a measured peak that the record has
    already stays if this machine is not among them.
    """
    machine = machine_of(record, machines)
    hardware = _hardware(record)
    vendor = None  # peak of the trial's GPUs in FLOP/s; None on a CPU and where unknown
    if hardware is not None and device_of(record) == "cuda":
        vendor = vendor_peak(hardware, record.trial.cell.axes.precision)
    if record.summary is None:
        return record
    if machine is None and vendor is None and record.summary.mfu is None:
        return record  # as on a CPU whose peaks were not measured
    achieved = _achieved_flops_per_s(record)
    if achieved is None:
        return record
    mfu_measured = record.summary.mfu_measured
    if machine is not None:
        measured_peak = peak_of_rank(record, machine)
        if measured_peak:
            mfu_measured = achieved / measured_peak
    mfu = achieved / vendor if vendor else None
    if (mfu, mfu_measured) == (record.summary.mfu, record.summary.mfu_measured):
        return record
    return replace(record, summary=replace(record.summary, mfu=mfu, mfu_measured=mfu_measured))


def with_measured_peaks(records: Sequence[Record], folder: Path) -> list[Record]:
    """Return the records with their MFU of the peaks that are measured in `folder`, if any are.

    Peaks that were measured after a record was written count, too.
    """
    measured = read_all(folder)
    return [with_mfu(record, measured) for record in records]


def _achieved_flops_per_s(record: Record) -> float | None:
    """Return the FLOP/s that one rank achieved."""
    if record.summary is None or record.summary.throughput is None or record.rank0 is None:
        return None
    if record.rank0.flops_per_sample is None:
        return None
    flops_per_s = record.summary.throughput * record.rank0.flops_per_sample  # of all ranks
    return flops_per_s / record.trial.cell.axes.world_size


def _hardware(record: Record) -> Hardware | None:
    """Return the description of the hardware in a record, None for a failed trial."""
    return None if record.environment is None else record.environment.hardware
