"""One rank of one trial: reads FOLDER/trial.json and leaves FOLDER/rank<N>.json.

Started as `torchrun -m harness.training.worker FOLDER`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.training.interruption import block_signal

if __name__ == "__main__":
    block_signal()  # before NumPy starts threads

import numpy as np
import torch

from harness.core.errors import HarnessError, Interrupted, NonFiniteLoss, one_line
from harness.core.paths import TrialFolder
from harness.core.processes import die_with_parent
from harness.measure.traffic import bytes_per_sample, optimizer_bytes
from harness.records import environment
from harness.records.record import Failure, Interruption, Rank0Report, RankResult, write_record
from harness.records.restore import restore
from harness.records.series import Series
from harness.spec.cell import Assignment
from harness.training import checkpoint
from harness.training.loader import to_device
from harness.training.precision import autocast
from harness.training.profiler import trace_steps
from harness.training.ranks import Ranks, choose_device, process_group
from harness.training.strategy import arrange
from harness.training.train import Trace, Training
from workloads.base import Workload
from workloads.catalog import load_class

COLLECTIVE_TIMEOUT = 600.0  # seconds that a rank waits for the others
TIMED_OUT = re.compile(
    r"Timed out waiting \d+ms for|Watchdog caught collective operation timeout"
)  # gloo's, NCCL's


def main(arguments: Sequence[str] | None = None) -> int:
    """The process's exit code: 0 when the trial is done, 1 when it failed, 75 when it was interrupted and can go on."""
    parser = argparse.ArgumentParser(prog="python -m harness.training.worker", description=__doc__)
    parser.add_argument("folder", type=Path, help="the trial's folder, which holds trial.json")
    parser.add_argument(
        "--write-logs", action="store_true", help="write output to FOLDER/logs/rank<N>.log"
    )
    given = parser.parse_args(arguments)
    die_with_parent()
    ranks, folder = Ranks.from_environment(), TrialFolder(given.folder)
    ranks.export()
    if given.write_logs:
        _redirect(folder.rank_log(ranks.rank))
    entered = RankResult(rank=ranks.rank, host=ranks.host, pid=os.getpid(), entered_at=time.time())
    trace, code = Trace(), 0
    try:
        result = run(folder, ranks, entered, trace)
    except (Exception, SystemExit) as error:  # training that leaves by itself has failed too
        traceback.print_exc()
        code = error.exit_code if isinstance(error, Interrupted) else 1
        result = replace(entered, failure=_describe(error, ranks), **_series(trace))
    write_record(folder.result_path(ranks.rank), result)
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def run(folder: TrialFolder, ranks: Ranks, entered: RankResult, trace: Trace) -> RankResult:
    """Train as `trial.json` says; `trace` fills up on the way, so that a failure leaves what was seen."""
    assignment = restore(Assignment, json.loads(folder.assignment_path.read_text(encoding="utf-8")))
    torch.set_num_threads(assignment.trial.cell.axes.num_threads)
    device = choose_device(assignment.device, ranks)
    needed = assignment.trial.cell.axes.strategy != "single"
    with process_group(ranks, device, needed=needed, timeout=COLLECTIVE_TIMEOUT):
        training = Training(assignment, load_workload(assignment), folder, ranks, device, trace)
        with training.telemetry:
            training.run()
        result = _result(training, entered)
        if assignment.profile:
            trace_steps(training, assignment.profile.steps)
            result = replace(result, phases=training.spent)
        del training
        gc.collect()
    return result


def load_workload(assignment: Assignment) -> Workload:
    """The cell's workload with its settings."""
    choice = assignment.trial.cell.workload
    kind = load_class(choice.uses, Path(assignment.base_folder))
    return kind(restore(kind.Options, choice.options), restore(kind.Data, choice.data))


def _result(training: Training, entered: RankResult) -> RankResult:
    memory = training.memory.read()  # first: the fingerprint gathers parameters
    fingerprint = training.fingerprint()
    return replace(
        entered,
        **_series(training.trace),
        order_sums=training.digest.sums,
        compiled=training.compiled(),
        loss_scale=training.scaler.account(),
        telemetry=training.telemetry.report(),
        loader_workers=training.trace.loader_workers,
        memory=memory,
        phases=training.spent,
        elapsed=training.elapsed,
        rank0=_rank0_report(training, fingerprint) if training.ranks.is_rank_0 else None,
    )


def _series(trace: Trace) -> dict[str, Any]:
    return {
        "loss": Series.pack(np.asarray(trace.losses, dtype=np.float32)),
        "step_seconds": Series.pack(np.asarray(trace.step_seconds, dtype=np.float64)),
        "step_phases": {
            name: Series.pack(np.asarray(seconds, dtype=np.float32))
            for name, seconds in trace.step_phases.items()
        },
        "interruptions": [Interruption(**taken_up) for taken_up in trace.interruptions],
    }


def _rank0_report(training: Training, fingerprint: str) -> Rank0Report:
    best = checkpoint.newest(training.folder.best_checkpoints)
    return Rank0Report(
        target=training.target,
        steps_per_epoch=training.order.steps,
        parameter_count=training.parameters,
        flops_per_sample=training.workload.flops_per_sample(),
        evaluations=training.trace.evaluations_seen(),
        parameter_digest=fingerprint,
        environment=environment.describe() | dict(training.assignment.environment),
        checkpoint=None if best is None else str(best.relative_to(training.folder.path)),
        bytes_per_sample=_bytes_per_sample(training),
    )


def _bytes_per_sample(training: Training) -> float | None:
    """Of a step at rank 0 alone, which FSDP2's sharded parameters don't allow."""
    axes = training.axes
    if axes.strategy == "fsdp2":
        return None
    rank_batch = axes.batch_size // axes.world_size
    batch = to_device(
        training.splits.train.batch(range(rank_batch // axes.grad_accum_steps)), training.device
    )
    model = training.model.module
    context = partial(autocast, axes, training.device)
    trained = bytes_per_sample(training.workload, model, arrange(batch, axes), context)
    return None if trained is None else trained + optimizer_bytes(training.optimizer) / rank_batch


def _describe(error: BaseException, ranks: Ranks) -> Failure:
    lines = traceback.format_exception(error)
    return Failure(
        kind="CollectiveTimeout" if TIMED_OUT.search(str(error)) else type(error).__name__,
        message=str(error) if isinstance(error, HarnessError) else one_line(error),
        rank=error.rank if isinstance(error, NonFiniteLoss) else ranks.rank,
        host=ranks.host,
        traceback="".join(lines)[-8000:],
        at=time.time(),
    )


def _redirect(path: Path) -> None:
    """Send this process's output, C++'s too, to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)


if __name__ == "__main__":
    os._exit(main())  # a failed rank must not wait for the others
