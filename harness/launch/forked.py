"""Forks the ranks of a trial and watches them, as torchrun does on one machine.

`python -m harness.launch.forked FAILURES RANKS MODULE ARGUMENT…`, to be run in a process that a
forkserver has forked: it has torch loaded, so no rank has to load it again.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from harness.core.control_groups import oom_kills
from harness.core.paths import write_atomically
from harness.core.ports import LOOPBACK, listen
from harness.core.processes import die_with_parent, end_process, ending_descendants
from harness.launch.launcher import GRACE_SECONDS, rank_variables
from harness.records.running import FailedRank

TERMINATION_TIMEOUT = 30.0  # seconds between SIGTERM and SIGKILL
POLL = 0.01  # seconds between two looks at ranks once one has failed


def main() -> None:
    """Run all ranks; exit with 1 if one has failed, and write how the failed ones ended to
    FAILURES.
    """
    failures_path, world_size, module, *arguments = sys.argv[1:]
    with ending_descendants():
        failed = run_ranks(int(world_size), module, arguments)
    if failed:
        content = {str(rank): asdict(ended) for rank, ended in failed.items()}
        write_atomically(Path(failures_path), json.dumps(content))
        sys.exit(1)
    sys.exit(0)


def run_ranks(world_size: int, module: str, arguments: Sequence[str]) -> dict[int, FailedRank]:
    """Fork the ranks and wait until they have ended; return those that failed, by rank."""
    launcher = os.getpid()
    listening = listen(LOOPBACK, 0)
    port = listening.getsockname()[1]
    ranks: dict[int, int] = {}
    for rank in range(world_size):
        pid = os.fork()
        if not pid:
            die_with_parent(parent=launcher)
            listening.close()
            become_rank(rank, world_size, port, module, arguments)
        ranks[pid] = rank
    signal.signal(signal.SIGTERM, _exit_on_signal)  # so that nothing is left behind either
    # The port is open before any rank exists: no other process can take it, and a rank that
    # connects before the store answers waits in the socket's queue.
    store = TCPStore(
        LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
    )
    failed = watch(ranks)
    del store
    return failed


def _exit_on_signal(number: int, frame: object) -> NoReturn:
    """End this process in order, with the exit code that shells give a process that was signaled."""
    sys.exit(128 + number)


def become_rank(
    rank: int, world_size: int, port: int, module: str, arguments: Sequence[str]
) -> NoReturn:
    """Run the module's `main` as a rank, in a forked process; end with the exit code that it
    returns.
    """
    exit_code = 1
    try:
        os.environ.update(rank_variables(rank, world_size))
        os.environ["MASTER_ADDR"] = LOOPBACK
        os.environ["MASTER_PORT"] = str(port)
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # so that rank 0 opens no store
        exit_code = import_module(module).main(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        end_process(exit_code)  # at once: nothing may wait for other ranks


def watch(ranks: dict[int, int]) -> dict[int, FailedRank]:
    """Wait until all ranks have ended; return those that failed, by rank, in the order of their
    ends.

    `ranks` maps processes to ranks. The others are ended GRACE_SECONDS after one has failed: by
    SIGTERM, then by SIGKILL. How those end says nothing, so they are not among the failed ones.
    """
    failed: dict[int, FailedRank] = {}
    kills_before = oom_kills()
    next_signal = signal.SIGTERM
    deadline = 0.0
    while ranks:
        pid, status = os.waitpid(-1, os.WNOHANG if failed else 0)
        if pid and pid not in ranks:
            continue  # a rank started it, and ended before it did
        if pid:
            rank = ranks.pop(pid)
            exit_code = os.waitstatus_to_exitcode(status)
            if exit_code and not failed:
                deadline = time.monotonic() + GRACE_SECONDS
            if exit_code and next_signal == signal.SIGTERM:
                failed[rank] = FailedRank(
                    exitcode=exit_code,
                    at=time.time(),
                    pid=pid,
                    out_of_memory=exit_code == -signal.SIGKILL and oom_kills() > kills_before,
                )
        elif time.monotonic() > deadline:
            for remaining in ranks:
                os.kill(remaining, next_signal)
            next_signal = signal.SIGKILL
            deadline = time.monotonic() + TERMINATION_TIMEOUT
        else:
            time.sleep(POLL)
    return failed


if __name__ == "__main__":
    main()
