"""What saving costs: how long training stands still for a save, synchronously and asynchronously.

    python -m tests.programs.perf.saves

The base DistilBERT with AdamW, 66 million parameters, in one process. The two ways take turns, so that
a disk that slows down favors neither.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from harness.spec.saving import automatic_interval
from harness.training.checkpoint import Checkpointer, folder_aside
from harness.training.shards import Staging
from harness.training.state import TrainingState
from harness.training.train import Trainer
from tests.support.distilbert import distilbert
from tests.support.training import NoEvaluation, make_assignment, make_trainer
from workloads.options import DistilBertOptions
from workloads.sources import Tickets

MEAN_SECONDS_BETWEEN_FAILURES = 86_400.0


def trained(folder: Path, size: str) -> Trainer:
    """Return a trial of DistilBERT that has taken steps, so that its optimizer has a state."""
    workload = distilbert(DistilBertOptions(size=size), Tickets(rows=64))  # type: ignore[arg-type]
    trainer = make_trainer(
        make_assignment(steps=2, batch_size=4), workload, folder, hooks=NoEvaluation()
    )
    trainer.run()
    return trainer


def save_synchronously(checkpointer: Checkpointer, state: TrainingState) -> float:
    """Return the seconds that a save takes, all of which training stands still for."""
    start = time.perf_counter()
    checkpointer.save(checkpointer.folder.resume_checkpoints, state)
    return time.perf_counter() - start


def save_asynchronously(
    checkpointer: Checkpointer, state: TrainingState, staging: Staging
) -> tuple[float, float, float]:
    """Return the seconds that training stands still, and that the rest takes on the clock and a core."""
    folder = checkpointer.folder.resume_checkpoints
    start = time.perf_counter()
    part = staging.copy(checkpointer.capture(state))
    blocked = time.perf_counter() - start
    start, cpu_start = time.perf_counter(), time.process_time()
    written = checkpointer.write(folder_aside(folder, state.step), part)
    checkpointer.commit(folder, state.step, [asdict(written)], keep=2, not_resumable=None)
    return blocked, time.perf_counter() - start, time.process_time() - cpu_start


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what both ways cost, and how much of the wall time that is."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.perf.saves", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size", default="base", help="of DistilBERT: tiny, small or base")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        trainer = trained(Path(folder) / "trial", options.size)
        checkpointer, state = trainer.parts.checkpointer, trainer.state
        staging = Staging(checkpointer.mesh.device)
        tensors = checkpointer.capture(state).tensors
        size = sum(tensor.nbytes for tensor in tensors.values())
        synchronous: list[float] = []
        asynchronous: list[tuple[float, float, float]] = []
        for _ in range(options.rounds + 1):  # the first one touches new memory
            state.step += 1
            synchronous.append(save_synchronously(checkpointer, state))
            state.step += 1
            asynchronous.append(save_asynchronously(checkpointer, state, staging))
    blocked, writing, cpu = (median(values) for values in zip(*asynchronous[1:], strict=True))
    whole = median(synchronous[1:])
    print(
        f"DistilBERT {options.size}: {trainer.parts.parameter_count:,} parameters, {size / 2**20:,.0f} MiB"
    )
    print(f"synchronous: blocked for {whole:.3f} s")
    print(
        f"asynchronous: blocked for {blocked:.3f} s, then {writing:.3f} s in a thread ({cpu:.3f} s of a core)"
    )
    print(f"memory of the copy: {size / 2**20:,.0f} MiB")
    for name, cost in (("as on a GPU", blocked), ("as on a CPU", blocked + cpu)):
        interval = automatic_interval(cost, MEAN_SECONDS_BETWEEN_FAILURES)
        print(f"auto, {name}: every {interval:.0f} s, {cost / interval:.2%} of the wall time")


if __name__ == "__main__":
    main()
