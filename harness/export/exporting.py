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
        checked.append(name)
    if "onnx" not in checked:
        return checked
    for package in ONNX_PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise BadInput(
                f"--to onnx: found no package {package}; needed: pip install"
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
    checkpoint_path = (folder.path / checkpoint).absolute()
    order = ExportOrder(
        checkpoint=str(checkpoint_path),
        formats=formats,
        batch_sizes=batch_sizes,
    )

    def write_order(process_folder: TrialFolder) -> None:
        path = process_folder.path / ORDER_FILE
        path.write_text(json.dumps(asdict(order)), encoding="utf-8")

    served = _served_trial(trial)
    base_folder = Path()
    if record.settings is not None:
        base_folder = Path(record.settings.base_folder)
    with hold_machine(profile, f"harness export {trial.id}"), run_folder("export") as scratch:
        report_progress(f"exporting to {', '.join(formats)}")
        done = run_task("export", served, base_folder, profile, TIMEOUT, scratch, write_order)
        exported = read_export(done)
        assert exported is not None  # the process has succeeded
        _replace_exports(folder, done.export_folder)
    return exported


def _served_trial(trial: Trial) -> Trial:
    """Return a trial with only those axes that its model keeps when it serves."""
    values = {name: trial.cell.axes.value(name) for name in SERVED_AXES}
    cell = replace(trial.cell, axes=Axes(**values))
    return Trial(cell=cell, seed=trial.seed)


def _replace_exports(folder: TrialFolder, new: Path) -> None:
    """Replace a trial's exports by a copy of the folder `new`."""
    # First next to the earlier ones, so that there is never half of them.
    aside = folder.path / ".export"
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(new, aside)
    shutil.rmtree(folder.export_folder, ignore_errors=True)
    aside.rename(folder.export_folder)
