"""Forks the ranks of one trial after the other: a task of a Slurm step that stays.

`python -P -m harness.launch.step_task`, as a task of each rank. `warm_step` writes lines of JSON to
srun's standard input, which srun passes on to all tasks. The first line is

    {"token": TEXT, "preload": [MODULE, ...]}

and each further one a request:

    {"number": NUMBER, "rank": null or {"module": MODULE, "arguments": [...], "variables": {...}}}

For a rank, the task forks a process that runs the module's `main`, and waits for its end. If it
ended well, or if there is no rank to run, the task prints TOKEN and NUMBER on a line. A rank that
ends in any other way is the end of its task too, with the same exit code or by the same signal: so
Slurm ends the step and says why, as if the rank had been the task. Once the input is closed, the
task ends.

The task computes nothing and has one thread only, so a rank is as if it had just loaded the same
modules. It inherits what Slurm has set up for the task: variables, cores, memory, limits, umask,
working directory and process group.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import NoReturn

from harness.core.processes import die_with_parent, end_process, ending_descendants
from harness.launch.forkserver_process import preload, refuse_threads
from harness.training.interruption import block_signal

if __name__ == "__main__":
    die_with_parent()  # before torch is imported, which takes seconds
    block_signal()  # before NumPy starts threads; ranks inherit it, so they can't miss the signal


def main() -> None:
    """Serve requests until the input is closed, or a rank has not ended well."""
    os.dup2(1, 2)  # one stream keeps what a rank prints before the line that says that it ended
    lines = iter(sys.stdin.readline, "")
    setup = json.loads(next(lines, '{"preload": []}'))
    load(setup["preload"])
    for line in lines:
        request = json.loads(line)
        if request["rank"] is not None:
            with ending_descendants():
                status = run_rank(**request["rank"])
            if status:
                end_like(status)
        # Of a line that another process has left without an end, this one must not become a part.
        os.write(1, f"\n{setup['token']} {request['number']}\n".encode())


def load(modules: Sequence[str]) -> None:
    """Import what ranks need, without starting a thread; end this process if one was started."""
    preload(modules)
    try:
        refuse_threads()
    except SystemExit as error:
        sys.exit(f"{error}; `forkserver: false` in the profile does without it")


def run_rank(*, module: str, arguments: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run a rank in a forked process, and return the status that `os.waitpid` gives of its end."""
    task = os.getpid()
    pid = os.fork()
    if not pid:
        die_with_parent(parent=task)
        become_rank(module, arguments, variables)
    _, status = os.waitpid(pid, 0)
    return status


def become_rank(module: str, arguments: Sequence[str], variables: Mapping[str, str]) -> NoReturn:
    """Run the module's `main` in a forked process; end with the exit code that it returns."""
    exit_code = 1
    try:
        with Path(os.devnull).open() as nothing:
            os.dup2(nothing.fileno(), 0)  # the input is the task's
        os.environ.update(variables)
        sys.argv[1:] = arguments
        invalidate_caches()  # folders may have got files since the task has looked into them
        exit_code = import_module(module).main(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        end_process(exit_code)  # at once: nothing may wait for other ranks


def end_like(status: int) -> NoReturn:
    """End this process as another one has ended, which left its own core dump if it left any."""
    exit_code = os.waitstatus_to_exitcode(status)
    if exit_code < 0:
        number = -exit_code
        _, most = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, most))
        with suppress(OSError):  # of SIGKILL, which nobody can handle
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
        exit_code = 128 + number  # as shells have it, should the kernel have spared this process
    end_process(exit_code)


if __name__ == "__main__":
    main()
