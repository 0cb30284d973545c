"""The one rank of a trial whose operations are measured, one by one, instead of the trial.

Started as `harness.training.worker` is, with the same FOLDER, in which it leaves the catalogue.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence

from harness.core.processes import end_process
from harness.training.entry import before_torch

if __name__ == "__main__":
    before_torch()

from harness.core.paths import TrialFolder
from harness.records.record import RankResult
from harness.reproduce.catalog import THREADS, write_operations
from harness.reproduce.operations import OperationMeter
from harness.training import worker
from harness.training.build import build_trial
from harness.training.model import place_batch
from harness.training.ranks import Ranks
from harness.training.state import TrainingState


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the operations of one rank, and return the process's exit code as `worker.main` does."""
    return worker.main(arguments, measure_rank)


def measure_rank(
    folder: TrialFolder, ranks: Ranks, entered: RankResult, state: TrainingState
) -> RankResult:
    """Train one step, and measure all operations of a second one, which finds optimizer state."""
    with worker.joined(folder, ranks, worker.COLLECTIVE_TIMEOUT) as (assignment, mesh):
        workload = worker.load_workload(assignment)
        parts = build_trial(assignment, workload, folder, mesh, state)
        batch = next(iter(parts.loader))[2]
        batch = place_batch(batch, parts.axes, mesh.device)
        parts.clock.start()
        parts.train_step.run(batch)
        meter = OperationMeter(THREADS if mesh.device.type == "cpu" else THREADS[:1])
        with meter:
            parts.train_step.run(batch)
        parts.determinism.check_effect()
        write_operations(folder.path, meter.results())
        del parts
        gc.collect()
    return entered


if __name__ == "__main__":
    end_process(main())  # at once, as `harness.training.worker` does
