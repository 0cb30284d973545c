"""The ranks of a trial, forked from one process: `python -m harness.launch.forked FAILURES RANKS
MODULE ARGUMENT…`.

It stands for torchrun on one machine where it was itself forked from a process that has torch
loaded, so that no rank loads it once more.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from harness.core.paths import write_atomically
from harness.core.processes import die_with_parent
from harness.launch.launcher import rank_variables

HERE = "127.0.0.1"
GRACE = 0.5  # seconds in which the others may leave their own words once a rank has failed
PATIENCE = 30.0  # seconds between asking them to end and ending them
POLL = 0.01


def main() -> None:
    """Exit code 1 if a rank has failed; leaves each failed rank's exit code in FAILURES."""
    die_with_parent()
    failures, size, module, *arguments = sys.argv[1:]
    listening = socket.create_server((HERE, 0))
    port = listening.getsockname()[1]
    running = {}
    for rank in range(int(size)):
        pid = os.fork()
        if not pid:
            listening.close()
            be_rank(rank, int(size), port, module, arguments)
        running[pid] = rank
    # Ranks that call before the store answers wait in the queue of a port that nobody else can
    # take.
    store = TCPStore(
        HERE, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
    )
    found = watch(running)
    del store
    if found:
        write_atomically(Path(failures), json.dumps(found))
    sys.exit(1 if found else 0)


def be_rank(rank: int, size: int, port: int, module: str, arguments: Sequence[str]) -> NoReturn:
    """End with what the module's `main` returns, in a process that was forked for it."""
    code = 1
    try:
        os.environ.update(rank_variables(rank, size))
        os.environ.update(
            MASTER_ADDR=HERE, MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True"
        )
        code = import_module(module).main(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # it waits for no other rank


def watch(running: dict[int, int]) -> dict[str, dict[str, Any]]:
    """Wait for the ranks, given by process; ends the others of one that fails. Returns those that
    failed, in order.
    """
    found: dict[str, dict[str, Any]] = {}
    next_signal, due, asked = signal.SIGTERM, 0.0, False
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG if found else 0)
        if pid:
            rank, code = running.pop(pid), os.waitstatus_to_exitcode(status)
            if code and not found:
                due = time.monotonic() + GRACE
            if code and not asked:
                found[str(rank)] = {"exitcode": code, "at": time.time(), "pid": pid}
        elif time.monotonic() > due:
            for left in running:
                os.kill(left, next_signal)
            next_signal, due, asked = signal.SIGKILL, time.monotonic() + PATIENCE, True
        else:
            time.sleep(POLL)
    return found


if __name__ == "__main__":
    main()
