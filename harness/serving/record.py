"""The file that `harness export` writes, parity and latency of a trial's exported models; and the messages
to and from the process that exports one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from harness.core.errors import BadFile
from harness.core.paths import TrialFolder, write_atomically
from harness.records.bounds import Amount, Moment, Number, Ordinal
from harness.records.decode import FileFormat, decode_file
from harness.records.seal import sealed_text

SCHEMA = "3.0"
EXPORT_FORMAT = FileFormat(
    name="trial's exports", schema=SCHEMA, remedy="harness export writes it again", is_sealed=True
)
ORDER_FORMAT = FileFormat(name="order of an export", is_sealed=True)
ANSWER_FORMAT = FileFormat(name="answer of an export", is_sealed=True)
FormatName = Literal["onnx", "torch-export"]
FORMATS: tuple[FormatName, ...] = ("onnx", "torch-export")


@dataclass(frozen=True, kw_only=True)
class ExportParity:
    """How an exported model compares with eager mode, over a whole test set."""

    samples: Ordinal
    metrics: Mapping[str, float]  # of eager mode, by name
    exported_metrics: Mapping[str, float]
    largest_difference: Amount | None  # of all outputs; None for one that is not finite
    tolerance: Amount  # the largest difference that is allowed
    disagreeing: Sequence[Number] = ()  # the indices of samples with a larger one


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
    files: Mapping[str, str]  # the SHA-256 of each, by its path in the format's folder
    inputs: Sequence[str]  # in their order, as in `points: float32 (batch, 4)`
    parity: ExportParity
    threads: Ordinal  # of a call
    latencies: Sequence[Latency] = ()


@dataclass(frozen=True, kw_only=True)
class TrialExport:
    """All exports of a trial."""

    schema: str = SCHEMA
    trial: str  # its id
    at: Moment  # when it was written
    step: Number  # of the checkpoint, whose parameters are exported
    weights: str  # the SHA-256 of the checkpoint's weights
    target: str  # the metric that the workload is trained towards
    device: str  # that it was exported and measured on
    processor: str  # its name
    packages: Mapping[str, str]  # name -> version
    models: Sequence[ExportedModel]


def write_export(folder: TrialFolder, export: TrialExport) -> None:
    """Write the exports of a trial into its folder, sealed."""
    write_atomically(folder.export_path, sealed_text(asdict(export)))


def read_export(folder: TrialFolder) -> TrialExport | None:
    """Read the exports of a trial, None where there are none; raises BadFile."""
    if not folder.export_path.exists():
        return None
    return decode_file(TrialExport, folder.export_path, EXPORT_FORMAT)


def check_files(folder: TrialFolder, export: TrialExport) -> None:
    """Raise BadFile unless the models in a trial's folder are those that were compared."""
    for model in export.models:
        path = folder.exported_model(model.format)
        if digest_files(path) != model.files:
            raise BadFile(
                f"{path}: found other files than those that were compared with eager mode; needed:"
                f" harness export {export.trial} --to {model.format}, which writes them again"
            )


def digest_files(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file below a folder, by its path in the folder."""
    digests = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            digests[path.relative_to(folder).as_posix()] = digest
    return digests


# Messages


@dataclass(frozen=True, kw_only=True)
class ExportOrder:
    """Export one checkpoint to one format."""

    checkpoint: str  # its folder
    format: FormatName
    target: str  # the folder for the model's files, which does not exist
    tolerance: Amount | None  # the largest difference allowed; None: by the rounding of eager mode
    batch_sizes: Sequence[Ordinal]  # whose latency is measured
    calls: Number  # at each


@dataclass(frozen=True, kw_only=True)
class ExportAnswer:
    """The result of an export order."""

    device: str  # that the model was exported on, as torch calls its type
    model: ExportedModel | None = None
    problem: str = ""  # why the format can't hold the model, in one line


def order_path(folder: TrialFolder) -> Path:
    """Return the path of a process's order."""
    return folder.path / "order.json"


def answer_path(folder: TrialFolder) -> Path:
    """Return the path of a process's answer."""
    return folder.path / "answer.json"


def write_message(path: Path, message: ExportOrder | ExportAnswer) -> None:
    """Write an order or an answer, sealed."""
    write_atomically(path, sealed_text(asdict(message)), durable=False)


def read_order(folder: TrialFolder) -> ExportOrder:
    """Read the order of a process; raises BadFile."""
    return decode_file(ExportOrder, order_path(folder), ORDER_FORMAT)


def read_answer(folder: TrialFolder) -> ExportAnswer:
    """Read the answer of a process; raises BadFile."""
    return decode_file(ExportAnswer, answer_path(folder), ANSWER_FORMAT)
