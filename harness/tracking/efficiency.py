"""How well a trial used its hardware, as scalars."""

from __future__ import annotations

from harness.records.record import Record


def efficiency(record: Record) -> dict[str, float | None]:
    """MFU as a fraction; FLOP per byte of memory traffic."""
    if record.summary is None or record.rank0 is None:
        return {}
    moved = record.rank0.bytes_per_sample
    return {
        "mfu": record.summary.mfu,
        "mfu_measured": record.summary.mfu_measured,
        "intensity_flop_per_byte": record.rank0.flops_per_sample / moved if moved else None,
    }
