"""The program that each rank of a trial runs: reads FOLDER/trial.json and leaves FOLDER/rank<N>.json.

Started as `torchrun -m harness.training.worker FOLDER`, by srun, or forked by a process that has
torch loaded. It trains, or does another one of `TASKS`. It needs neither the command line nor
MLflow. Whatever happens, short of a signal that ends the process, the file it leaves says so.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name

from harness.core.processes import end_process
from harness.training.progress import before_torch

if __name__ == "__main__":
    before_torch()


from harness.core import files
from harness.core.errors import (
    HarnessError,
    Interrupted,
    NonFiniteLoss,
    StorageError,
    one_line,
)
from harness.core.paths import TrialFolder
from harness.measure.stacks import write_stacks_on_signal
from harness.records.assignment import read_assignment
from harness.records.files import write_rank_result
from harness.records.record import Failure, Rank0Report, RankResult, StopOutcome
from harness.sweep.files import check_files, files_by_setting
from harness.training.build import TrialParts
from harness.training.digests import digest_model, digest_tensors, random_states
from harness.training.entry import environment_of, joined
from harness.training.progress import SIGNAL, heartbeats
from harness.training.ranks import Ranks
from harness.training.state import TrainingState
from harness.training.train import Trainer, trace_steps

# What torch raises, or gloo and NCCL say, where a rank waited for another too long, or that one is gone.
COLLECTIVE_ERRORS = {
    "CollectiveTimeout": r"Timed out waiting \d+ms for|Watchdog caught collective operation timeout",
    "ConnectionLost": r"gloo/transport.*(?:Connection (?:closed|reset) by peer|Broken pipe)|^Dist\w+Error",
}
TRACEBACK_CHARACTERS = 8000  # of which the end is kept
# What a rank may do instead of training, by name: a function with the parameters of `train`, which
# is imported when it is asked for.
TASKS = {
    "trace": "harness.reproduce.trace_worker:trace_rank",
    "check": "harness.preflight.worker:examine_workload",
    "find-lr": "harness.preflight.rate_worker:search_rates",
    "export": "harness.export.worker:export_model",
    "peaks": "harness.hardware.measured_peaks:measure_rank",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank, and return the process's exit code.

    0 is a trial that is done, 1 one that failed, 75 one that was interrupted and can resume.
    """
    parser = argparse.ArgumentParser(prog="python -m harness.training.worker", description=__doc__)
    parser.add_argument("folder", type=Path, help="the trial's folder, which holds trial.json")
    parser.add_argument("--task", choices=TASKS, help="what to do instead of training")
    parser.add_argument("--write-logs", action="store_true", help="write FOLDER/logs/rank<N>.log")
    options = parser.parse_args(arguments)
    folder = TrialFolder.of_attempt(options.folder.absolute())
    ranks = Ranks.from_environment()
    ranks.export()
    if options.write_logs:
        _redirect_output(folder.rank_log(ranks.rank))
    write_stacks_on_signal()
    entered = RankResult(rank=ranks.rank, host=ranks.host, entered_at=time.time())
    state = TrainingState()
    exit_code = 0
    try:
        with heartbeats(folder, ranks, state):
            run_rank = train
            if options.task is not None:
                run_rank = resolve_name(TASKS[options.task])
            result = run_rank(folder, ranks, entered, state)
    except (Exception, SystemExit) as error:  # a workload that calls sys.exit() has failed too
        with suppress(OSError):  # its log may be what the disk does not take
            traceback.print_exc()
        exit_code = error.exit_code if isinstance(error, Interrupted) else 1
        result = _failed(error, folder, ranks, entered, state)
    try:
        # Not flushed: after a loss of power the trial runs again, and only its record must last.
        write_rank_result(folder.result_path(ranks.rank), result)
    except StorageError as error:
        with suppress(OSError):  # of a log on the same disk
            print(error, flush=True)
        return files.EXIT_CODE
    return exit_code


