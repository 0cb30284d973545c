"""Processes forked from one that has torch loaded: `python -m harness.launch.forkserver`, asked through its stdin.

Loading torch and what training needs of it takes seconds of CPU time for every process, a fork takes milliseconds. The
forkserver computes nothing and has one thread only, so that what it forks is as if it had just loaded the same.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from harness.core.errors import HarnessError
from harness.core.processes import Process, die_with_parent, end_process_group, start_session
from harness.training.interruption import block_signal

LOADED = ("torch._dynamo", "torch.distributed.fsdp", "harness.training.worker")
AVAILABLE = hasattr(os, "pidfd_open")  # Linux


def start(arguments: Sequence[str], variables: Mapping[str, str], log: Path) -> Process:
    """As `processes.start_session`, for `python -m MODULE …`; raises HarnessError if the server does not start.

    There is a server for each addition to this process's environment, because libraries read it when they are loaded;
    it ends with this process.
    """
    added = json.dumps(
        {name: value for name, value in sorted(variables.items()) if os.environ.get(name) != value}
    )
    server = _servers.get(added)
    if server is not None:
        server.listen(0)
    if server is None or server.gone:
        server = _servers[added] = Server(variables, log)
        atexit.register(server.close)
    return server.start(arguments, variables, log)


class Server:
    """A forkserver that runs, and what it has told."""

    def __init__(self, variables: Mapping[str, str], log: Path) -> None:
        self.log, self.gone = log, False
        self.born: list[int] = []
        self.codes: dict[int, int] = {}
        self.line, theirs = socket.socketpair()
        with theirs:
            module = [sys.executable, "-m", "harness.launch.forkserver"]
            self.process = start_session(module, variables, log, stdin=theirs.fileno())
        self.unread = b""

    def start(self, arguments: Sequence[str], variables: Mapping[str, str], log: Path) -> Forked:
        _, _, module, *rest = arguments
        log.parent.mkdir(parents=True, exist_ok=True)
        asked = {
            "module": module,
            "arguments": rest,
            "variables": dict(variables),
            "folder": str(Path.cwd()),
            "log": str(log.absolute()),
        }
        with suppress(BrokenPipeError):  # said below
            self.line.sendall((json.dumps(asked) + "\n").encode())
        try:
            while not self.born:
                self.listen(None)
                if self.gone:
                    raise HarnessError(
                        f"the process that ranks are forked from ended: {self._last()}; log: {self.log}"
                    )
        except BaseException:
            self.gone = True  # nobody is to take the answer to this for one to the next
            end_process_group(self.process)
            raise
        pid = self.born.pop()
        self.codes.pop(pid, None)  # of an earlier process with the same number
        return Forked(self, pid)

    def listen(self, seconds: float | None) -> None:
        """Take in what is told within so many seconds; None waits for a word."""
        if self.gone or not select.select([self.line], [], [], seconds)[0]:
            return
        try:
            heard = self.line.recv(65536)
        except ConnectionResetError:  # it ended before it had read what it was asked
            heard = b""
        self.gone = not heard
        *lines, self.unread = (self.unread + heard).split(b"\n")
        for line in lines:
            told = json.loads(line)
            if "code" in told:
                self.codes[told["pid"]] = told["code"]
            else:
                self.born.append(told["pid"])

    def _last(self) -> str:
        words = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line for line in reversed(words) if line.strip()), "no word")

    def close(self) -> None:
        self.line.close()
        end_process_group(self.process)


_servers: dict[str, Server] = {}


class Forked:
    """A process that was forked, as `subprocess.Popen` shows one; it leads its own group."""

    def __init__(self, server: Server, pid: int) -> None:
        self.server, self.pid = server, pid

    def poll(self) -> int | None:
        self.server.listen(0)
        return self.server.codes.get(self.pid, -signal.SIGKILL if self.server.gone else None)

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = None if deadline is None else deadline - time.monotonic()
            if timeout is not None and left is not None and left <= 0:
                raise subprocess.TimeoutExpired("a forked process", timeout)
            self.server.listen(left)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)


def main() -> None:
    """Fork a process for each line of JSON, tell its number and later its exit code, until the line is cut."""
    die_with_parent()
    block_signal()
    load()
    line = socket.socket(fileno=os.dup(0))
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    words, running = line.makefile("r", encoding="utf-8"), dict[int, int]()

    def tell(**told: int) -> None:
        line.sendall((json.dumps(told) + "\n").encode())

    while True:
        ready = select.select([line.fileno(), *running], [], [])[0]
        for ended in [one for one in ready if one in running]:
            pid = running.pop(ended)
            os.close(ended)
            tell(pid=pid, code=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        if line.fileno() in ready:
            asked = words.readline()
            if not asked:
                return
            pid = fork(json.loads(asked))
            running[os.pidfd_open(pid)] = pid
            tell(pid=pid)


def load() -> None:
    """Import what takes long; ends the process if that has started a thread, which a fork would lose."""
    before = os.environ.get("OPENBLAS_NUM_THREADS")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # NumPy's starts its threads when it is loaded
    for name in LOADED:
        import_module(name)
    if before is None:
        del os.environ["OPENBLAS_NUM_THREADS"]
    else:
        os.environ["OPENBLAS_NUM_THREADS"] = before
    gc.collect()
    gc.freeze()  # what is loaded stays: no rank needs to look through it again
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        sys.exit(
            f"it has {threads} threads where it may have one; `forkserver: false` in the profile does without it"
        )


def fork(asked: Mapping[str, Any]) -> int:
    pid = os.fork()
    if not pid:
        become(**asked)
    os.setpgid(pid, pid)  # here too, so that it is done before anybody knows the number
    return pid


def become(
    module: str, arguments: Sequence[str], variables: Mapping[str, str], folder: str, log: str
) -> NoReturn:
    """Run the module in the folder, with these variables and no others and its output added to `log`, as long as the
    forkserver runs."""
    code = 1
    try:
        os.setpgid(0, 0)
        die_with_parent()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(3, output + 1)  # the line too
        os.chdir(folder)
        if not sys.flags.safe_path:
            sys.path[0] = folder  # as `python -m` has it
        os.environ.clear()
        os.environ.update(variables)
        sys.argv[1:] = arguments
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
        if isinstance(ending.code, str):
            print(ending.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
