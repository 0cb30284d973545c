"""One rank of a trial that is traced instead of measured.

Started as `harness.training.worker` is, with the same FOLDER. It reads FOLDER/trial.json and
FOLDER/recording.json, and leaves a trace besides its result.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace

from harness.core.processes import end_process
from harness.training.entry import before_torch

if __name__ == "__main__":
    before_torch()

import numpy as np

from harness.core.paths import TrialFolder
from harness.records.record import RankResult
from harness.records.series import Series
from harness.records.trace import read_recording, trace_path
from harness.reproduce.snapshot import SnapshotRecorder
from harness.training import worker
from harness.training.build import build_trial
from harness.training.ranks import Ranks
from harness.training.recorder import Recorder
from harness.training.state import TrainingState
from harness.training.train import Trainer


def main(arguments: Sequence[str] | None = None) -> int:
    """Trace one rank, and return the process's exit code as `worker.main` does."""
    return worker.main(arguments, trace_rank)


def trace_rank(
    folder: TrialFolder, ranks: Ranks, entered: RankResult, state: TrainingState
) -> RankResult:
    """Train up to the last step to record; return a result with losses only."""
    recording = read_recording(folder.path)
    with worker.joined(folder, ranks, worker.COLLECTIVE_TIMEOUT) as (assignment, mesh):
        workload = worker.load_workload(assignment)
        parts = build_trial(assignment, workload, folder, mesh, state)
        path = trace_path(folder.path, ranks.rank)
        recorder_class = SnapshotRecorder if recording.snapshots else Recorder
        with recorder_class(parts, state, recording, path) as recorder:
            trainer = Trainer(parts, state, recorder)
            trainer.run(min(recording.last_step, parts.total_steps))
        del parts, trainer, recorder  # the process group ends after them
        gc.collect()
    return replace(entered, loss=Series.pack(np.asarray(state.losses, dtype=np.float32)))


if __name__ == "__main__":
    end_process(main())  # at once, as `harness.training.worker` does
