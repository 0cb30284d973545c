"""Exports the model of a recorded trial and measures its latency, each in separate processes."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.core.errors import BadFile, BadInput, HarnessError
from harness.core.packages import installed_version
from harness.core.paths import TrialFolder
from harness.launch.unmeasured import run_unmeasured
from harness.records.environment import describe_hardware
from harness.records.record import Record
from harness.serving.orders import (
    ExportAnswer,
    ExportOrder,
    LatencyAnswer,
    LatencyOrder,
    order_path,
    read_answer,
    write_message,
)
from harness.serving.record import (
    ExportedModel,
    ExportParity,
    FormatName,
    LatencyGroup,
    TrialExport,
    read_export,
    write_export,
)
from harness.spec.axes import Axes
from harness.spec.cell import Trial
from harness.spec.cluster import Profile
from harness.training.manifest import WEIGHTS_FILE, CheckpointManifest, read_manifest

TIMEOUT = 3600.0  # seconds for one process
# Whose versions are recorded, where they are installed.
PACKAGES = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime")
SHOWN = 5  # samples that an error names
# The axes of training that a model keeps when it serves. All others decide how it was trained:
# several ranks, a compiler, or autocast, whose parameters are fp32 too.
SERVED_AXES = ("batch_size", "channels_last")


@dataclass(frozen=True, kw_only=True)
class LatencyPlan:
    """What to measure of each way to run the model."""

    batch_sizes: Sequence[int]
    threads: Sequence[int]
    calls: int  # at each batch size and number of threads; 0 for no measurement
    seconds: float  # after which no further round begins, at each of them


@dataclass(frozen=True)
class TrialCheckpoint:
    """The checkpoint of a trial that is on record and done."""

    record: Record
    folder: TrialFolder
    path: Path  # of the checkpoint
    manifest: CheckpointManifest

    @property
    def weights(self) -> str:
        """Return the SHA-256 of the file with the parameters."""
        return self.manifest.files[WEIGHTS_FILE].sha256


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
    return TrialCheckpoint(
        record=record,
        folder=TrialFolder(folder),
        path=path,
        manifest=read_manifest(path, record.trial.id),
    )


def export_trial(
    checkpoint: TrialCheckpoint,
    formats: Sequence[FormatName],
    plan: LatencyPlan,
    tolerance: float | None,
    profile: Profile,
    scratch: Path,
    on_progress: Callable[[str], None],
) -> TrialExport:
    """Export a model to each format, and time it together with those that were exported before.

    A model goes into the trial's folder once it agrees with eager mode, in place of an earlier one,
    and the record of the exports is written each time. `scratch` is for files of the processes.
    Raises BadInput for a format that can't hold the model, and HarnessError for a file that
    computes something else: what was exported before stays.
    """
    export = _begin(checkpoint, profile)
    for name in formats:
        on_progress(f"exporting to {name}")
        model, device = _export(checkpoint, name, tolerance, profile, scratch)
        # Models of another device can't be called next to this one.
        before = export.models if device == export.device else ()
        remaining = [other for other in before if other.format != name]
        export = replace(
            export, models=[*remaining, model], at=time.time(), device=device, latency=()
        )
        write_export(checkpoint.folder, export)
    check_files(checkpoint.folder, export)
    groups: list[LatencyGroup] = []
    for threads in plan.threads if plan.calls else ():
        on_progress(f"measuring latency with {threads} threads")
        groups += _measure(checkpoint, export, plan, threads, profile, scratch)
    export = replace(export, latency=groups, at=time.time())
    write_export(checkpoint.folder, export)
    return export


def _begin(checkpoint: TrialCheckpoint, profile: Profile) -> TrialExport:
    """Return the exports of a trial so far; those of other parameters do not count."""
    rank0 = checkpoint.record.rank0
    assert rank0 is not None  # it has named the checkpoint
    metrics: Mapping[str, float] = {}
    for evaluation in rank0.evaluations:
        if evaluation.step == checkpoint.manifest.step:
            metrics = evaluation.metrics
    before = read_export(checkpoint.folder)
    models: Sequence[ExportedModel] = ()
    device: str = profile.device
    if before is not None and before.weights == checkpoint.weights:
        models, device = before.models, before.device
    versions = {name: installed_version(name) for name in PACKAGES}
    return TrialExport(
        trial=checkpoint.record.trial.id,
        at=time.time(),
        step=checkpoint.manifest.step,
        weights=checkpoint.weights,
        recorded_metrics=metrics,
        target=rank0.target.name,
        device=device,
        hardware=describe_hardware(),
        packages={name: version for name, version in versions.items() if version is not None},
        models=models,
    )


def _export(
    checkpoint: TrialCheckpoint,
    name: FormatName,
    tolerance: float | None,
    profile: Profile,
    scratch: Path,
) -> tuple[ExportedModel, str]:
    """Export to one format, and move the files into the trial's folder.

    Returns the model, and the type of the device that it was exported on.
    """
    target = Path(tempfile.mkdtemp(dir=scratch)) / name
    order = ExportOrder(
        checkpoint=str(checkpoint.path.absolute()),
        format=name,
        target=str(target),
        tolerance=tolerance,
    )
    folder = _run("export", checkpoint, order, 1, profile, scratch)
    answer = read_answer(folder, ExportAnswer)
    parity = checked_parity(name, answer)
    _replace_folder(target, checkpoint.folder.exported_model(name))
    model = ExportedModel(
        format=name,
        bytes=sum(path.stat().st_size for path in _files_below(target)),
        files=digest_files(target),
        seconds=answer.seconds,
        parity=parity,
        inputs=answer.inputs,
        loader=answer.loader,
    )
    return model, answer.device


def _files_below(folder: Path) -> list[Path]:
    """Return the files of a folder and of the folders in it, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def digest_files(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file below a folder, by its path in the folder."""
    digests = {}
    for path in _files_below(folder):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        digests[path.relative_to(folder).as_posix()] = digest
    return digests


def check_files(folder: TrialFolder, export: TrialExport) -> None:
    """Raise BadFile unless the models in a trial's folder are those that were compared."""
    for model in export.models:
        path = folder.exported_model(model.format)
        if digest_files(path) != model.files:
            raise BadFile(
                f"{path}: found other files than those that were compared with eager mode; needed:"
                f" harness export {export.trial} --to {model.format}, which writes them again"
            )


def checked_parity(name: str, answer: ExportAnswer) -> ExportParity:
    """Return the comparison of an exported model with eager mode.

    Raises BadInput if the format can't hold the model, and HarnessError if samples disagree, with
    the first of them by their indices.
    """
    if answer.problem is not None or answer.parity is None:
        raise BadInput(f"--to {name}: {answer.problem}")
    parity = answer.parity
    if parity.is_equal:
        return parity
    named = []
    for sample in parity.disagreements[:SHOWN]:
        gap = "not finite" if sample.difference is None else f"{sample.difference:.2g}"
        named.append(f"{sample.index} ({gap})")
    hidden = parity.disagreeing - len(named)
    more = f" and {hidden} more" if hidden else ""
    raise HarnessError(
        f"{name}: {parity.disagreeing} of {parity.samples} samples of the test set differ from eager"
        f" mode by more than {parity.tolerance:.2g}: {', '.join(named)}{more}; nothing was exported"
    )


def _measure(
    checkpoint: TrialCheckpoint,
    export: TrialExport,
    plan: LatencyPlan,
    threads: int,
    profile: Profile,
    scratch: Path,
) -> Sequence[LatencyGroup]:
    """Measure the latency of all exported models with one number of threads."""
    order = LatencyOrder(
        checkpoint=str(checkpoint.path.absolute()),
        models={
            model.format: str(checkpoint.folder.exported_model(model.format).absolute())
            for model in export.models
        },
        tolerances={model.format: model.parity.tolerance for model in export.models},
        batch_sizes=plan.batch_sizes,
        threads=threads,
        calls=plan.calls,
        seconds=plan.seconds,
    )
    folder = _run("latency", checkpoint, order, threads, profile, scratch)
    return read_answer(folder, LatencyAnswer).groups


def _run(
    task: str,
    checkpoint: TrialCheckpoint,
    order: ExportOrder | LatencyOrder,
    threads: int,
    profile: Profile,
    scratch: Path,
) -> TrialFolder:
    """Run a process that works on the trial's model, and return its folder."""
    recorded, settings = checkpoint.record.trial, checkpoint.record.settings
    # As it is served: by one process, in the precision of its parameters.
    kept = {name: getattr(recorded.cell.axes, name) for name in SERVED_AXES}
    axes = Axes(**kept, num_threads=threads)
    if recorded.cell.axes.precision == "fp64":
        axes = replace(axes, precision="fp64")
    trial = Trial(cell=replace(recorded.cell, axes=axes), seed=recorded.seed)
    base_folder = Path() if settings is None else Path(settings.base_folder)
    return run_unmeasured(
        task,
        trial,
        base_folder,
        profile,
        TIMEOUT,
        scratch,
        lambda folder: write_message(order_path(folder), order),
    )


def _replace_folder(new: Path, path: Path) -> None:
    """Move a folder to where an earlier one may be, so that at no time there is half of one."""
    path.parent.mkdir(exist_ok=True)
    aside = path.with_name(f".{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(new, aside)
    shutil.rmtree(path, ignore_errors=True)
    aside.rename(path)
