"""Exporting a trained model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.core.scratch import run_folder
from harness.launch.hold import hold_machine
from harness.serving.exporting import TrialCheckpoint, export_formats
from harness.serving.record import FormatName, TrialExport
from harness.spec.cluster import Profile


def export_model(
    checkpoint: TrialCheckpoint,
    formats: Sequence[FormatName],
    profile: Profile,
    *,
    tolerance: float | None,
    batch_sizes: Sequence[int],
    calls: int,
    on_progress: Callable[[str], None],
) -> TrialExport:
    """Export a trial's model, measure its latency, and return all exports of the trial.

    Waits until no other command measures on this machine. Raises HarnessError
    as `export_trial` does; a log that it names stays.
    """
    activity = f"harness export {checkpoint.record.trial.id}"
    with (
        hold_machine(profile, activity),
        run_folder("export") as scratch,
    ):
        return export_formats(
            checkpoint,
            formats,
            profile,
            scratch,
            tolerance=tolerance,
            batch_sizes=batch_sizes,
            calls=calls,
            on_progress=on_progress,
        )
