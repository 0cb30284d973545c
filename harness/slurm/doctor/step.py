"""Processes that the doctor starts, and what it makes of their words."""

from __future__ import annotations

import json
import socketserver
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.paths import TrialFolder
from harness.core.processes import end_process_group

if TYPE_CHECKING:
    from harness.launch.launcher import Launcher

PATIENCE = 120.0  # seconds that a step may take


@dataclass(frozen=True, kw_only=True)
class Reduced:
    """What became of the sum over all ranks."""

    ranks: int
    backend: str | None = None
    seconds: float | None = None  # the meeting of the ranks included
    failure: str | None = None


def reduce(launcher: Launcher, folder: Path, ranks: int, device: str) -> Reduced:
    """Have all ranks sum up, in processes of their own."""
    command = launcher.command("harness.slurm.doctor.reduce", TrialFolder(folder), ranks, [device])
    lines = run(command, launcher.variables(1))
    for line in lines:
        if line.startswith("{") and (told := json.loads(line))["sum"] == ranks:
            return Reduced(ranks=ranks, backend=told["backend"], seconds=told["seconds"])
    failed = (
        [line for line in lines if line.startswith("rank ")]
        or lines[-1:]
        or ["no rank said anything"]
    )
    return Reduced(ranks=ranks, failure=failed[0])


def run(command: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """The lines that a command has written when it has ended, or was ended for taking too long."""
    process = subprocess.Popen(
        command,
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        said = process.communicate(timeout=PATIENCE)[0]
    except subprocess.TimeoutExpired:
        end_process_group(process)
        said = process.communicate()[0] + f"\nended after {PATIENCE:g} s".encode()
    finally:
        end_process_group(process)
    return [line for line in said.decode(errors="replace").splitlines() if line.strip()]


class _Clock(socketserver.StreamRequestHandler):
    """Tells the time for every line."""

    def handle(self) -> None:
        for _ in self.rfile:
            self.wfile.write(f"{time.time()!r}\n".encode())


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False


@contextmanager
def clock() -> Iterator[int]:
    """This machine's clock, told on the port while the block lasts."""
    with _Server(("", 0), _Clock) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
