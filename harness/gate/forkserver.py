"""A process that has torch loaded and forks the ranks of both sides: `python -P forkserver.py SOCKET`.

It imports nothing of the harness and nothing of a workload: each rank imports them from its own tree. As both sides
come from this one process, neither has its libraries in better places than the other, and what chance decides about a
process is drawn anew with every pair of them, soon.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

LOOK = 0.2  # seconds between looks at the ranks
LOADED = (
    "torch._dynamo",
    "torch.distributed.fsdp",
)  # which DDP, FSDP2 and optimizers would load one by one


def main() -> None:
    """Serve until the line is cut: each JSON line is a list of ranks, whose forerunners end first."""
    for name in LOADED:
        importlib.import_module(name)
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(sys.argv[1])
        words = line.makefile("r", encoding="utf-8")
        ranks: dict[int, dict[str, Any]] = {}
        while True:
            if select.select([line], [], [], LOOK)[0]:
                asked = words.readline()
                end(ranks)
                if not asked:
                    return
                ranks = {fork(one, line): one for one in json.loads(asked)}
            for lost in failed(ranks):
                tell(sys.argv[1], lost)


def fork(one: dict[str, Any], line: socket.socket) -> int:
    """Start a rank; `one` holds the keys that `become` reads."""
    pid = os.fork()
    if not pid:
        line.close()
        become(one)
    return pid


def become(one: dict[str, Any]) -> None:
    """Be the rank: in its folder, with its variables, its modules and its log. Does not return."""
    log = os.open(one["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(one["folder"])
    os.sched_setaffinity(0, one["cores"])
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    own = one["variables"]["PYTHONPATH"].split(os.pathsep)
    sys.path[:] = own + [entry for entry in sys.path if entry not in inherited]
    os.environ.update(one["variables"])
    importlib.invalidate_caches()
    sys.argv[1:] = one["arguments"]
    try:
        from harness.training.ranks import Ranks  # its tree's own

        Ranks(rank=one["rank"], local_rank=one["rank"], world_size=one["world_size"]).export()
        runpy.run_module(one["module"], run_name="__main__", alter_sys=True)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # a rank that is well never comes here


def failed(ranks: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """The ranks that have ended by themselves, but for those whose line was cut; none of them twice."""
    statuses = {pid: os.waitpid(pid, os.WNOHANG) for pid in ranks}
    gone = {pid: (ranks.pop(pid), status) for pid, (ended, status) in statuses.items() if ended}
    return [one for one, status in gone.values() if status]


def tell(path: str, lost: dict[str, Any]) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(
            (json.dumps({"lost": lost["rank"], "side": lost["side"]}) + "\n").encode()
        )


def end(ranks: dict[int, dict[str, Any]]) -> None:
    """End what is left of a pair, and wait until it is gone, so that it takes nothing from the next one."""
    for pid in ranks:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    ranks.clear()


if __name__ == "__main__":
    main()
