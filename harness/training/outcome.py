"""What every training leaves in the result of a rank: the series of its steps, and its environment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.records.assignment import Assignment
from harness.records.environment import Environment, describe_environment
from harness.records.series import Series
from harness.spec.files import describe_dynamic_files
from harness.training.state import TrainingState


def pack_series(state: TrainingState) -> dict[str, Any]:
    """Return those fields of a RankResult that a trial leaves even if it fails."""
    step_phases = {}
    for name, seconds in state.step_phases.items():
        if not np.isnan(seconds).all():  # a phase that was never entered
            step_phases[name] = Series.pack(np.asarray(seconds, dtype=np.float32))
    moments = {}
    if state.epoch_began_at:  # which rank 0 alone knows
        moments = {
            "epoch_began_at": Series.pack(np.asarray(state.epoch_began_at, dtype=np.float64)),
            "epoch_ended_at": Series.pack(np.asarray(state.epoch_ended_at, dtype=np.float64)),
        }
    return {
        "loss": Series.pack(np.asarray(state.losses, dtype=np.float32)),
        "step_seconds": Series.pack(np.asarray(state.step_seconds, dtype=np.float64)),
        "step_phases": step_phases,
        "refilled_steps": list(state.refilled_steps),
        **moments,
        "interruptions": list(state.interruptions),
        "refused_checkpoints": list(state.refused_checkpoints),
        "saves": state.saves,
    }


def environment_of(assignment: Assignment) -> Environment:
    """Return this process's environment, with the parts that only the launcher knows."""
    cell = assignment.trial.cell
    return replace(
        describe_environment(assignment.packages, axes=cell.environment),
        code=assignment.code,
        mlflow=assignment.mlflow,
        repository=assignment.repository,
        installed=assignment.installed,
        dynamic_files=describe_dynamic_files(cell.workload, Path(assignment.base_folder)),
    )
