"""Orders to the processes of an export, and their answers: files in their folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from harness.core.paths import TrialFolder, write_atomically
from harness.records.bounds import Amount, Ordinal
from harness.records.decode import FileFormat, decode_file
from harness.records.seal import sealed_text
from harness.serving.record import ExportParity, FormatName, LatencyGroup, ModelInput

ORDER_FORMAT = FileFormat(name="order of an export", is_sealed=True)
ANSWER_FORMAT = FileFormat(name="answer of an export", is_sealed=True)

M = TypeVar("M")


@dataclass(frozen=True, kw_only=True)
class ExportOrder:
    """Export one checkpoint to one format, and compare it with eager mode."""

    checkpoint: str  # its folder
    format: FormatName
    target: str  # the folder for the model's files, which does not exist
    tolerance: Amount | None  # the largest difference allowed; None: by the rounding of eager mode


@dataclass(frozen=True, kw_only=True)
class ExportAnswer:
    """The result of an export order."""

    problem: str | None  # why the format can't hold the model, in one line; None: it can
    device: str  # that it was exported and compared on, as torch calls its type
    seconds: Amount = 0.0  # that the export took
    parity: ExportParity | None = None
    inputs: Sequence[ModelInput] = ()  # of the exported model
    loader: str | None = None  # the class of transformers that loads it


@dataclass(frozen=True, kw_only=True)
class LatencyOrder:
    """Measure how long calls take with `threads` threads."""

    checkpoint: str
    models: Mapping[str, str]  # folders of exported models, by format
    tolerances: Mapping[str, Amount]  # the largest difference of their outputs, by format
    batch_sizes: Sequence[Ordinal]
    threads: Ordinal
    calls: Ordinal  # of each arm at each batch size
    seconds: Amount  # after which no further round of calls begins, at each batch size


@dataclass(frozen=True, kw_only=True)
class LatencyAnswer:
    """The measured latencies, a group for each batch size."""

    groups: Sequence[LatencyGroup]


def order_path(folder: TrialFolder) -> Path:
    """Return the path of a process's order."""
    return folder.path / "order.json"


def answer_path(folder: TrialFolder) -> Path:
    """Return the path of a process's answer."""
    return folder.path / "answer.json"


def write_message(
    path: Path, message: ExportOrder | ExportAnswer | LatencyOrder | LatencyAnswer
) -> None:
    """Write an order or an answer, sealed."""
    content: dict[str, Any] = asdict(message)
    write_atomically(path, sealed_text(content), durable=False)


def read_order(folder: TrialFolder, kind: type[M]) -> M:
    """Read the order of a process; raises BadFile."""
    return decode_file(kind, order_path(folder), ORDER_FORMAT)


def read_answer(folder: TrialFolder, kind: type[M]) -> M:
    """Read the answer of a process; raises BadFile."""
    return decode_file(kind, answer_path(folder), ANSWER_FORMAT)