def train(
    folder: TrialFolder, ranks: Ranks, entered: RankResult, state: TrainingState
) -> RankResult:
    """Train as `trial.json` says; return this rank's part of the trial's record.

    `entered` has what is known before anything can fail; it is returned with all other fields
    filled. `state` fills up on the way, so that it says how far training came if this raises.
    """
    reference = read_assignment(folder.assignment_path).trial.cell.workload
    if reference.is_script:
        from harness.training.script import run_script

        of_rank = (folder, ranks, entered, state)
        threading.Thread(target=_end_when_asked, args=of_rank, daemon=True).start()
        return run_script(*of_rank)
    with joined(folder, ranks) as (assignment, workload, mesh):
        parts = TrialParts(assignment, workload, folder, mesh, state)
        trainer = Trainer(parts, state)
        with parts.telemetry:
            trainer.run()
        if ranks.local_rank == 0:  # again, as training may have read them at any time
            check_files(reference, files_by_setting(workload.options, workload.data))
        result = _result(trainer, entered)
        if assignment.profile:
            trace_steps(parts, state, assignment.profile)  # its seconds are in `phases` too
        del parts, trainer  # the process group ends after them
    return result


def _end_when_asked(
    folder: TrialFolder, ranks: Ranks, entered: RankResult, state: TrainingState
) -> None:
    """End the rank of a script as soon as the signal to stop comes, wherever the script is.

    It has nothing to save, and may never step.
    """
    signal.sigwait({SIGNAL})
    error = Interrupted(f"stopped after step {state.step}; the next attempt starts from step 0")
    result = _failed(error, folder, ranks, entered, state)
    with suppress(StorageError):
        write_rank_result(folder.result_path(ranks.rank), result)
    end_process(error.exit_code)


def _result(trainer: Trainer, entered: RankResult) -> RankResult:
    """Return all that was measured; every rank must take part."""
    parts = trainer.parts
    state = trainer.state
    numbers = parts.memory.read()  # before the digest, which gathers parameters
    numbers |= state.compiled
    numbers |= parts.train_step.scaler.account()
    with state.timed("digest"):
        parameter_digest = digest_model(parts.model, parts.workload)
    result = replace(
        entered,
        **state.result(),
        random_digest=digest_tensors(random_states(parts.device)),
        telemetry=parts.telemetry.report(),
        numbers=numbers,
    )
    if parts.mesh.rank != 0:
        return result
    stop: StopOutcome | None = None
    if trainer.stop_rule is not None:
        stop = StopOutcome(reason=trainer.stop_reason or "length", step=state.step)
    tokens = parts.workload.tokens_per_sample()
    report = Rank0Report(
        target=parts.target,
        steps_per_epoch=parts.order.steps,
        flops_per_sample=parts.flops_per_sample,
        tokens_per_sample=None if tokens is None else float(tokens),
        evaluations=tuple(state.evaluations),
        parameter_digest=parameter_digest,
        checkpoint=state.best_checkpoint,
        stop=stop,
        training_began_at=state.training_began_at,
        test_samples=len(parts.splits.test),
    )
    return replace(result, rank0=report, environment=environment_of(parts.assignment))


def _failed(
    error: BaseException,
    folder: TrialFolder,
    ranks: Ranks,
    entered: RankResult,
    state: TrainingState,
) -> RankResult:
    """Return the result of a rank that an error has ended.

    A user's mistake keeps its message whole. A loss that is not finite names the rank that had it
    first, whichever rank reports it.
    """
    trace = "".join(traceback.format_exception(error))
    if isinstance(error, OSError):
        # An error without a file name comes from printing to the log.
        path = error.filename2 or error.filename or folder.rank_log(ranks.rank)
        error = files.storage_error(error, Path(str(path))) or error
    kind, message = type(error).__name__, str(error)
    for known, pattern in COLLECTIVE_ERRORS.items():
        if re.search(pattern, f"{kind}: {message}"):
            kind = known
    if not isinstance(error, HarnessError):
        message = one_line(message)
    failure = Failure(
        kind=kind,
        message=message,
        rank=error.rank if isinstance(error, NonFiniteLoss) else ranks.rank,
        host=ranks.host,
        traceback=trace[-TRACEBACK_CHARACTERS:],
        at=time.time(),
    )
    return replace(entered, **state.result(), failure=failure)


def _redirect_output(path: Path) -> None:
    """Send this process's output, that of C++ libraries too, to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)


if __name__ == "__main__":
    # At once, without ending threads and the process group in order: that would wait for the other
    # ranks, and a rank that has failed must not.
    end_process(main())
