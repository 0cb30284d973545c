"""What `harness export` writes: parity and latency of a trial's exported models, and the order to the
process that exports them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.core.paths import TrialFolder
from harness.records.format import Amount, FileFormat, Moment, Number, Ordinal, decode_file

SCHEMA = 4
EXPORT_FORMAT = FileFormat(
    name="trial's exports", schema=SCHEMA, remedy="harness export writes it again", is_sealed=True
)
ORDER_FILE = "order.json"
FormatName = Literal["onnx", "torch-export"]
FORMATS: tuple[FormatName, ...] = ("onnx", "torch-export")


@dataclass(frozen=True, kw_only=True)
class ExportParity:
    """How an exported model compares with eager mode, over a whole test set."""

    samples: Ordinal
    metrics: Mapping[str, float]  # of eager mode, by name
    exported_metrics: Mapping[str, float]
    largest_difference: Amount  # of all outputs
    tolerance: Amount  # the largest difference that is allowed


@dataclass(frozen=True, kw_only=True)
class Latency:
    """How long calls of a model took, at one batch size."""

    batch_size: Ordinal
    calls: Ordinal
    p50_ms: Amount
    p95_ms: Amount


@dataclass(frozen=True, kw_only=True)
class ExportedModel:
    """A model in one format, which agrees with eager mode."""

    format: FormatName
    bytes: Number  # of all its files
    inputs: Sequence[str]  # in their order, as in `points: float32 (batch, 4)`
    parity: ExportParity
    latencies: Sequence[Latency] = ()
    threads: Ordinal  # of a call
    processor: str  # that it was compared and timed on
    packages: Mapping[str, str]  # name -> version


@dataclass(frozen=True, kw_only=True)
class TrialExport:
    """The exports of a trial that one command has made."""

    schema: int = SCHEMA
    trial: str  # its id
    at: Moment  # when it was written
    step: Number  # of the checkpoint, whose parameters are exported
    weights: str  # the SHA-256 of the checkpoint's weights
    target: str  # the metric that the workload is trained towards
    models: Sequence[ExportedModel]


@dataclass(frozen=True, kw_only=True)
class ExportOrder:
    """Export one checkpoint to some formats."""

    checkpoint: str  # its folder
    formats: Sequence[FormatName]
    batch_sizes: Sequence[Ordinal]  # whose latency is measured


def read_export(folder: TrialFolder) -> TrialExport | None:
    """Read the exports of a trial, None where there are none; raises BadFile."""
    if not folder.export_path.exists():
        return None
    return decode_file(TrialExport, folder.export_path, EXPORT_FORMAT)
