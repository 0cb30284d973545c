"""Serves MLflow's pages for the results of this machine, on loopback only.

Run as a program, `python -m harness.tracking.ui COMMAND…`, the module guards a server: it ends the
server and all its helpers as soon as the process that started it has ended.
"""

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
from contextlib import contextmanager, suppress
from typing import IO

from harness.core.errors import BadInput, HarnessError, one_line
from harness.core.paths import Results
from harness.core.ports import LOOPBACK, free_port
from harness.core.processes import KILL_TIMEOUT, TERMINATE_TIMEOUT, signal_group
from harness.tracking.connect import SETTINGS, is_server, shown_uri
from harness.tracking.tracker import Tracker

DEFAULT_PORT = 5000
STARTUP_TIMEOUT = 180.0  # seconds within which the server has to answer


def serve(results: Results, uri: str | None = None, port: int | None = None) -> None:
    """Serve MLflow's pages until interrupted, and print the address of each sweep's page.

    `uri` None means the database in the results folder; for a URI of a server that runs already,
    only the addresses are printed. `port` None means 5000, or a free port if that one is in use.

    Raises BadInput for a port in use, TrackerDown for a store that cannot be opened.
    """
    tracker = Tracker(results, uri)
    if is_server(tracker.uri):
        _print_addresses(tracker, tracker.uri)
        return
    with suppress(KeyboardInterrupt), server(tracker, port=port) as base:
        _print_addresses(tracker, base)
        print("Press Ctrl-C to end.", flush=True)
        signal.pause()


@contextmanager
def server(tracker: Tracker, port: int | None = None) -> Iterator[str]:
    """Run an MLflow server over a tracker's database; yield its address, `http://HOST:PORT`.

    No process of the server outlives the `with` block or this process: a guard, in a session of its
    own, ends them (`guard`). The artifacts are served from the results folder, so that a browser
    needs no access to the file system.

    Raises BadInput for a port in use, TrackerDown for a database that can't be opened, HarnessError if the
    server does not start.
    """
    if port is None:
        port = DEFAULT_PORT if _is_free(DEFAULT_PORT) else free_port()
    elif not _is_free(port):  # another one would break a bookmark or a tunnel
        raise BadInput(f"port {port} of {LOOPBACK} is in use; choose another with --port")
    tracker.prepare()
    command = [
        sys.executable, "-P", "-m", "harness.tracking.ui",
        sys.executable, "-P", "-m", "mlflow", "server", "--workers", "1",
        "--artifacts-destination", str(tracker.results.artifacts.absolute()),
        "--host", LOOPBACK, "--port", str(port),
    ]  # fmt: skip
    variables = {
        **SETTINGS,
        # MLflow's job runner would start more processes, which no page here needs.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "PYTHONWARNINGS": "ignore",
        **os.environ,
        # `ps` shows arguments to everybody, so that a password must not be among them.
        "MLFLOW_BACKEND_STORE_URI": tracker.uri,
    }
    with tempfile.TemporaryFile() as log:
        guard = subprocess.Popen(
            command,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            base = f"http://{LOOPBACK}:{port}"
            _wait_until_it_answers(base, guard, log)
            yield base
        finally:
            # The guard ends the server when its standard input is closed.
            assert guard.stdin is not None
            guard.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                guard.wait(2 * TERMINATE_TIMEOUT)
            signal_group(guard.pid, signal.SIGKILL)  # a guard that was stopped ends nothing
            guard.wait(KILL_TIMEOUT)


def _print_addresses(tracker: Tracker, base: str) -> None:
    """Print the address of the server at `base` and of each sweep's page on it."""
    shown_base = shown_uri(base)
    print(f"MLflow shows {tracker.results.path}: {shown_base}")
    for sweep, address in tracker.pages(shown_base).items():
        print(f"  {sweep}: {address}")


def _is_free(port: int) -> bool:
    """Return whether nothing listens on a port, by listening on it for a moment."""
    try:
        socket.create_server((LOOPBACK, port)).close()
    except OSError:
        return False
    return True


def _wait_until_it_answers(
    base: str,
    guard: subprocess.Popen[bytes],
    log: IO[bytes],
) -> None:
    """Return once the server at `base` answers.

    Raises HarnessError with the last line of the server's log if it ends before that, or if it has
    not answered within STARTUP_TIMEOUT.
    """
    no_proxy = urllib.request.ProxyHandler({})  # loopback needs none
    opener = urllib.request.build_opener(no_proxy)
    deadline = time.monotonic() + STARTUP_TIMEOUT
    while time.monotonic() < deadline and guard.poll() is None:
        try:
            with opener.open(f"{base}/health", timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    log.seek(0)
    output = log.read().decode("utf-8", errors="replace")
    _, _, last_line = output.strip().rpartition("\n")
    raise HarnessError(f"MLflow's server did not start at {base}: {one_line(last_line)}")


def guard(command: Sequence[str]) -> None:
    """Run `command` until it ends or until our standard input is closed; then end our session.

    The kernel closes the pipe to our standard input when our parent ends in whatever way, by
    SIGKILL too. The whole session is ended, this process included, because MLflow's server leaves
    helper processes behind.
    """
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    while process.poll() is None:
        readable, _, _ = select.select([sys.stdin], [], [], 0.2)
        if readable:  # nobody writes to it, so that it is its end
            break
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    try:
        process.wait(TERMINATE_TIMEOUT)
    finally:
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    guard(sys.argv[1:])
