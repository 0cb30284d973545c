"""Traces a rank of a trial instead of measuring it: the task `trace` of `harness.training.worker`.

It reads FOLDER/trial.json and FOLDER/recording.json, and leaves a trace in addition to its result.
"""

from __future__ import annotations

from dataclasses import replace

from harness.core.paths import TrialFolder
from harness.records.record import RankResult
from harness.records.trace import read_recording
from harness.reproduce.recorder import Recorder
from harness.reproduce.snapshot import SnapshotRecorder
from harness.training.build import TrialParts
from harness.training.entry import joined
from harness.training.ranks import Ranks
from harness.training.state import TrainingState
from harness.training.train import Trainer


def trace_rank(
    folder: TrialFolder, ranks: Ranks, entered: RankResult, state: TrainingState
) -> RankResult:
    """Train up to the last step to record; return a result with losses only."""
    recording = read_recording(folder.path)
    with joined(folder, ranks) as (assignment, workload, mesh):
        parts = TrialParts(assignment, workload, folder, mesh, state)
        recorder_class = SnapshotRecorder if recording.snapshots else Recorder
        trainer = Trainer(parts, state)
        with recorder_class(parts, state, recording) as trainer.hooks:
            trainer.run(min(recording.last_step, parts.total_steps))
        del parts, trainer  # the process group ends after them
    return replace(entered, loss=state.result()["loss"])
