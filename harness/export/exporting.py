"""Exports the model of a recorded trial, in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from harness.core.errors import BadInput, did_you_mean
from harness.core.paths import TrialFolder
from harness.core.progress import report_progress
from harness.core.scratch import run_folder
from harness.export.record import (
    FORMATS,
    ORDER_FILE,
    ExportOrder,
    FormatName,
    TrialExport,
    read_export,
)
from harness.launch.hold import hold_machine
from harness.launch.tasks import run_task
from harness.records.record import Record
from harness.sweep.axes import Axes
from harness.sweep.cell import Trial
from harness.sweep.cluster import Profile

TIMEOUT = 3600.0  # seconds for the process
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
# The axes of training that a model keeps when it serves. All others decide how it was trained:
# several ranks, a compiler, or precisions, of which only the parameters remain.
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


def export_trial(
    record: Record,
    folder: TrialFolder,
    formats: Sequence[FormatName],
    profile: Profile,
    batch_sizes: Sequence[int],
) -> TrialExport:
    """Export the best parameters that a trial has kept to some formats, and time calls of each.

    The models go into the trial's folder once all agree with eager mode, in place of earlier ones. Waits
    until no other command measures on this machine. Raises BadInput for a trial that has kept no
    parameters and for one of a script, and HarnessError where they are damaged, a format can't hold the
    model or its file computes something else: what was exported before stays, and so does a log that the
    error names.
    """
    trial = record.trial
    trial.cell.workload.require_class()
    checkpoint = None if record.rank0 is None else record.rank0.checkpoint
    if checkpoint is None:
        raise BadInput(
            f"{trial.id}: found no parameters, as its sweep has checkpoint: none; needed:"
            " harness run SWEEP --set checkpoint=best --force, which trains it again"
        )
    order = ExportOrder(
        checkpoint=str((folder.path / checkpoint).absolute()),
        formats=formats,
        batch_sizes=batch_sizes,
    )

    def write_order(process_folder: TrialFolder) -> None:
        text = json.dumps(asdict(order))
        (process_folder.path / ORDER_FILE).write_text(text, encoding="utf-8")

    axes = Axes(**{name: trial.cell.axes.value(name) for name in SERVED_AXES})
    served = Trial(cell=replace(trial.cell, axes=axes), seed=trial.seed)
    base = Path() if record.settings is None else Path(record.settings.base_folder)
    with hold_machine(profile, f"harness export {trial.id}"), run_folder("export") as scratch:
        report_progress(f"exporting to {', '.join(formats)}")
        done = run_task("export", served, base, profile, TIMEOUT, scratch, write_order)
        exported = read_export(done)
        assert exported is not None  # the process has succeeded
        # First beside the earlier one, so that there is never half of one.
        aside = folder.path / ".export"
        shutil.rmtree(aside, ignore_errors=True)
        shutil.copytree(done.export_folder, aside)
        shutil.rmtree(folder.export_folder, ignore_errors=True)
        aside.rename(folder.export_folder)
    return exported
