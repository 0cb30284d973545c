"""Exports the model of a recorded trial, in a process for each format."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.core.errors import BadInput, HarnessError, did_you_mean
from harness.core.packages import installed_version
from harness.core.paths import TrialFolder
from harness.launch.unmeasured import run_unmeasured
from harness.records.environment import describe_hardware
from harness.records.record import Record
from harness.serving.record import (
    FORMATS,
    ExportAnswer,
    ExportedModel,
    ExportOrder,
    FormatName,
    TrialExport,
    order_path,
    read_answer,
    read_export,
    write_export,
    write_message,
)
from harness.spec.axes import Axes
from harness.spec.cell import Trial
from harness.spec.cluster import Profile
from harness.training.best import WEIGHTS_FILE, BestSeal, read_best

TIMEOUT = 3600.0  # seconds for one process
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
SHOWN = 5  # samples that an error names
# The axes of training that a model keeps when it serves. All others decide how it was trained:
# several ranks, a compiler, or autocast, whose parameters are fp32 too.
SERVED_AXES = ("batch_size", "channels_last", "num_threads")


@dataclass(frozen=True)
class TrialCheckpoint:
    """The checkpoint of a trial that is on record and done."""

    record: Record
    folder: TrialFolder
    path: Path  # of the checkpoint
    seal: BestSeal

    @property
    def weights(self) -> str:
        """Return the SHA-256 of the file with the parameters."""
        return self.seal.files[WEIGHTS_FILE]


def check_formats(names: Sequence[str]) -> list[FormatName]:
    """Return formats as they are; raises BadInput for an unknown one, and for missing packages."""
    checked: list[FormatName] = []
    for name in names:
        if name not in FORMATS:
            raise BadInput(f"--to: found {name!r}; {did_you_mean(name, FORMATS)}")
        for package in ONNX_PACKAGES if name == "onnx" else ():
            if importlib.util.find_spec(package) is None:
                raise BadInput(
                    f"--to onnx: found no package {package}; needed: pip install"
                    " 'distributed-training-harness[export]'"
                )
        checked.append(FORMATS[FORMATS.index(name)])
    return checked


def find_checkpoint(record: Record, folder: Path) -> TrialCheckpoint:
    """Return the checkpoint that a trial has kept; `folder` is the trial's.

    Every file of it is read. Raises BadInput for a trial that has kept none and for one of a
    script, and BadFile for a checkpoint that is damaged.
    """
    record.trial.cell.workload.require_class()
    relative_path = None if record.rank0 is None else record.rank0.checkpoint
    if relative_path is None:
        raise BadInput(
            f"{record.trial.id}: found no parameters, as its sweep has checkpoint: none; needed:"
            " harness run SWEEP --set checkpoint=best --force, which trains it again"
        )
    path = folder / relative_path
    seal = read_best(path, record.trial.id)
    return TrialCheckpoint(record, TrialFolder(folder), path, seal)


def export_trial(
    checkpoint: TrialCheckpoint,
    order: ExportOrder,
    profile: Profile,
    scratch: Path,
) -> TrialExport:
    """Export a model to the order's format, and return all exports of the trial.

    The model goes into the trial's folder once it agrees with eager mode, in place of an earlier one.
    `scratch` is for files of the process, the order's `target` is in it. Raises BadInput for a format that
    can't hold the model, and HarnessError for a file that computes something else: what was exported
    before stays.
    """
    record = checkpoint.record
    assert record.rank0 is not None  # it has named the checkpoint
    before = read_export(checkpoint.folder)
    answer = _run(checkpoint, order, profile, scratch)
    model = checked_model(order.format, answer)
    models = [model]
    if before is not None and before.weights == checkpoint.weights:
        models = [*(other for other in before.models if other.format != order.format), model]
    _replace_folder(Path(order.target), checkpoint.folder.exported_model(order.format))
    versions = {name: installed_version(name) for name in ("torch", *ONNX_PACKAGES)}
    hardware = describe_hardware()
    processor = hardware.cpu
    if answer.device == "cuda" and hardware.gpus:
        processor = hardware.gpus[0].name
    export = TrialExport(
        trial=record.trial.id,
        at=time.time(),
        step=checkpoint.seal.step,
        weights=checkpoint.weights,
        target=record.rank0.target.name,
        device=answer.device,
        processor=processor,
        packages={name: version for name, version in versions.items() if version is not None},
        models=models,
    )
    write_export(checkpoint.folder, export)
    return export


def checked_model(name: str, answer: ExportAnswer) -> ExportedModel:
    """Return the exported model of an answer.

    Raises BadInput if the format can't hold the model, and HarnessError if samples disagree, with
    the first of them by their indices.
    """
    if answer.model is None:
        raise BadInput(f"--to {name}: {answer.problem}")
    parity = answer.model.parity
    count = len(parity.disagreeing)
    if count:
        named = ", ".join(map(str, parity.disagreeing[:SHOWN]))
        more = f" and {count - SHOWN} more" if count > SHOWN else ""
        largest = parity.largest_difference
        gap = "not finite" if largest is None else f"{largest:.2g}"
        raise HarnessError(
            f"{name}: {count} of {parity.samples} samples of the test set differ from eager mode by more"
            f" than {parity.tolerance:.2g}, by up to {gap}: {named}{more}; nothing was exported"
        )
    return answer.model


def _run(
    checkpoint: TrialCheckpoint, order: ExportOrder, profile: Profile, scratch: Path
) -> ExportAnswer:
    """Run a process that works on the trial's model, and return its answer."""
    recorded, settings = checkpoint.record.trial, checkpoint.record.settings
    # As it is served: by one process, in the precision of its parameters.
    axes = Axes(**{name: recorded.cell.axes.value(name) for name in SERVED_AXES})
    if recorded.cell.axes.precision == "fp64":
        axes = replace(axes, precision="fp64")
    trial = Trial(cell=replace(recorded.cell, axes=axes), seed=recorded.seed)
    base_folder = Path() if settings is None else Path(settings.base_folder)

    def prepare(folder: TrialFolder) -> None:
        write_message(order_path(folder), order)

    folder = run_unmeasured("export", trial, base_folder, profile, TIMEOUT, scratch, prepare)
    return read_answer(folder)


def _replace_folder(new: Path, path: Path) -> None:
    """Move a folder to where an earlier one may be, so that at no time there is half of one."""
    path.parent.mkdir(exist_ok=True)
    aside = path.with_name(f".{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(new, aside)
    shutil.rmtree(path, ignore_errors=True)
    aside.rename(path)


def export_formats(
    checkpoint: TrialCheckpoint,
    formats: Sequence[FormatName],
    profile: Profile,
    scratch: Path,
    *,
    tolerance: float | None,
    batch_sizes: Sequence[int],
    calls: int,
    on_progress: Callable[[str], None],
) -> TrialExport:
    """Export a model to each format in turn, as `export_trial` does; return all of the trial's exports."""
    export: TrialExport | None = None
    for name in formats:
        on_progress(f"exporting to {name}")
        order = ExportOrder(
            checkpoint=str(checkpoint.path.absolute()),
            format=name,
            target=str(Path(tempfile.mkdtemp(dir=scratch)) / name),
            tolerance=tolerance,
            batch_sizes=batch_sizes,
            calls=calls,
        )
        export = export_trial(checkpoint, order, profile, scratch)
    assert export is not None, "one format at least"
    return export
