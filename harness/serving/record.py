"""The file that `harness export` writes: parity and latencies of a trial's exported models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from harness.core.paths import TrialFolder, write_atomically
from harness.records.bounds import Amount, Moment, Number, Ordinal
from harness.records.decode import FileFormat, decode_file
from harness.records.environment import Hardware
from harness.records.seal import sealed_text

SCHEMA = "2.0"
EXPORT_FORMAT = FileFormat(
    name="trial's exports", schema=SCHEMA, remedy="harness export writes it again", is_sealed=True
)
FormatName = Literal["onnx", "torch-export", "aotinductor", "save_pretrained"]
# The ways to run the model that need no export.
EAGER, COMPILED = "eager", "compiled"


@dataclass(frozen=True, kw_only=True)
class SampleDifference:
    """How far the outputs of one sample of the test set are from those of eager mode."""

    index: Number  # of the sample, from 0
    difference: Amount | None  # the largest of its outputs; None for one that is not finite


@dataclass(frozen=True, kw_only=True)
class ExportParity:
    """How an exported model compares with eager mode, over a whole test set."""

    samples: Ordinal
    metrics: Mapping[str, float]  # of eager mode, by name
    exported_metrics: Mapping[str, float]
    largest_difference: Amount | None  # of all outputs; None for one that is not finite
    # The largest difference of eager mode from the same model in fp64; None where it was not needed,
    # because the tolerance was set by hand.
    rounding_error: Amount | None
    tolerance: Amount  # the largest difference that is allowed
    disagreeing: Number  # samples with a larger one
    # Of these samples, those with the lowest indices.
    disagreements: Sequence[SampleDifference] = ()
    changed: Number = 0  # samples of a classifier whose predicted class changed
    changed_indices: Sequence[Number] = ()  # the lowest of them

    @property
    def is_equal(self) -> bool:
        """Return whether all samples agree."""
        return self.disagreeing == 0


@dataclass(frozen=True, kw_only=True)
class ModelInput:
    """A tensor that an exported model takes."""

    name: str  # as the file calls it
    dtype: str  # as NumPy calls it
    shape: Sequence[str]  # of each axis its size, or its name where the size may vary


@dataclass(frozen=True, kw_only=True)
class ExportedModel:
    """A model in one format, which agrees with eager mode."""

    format: FormatName
    bytes: Number  # of all its files
    files: Mapping[str, str]  # the SHA-256 of each, by its path in the format's folder
    seconds: Amount  # duration of the export
    parity: ExportParity
    inputs: Sequence[ModelInput] = ()  # in the order in which they are passed
    loader: str | None = None  # the class of transformers that loads the folder


@dataclass(frozen=True, kw_only=True)
class ArmTimes:
    """How long calls of one way to run the model took, round by round."""

    arm: str  # eager, compiled, or a format
    # Until the file could be called, or the model was compiled for all batches; 0 in eager mode.
    load_seconds: Amount
    first_call_seconds: Amount  # after that
    nanoseconds: Sequence[Number]  # of each call after the first


@dataclass(frozen=True, kw_only=True)
class LatencyGroup:
    """Arms that were called in turn, under the same conditions."""

    batch_size: Ordinal
    threads: Ordinal
    arms: Sequence[ArmTimes]  # each with as many calls as the others
    left_out: Mapping[str, str] = field(default_factory=dict)  # arms that could not run, and why


@dataclass(frozen=True, kw_only=True)
class TrialExport:
    """All exports of a trial, and their latencies as they were measured last."""

    schema: str = SCHEMA
    trial: str  # its id
    at: Moment  # when it was written
    step: Number  # of the checkpoint, whose parameters are exported
    weights: str  # the SHA-256 of the checkpoint's weights
    recorded_metrics: Mapping[str, float]  # of the checkpoint, as the trial has recorded them
    target: str  # the metric that the workload is trained towards
    device: str  # that it was exported and measured on
    hardware: Hardware
    packages: Mapping[str, str]  # of the measurement: name -> version
    models: Sequence[ExportedModel]
    latency: Sequence[LatencyGroup] = ()

    def model(self, name: str) -> ExportedModel | None:
        """Return the model in a format, None where there is none."""
        for model in self.models:
            if model.format == name:
                return model
        return None


def write_export(folder: TrialFolder, export: TrialExport) -> None:
    """Write the exports of a trial into its folder, sealed."""
    write_atomically(folder.export_path, sealed_text(asdict(export)))


def read_export(folder: TrialFolder) -> TrialExport | None:
    """Read the exports of a trial, None where there are none; raises BadFile."""
    if not folder.export_path.exists():
        return None
    return decode_file(TrialExport, folder.export_path, EXPORT_FORMAT)
