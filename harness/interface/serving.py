"""Exporting a trained model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.interface.folders import run_folder
from harness.interface.machine import hold_machine
from harness.serving.exporting import LatencyPlan, TrialCheckpoint, export_trial
from harness.serving.record import FormatName, TrialExport
from harness.spec.cluster import Profile


def export_model(
    checkpoint: TrialCheckpoint,
    formats: Sequence[FormatName],
    plan: LatencyPlan,
    tolerance: float | None,
    profile: Profile,
    *,
    wait: bool,
    on_message: Callable[[str], None],
    on_progress: Callable[[str], None],
) -> TrialExport:
    """Export a trial's model, measure its latency, and return all exports of the trial.

    `wait` and `on_message` are those of `hold_machine`. Raises HarnessError as `export_trial` does; a
    log that it names stays.
    """
    activity = f"harness export {checkpoint.record.trial.id}"
    with (
        hold_machine(profile, activity, wait=wait, on_message=on_message),
        run_folder("export") as scratch,
    ):
        return export_trial(
            checkpoint, formats, plan, tolerance, profile, scratch.path, on_progress
        )
