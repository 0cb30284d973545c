"""Exports the model of a recorded trial, in a process of its own."""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.core.errors import BadInput, did_you_mean
from harness.core.paths import TrialFolder
from harness.core.progress import report_progress
from harness.core.scratch import run_folder
from harness.launch.hold import hold_machine
from harness.launch.unmeasured import run_unmeasured
from harness.records.record import Record
from harness.serving.record import (
    FORMATS,
    ExportOrder,
    FormatName,
    TrialExport,
    read_export,
    write_order,
)
from harness.spec.axes import Axes
from harness.spec.cell import Trial
from harness.spec.cluster import Profile
from harness.training.best import WEIGHTS_FILE, BestSeal, read_best

TIMEOUT = 3600.0  # seconds for the process
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
# The axes of training that a model keeps when it serves. All others decide how it was trained:
# several ranks, a compiler, or autocast, whose parameters are fp32 too.
SERVED_AXES = ("batch_size", "channels_last", "num_threads")


def check_formats(names: Sequence[str]) -> list[FormatName]:
    """Return formats as they are; raises BadInput for an unknown one, and for missing packages."""
    checked: list[FormatName] = []
    for name in names:
        if name not in FORMATS:
            raise BadInput(f"--to: found {name!r}; {did_you_mean(name, FORMATS)}")
        checked.append(FORMATS[FORMATS.index(name)])
    missing = [name for name in ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if "onnx" in checked and missing:
        raise BadInput(
            f"--to onnx: found no package {missing[0]}; needed: pip install"
            " 'distributed-training-harness[export]'"
        )
    return checked


def find_checkpoint(record: Record, folder: Path) -> tuple[Path, BestSeal]:
    """Return the checkpoint that a trial has kept in its folder, and its seal.

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
    return folder / relative_path, read_best(folder / relative_path, record.trial.id)


def export_trial(
    record: Record,
    folder: TrialFolder,
    formats: Sequence[FormatName],
    profile: Profile,
    *,
    tolerance: float | None,
    batch_sizes: Sequence[int],
    calls: int,
) -> TrialExport:
    """Export a trial's model to some formats.

    The models go into the trial's folder once all agree with eager mode, in place of earlier ones. Waits
    until no other command measures on this machine. Raises BadInput as `find_checkpoint` does, and
    HarnessError where a format can't hold the model or its file computes something else: what was exported
    before stays, and so does a log that the error names.
    """
    checkpoint, seal = find_checkpoint(record, folder.path)
    assert record.rank0 is not None  # it has named the checkpoint
    requested = TrialExport(
        trial=record.trial.id,
        at=time.time(),
        step=seal.step,
        weights=seal.files[WEIGHTS_FILE],
        target=record.rank0.target.name,
    )
    order = ExportOrder(
        export=requested,
        checkpoint=str(checkpoint.absolute()),
        formats=formats,
        tolerance=tolerance,
        batch_sizes=batch_sizes,
        calls=calls,
    )
    base_folder = Path() if record.settings is None else Path(record.settings.base_folder)
    with (
        hold_machine(profile, f"harness export {requested.trial}"),
        run_folder("export") as scratch,
    ):
        report_progress(f"exporting to {', '.join(formats)}")
        done = run_unmeasured(
            "export",
            _as_served(record.trial),
            base_folder,
            profile,
            TIMEOUT,
            scratch,
            lambda folder: write_order(folder, order),
        )
        exported = read_export(done)
        assert exported is not None  # the process has succeeded
        # First beside the earlier one, so that there is never half of one.
        aside = folder.path / ".export"
        shutil.rmtree(aside, ignore_errors=True)
        shutil.copytree(done.export_folder, aside)
        shutil.rmtree(folder.export_folder, ignore_errors=True)
        aside.rename(folder.export_folder)
    return exported


def _as_served(trial: Trial) -> Trial:
    """Return the trial as its model is served: by one process, in the precision of its parameters."""
    recorded = trial.cell.axes
    axes = Axes(**{name: recorded.value(name) for name in SERVED_AXES})
    if recorded.precision == "fp64":
        axes = replace(axes, precision="fp64")
    return Trial(cell=replace(trial.cell, axes=axes), seed=trial.seed)
