"""MLflow's pages for the results of this machine, on loopback only; run as a program, the module guards a server."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO
from urllib.error import URLError

from harness.core.errors import BadInput, HarnessError, one_line
from harness.core.paths import Results
from harness.core.processes import PATIENCE
from harness.tracking import Tracker
from harness.tracking.connect import SETTINGS, is_server, shown

PORT = 5000
LOOPBACK = ("127.0.0.1", "localhost", "::1")
STARTUP = 90.0  # seconds within which the server has to answer


def serve(
    results: Results, uri: str | None = None, host: str = "127.0.0.1", port: int | None = None
) -> None:
    """Show MLflow's pages until interrupted, and print their addresses.

    `uri` None means the database in the results folder. A server that runs already is only pointed to. Raises BadInput
    for a port in use (None: 5000, or a free one) or a host that others can reach, TrackerDown for a store that can't
    be opened.
    """
    tracker = Tracker(results, uri)
    if is_server(tracker.uri):
        _print_pages(tracker, tracker.uri)
        return
    try:
        with server(tracker, host, port) as base:
            _print_pages(tracker, base)
            print("Press Ctrl-C to end.", flush=True)
            signal.pause()
    except KeyboardInterrupt:
        return


@contextmanager
def server(tracker: Tracker, host: str = "127.0.0.1", port: int | None = None) -> Iterator[str]:
    """An MLflow server over a tracker's database; yields its address. Nothing of it outlives the block or us."""
    if host not in LOOPBACK:
        raise BadInput(
            f"host: found {host!r}; the pages need no password and are served to this machine only: 127.0.0.1"
        )
    port = _free_port(host, port)
    tracker.prepare()
    command = [
        sys.executable, "-m", "harness.tracking.ui", sys.executable, "-m", "mlflow", "server", "--workers", "1",
        "--backend-store-uri", tracker.uri, "--artifacts-destination", str(tracker.results.artifacts.absolute()),
        "--host", host, "--port", str(port),
    ]  # fmt: skip
    variables = {
        **SETTINGS,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "PYTHONWARNINGS": "ignore",
    }
    with tempfile.TemporaryFile() as log:
        guard = subprocess.Popen(
            command,
            env={**variables, **os.environ},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            base = f"http://{f'[{host}]' if ':' in host else host}:{port}"
            _wait_for(base, guard, log)
            yield base
        finally:
            assert guard.stdin is not None
            guard.stdin.close()
            guard.wait()


def _print_pages(tracker: Tracker, base: str) -> None:
    print(f"MLflow shows {tracker.results.path}: {shown(base)}")
    for name, address in tracker.pages(base).items():
        print(f"  {name}: {shown(address)}")


def _free_port(host: str, port: int | None) -> int:
    if port is not None:
        if not _is_free(host, port):
            raise BadInput(f"port {port} of {host} is in use; choose another one with --port")
        return port
    if _is_free(host, PORT):
        return PORT
    with socket.create_server((host, 0), family=_family(host)) as listening:
        free: int = listening.getsockname()[1]
    print(f"Port {PORT} is in use; taking {free}.")
    return free


def _is_free(host: str, port: int) -> bool:
    try:
        socket.create_server((host, port), family=_family(host)).close()
    except OSError:
        return False
    return True


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _wait_for(base: str, guard: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    """Returns once the server answers; raises HarnessError with its last words if it doesn't."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + STARTUP
    while time.monotonic() < deadline and guard.poll() is None:
        try:
            with opener.open(f"{base}/health", timeout=1):
                return
        except (URLError, OSError):
            time.sleep(0.1)
    log.seek(0)
    words = log.read().decode("utf-8", errors="replace").strip().splitlines() or ["nothing"]
    raise HarnessError(
        f"MLflow's server did not come up at {base}; its last words: {one_line(words[-1])}"
    )


def guard(command: Sequence[str]) -> None:
    """Run `command` until it ends or our standard input is closed, as it is when our parent ends in whatever way.

    Then end all of our session, this process included: MLflow's server leaves helpers behind.
    """
    started = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    while started.poll() is None and not select.select([sys.stdin], [], [], 0.2)[0]:
        pass
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    try:
        started.wait(PATIENCE)
    finally:
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    guard(sys.argv[1:])
