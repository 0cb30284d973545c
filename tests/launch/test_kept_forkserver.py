"""A forkserver that stays serves later commands as a new one would, and leaves nothing behind."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from harness.core.errors import BadInput
from harness.launch import forkserver, kept_forkserver
from harness.launch.forkserver import ForkRequest, ForkServer, shared_server
from harness.launch.kept_forkserver import Setup, loading_variables
from harness.spec.cluster import KEEP_FORKSERVER, load_profile
from tests.support.forkservers import end_servers
from tests.support.running import wait_until
from tests.support.tree import TOP

SETUP = Setup(preload=["graphlib"])  # a module that takes no time
KEEP = 60.0


@pytest.fixture(autouse=True)
def runtime_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Keep the servers of a test to itself, and end them with it.

    The path of a socket has at most 107 characters, and pytest's folders have up to 80.
    """
    folder_of_run = os.environ["XDG_RUNTIME_DIR"]
    with tempfile.TemporaryDirectory(dir=folder_of_run) as short:
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        folder = Path(short) / "harness-forkservers"
        yield folder
        end_servers(folder)


def connect(keep_seconds: float = KEEP, setup: Setup = SETUP) -> ForkServer:
    server = ForkServer.connect(setup, dict(os.environ), keep_seconds)
    assert server is not None
    return server


def shared_by(server: ForkServer) -> psutil.Process:
    """Return the process that a command's own forkserver was forked from."""
    parent = psutil.Process(server.process.pid).parent()
    assert parent is not None
    return parent


def run_program(server: ForkServer, folder: Path, text: str) -> str:
    """Run a program in a process that the server forks, and return what it printed."""
    (folder / "program.py").write_text(text, encoding="utf-8")
    log = folder / "program.log"
    request = ForkRequest(
        module="program",
        arguments=[],
        variables={**os.environ, "PYTHONPATH": str(folder), "MINE": "1"},
        folder=str(folder),
        log=str(log),
    )
    (process,) = server.fork([request])
    assert process.wait(60) == 0, log.read_text(encoding="utf-8")
    return log.read_text(encoding="utf-8")


def test_commands_have_forkservers_of_their_own_from_one_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORE_PASSWORD", "hunter2hunter2")
    monkeypatch.setenv("_MLFLOW_TELEMETRY_SESSION_ID", "another in each process")
    with ThreadPoolExecutor() as pool:  # both at once, and neither runs yet
        first, second = pool.map(lambda _: connect(), range(2))
    shared = shared_by(first)
    assert shared_by(second) == shared
    assert first.process.pid != second.process.pid
    printed = run_program(
        second,
        tmp_path,
        "import os, sys\n"
        "print('graphlib' in sys.modules, os.environ['MINE'], os.environ['STORE_PASSWORD'])\n"
        "print(os.getcwd(), os.listdir('/proc/self/fd'))\n",
    )
    assert printed.startswith(f"True 1 hunter2hunter2\n{tmp_path} ['0', '1', '2', '3']")
    assert "STORE_PASSWORD" not in shared.environ()
    assert not {"PYTEST_CURRENT_TEST", "_MLFLOW_TELEMETRY_SESSION_ID"} & set(shared.environ())
    assert shared.cwd() == "/"
    first.close()
    wait_until(lambda: not psutil.pid_exists(first.process.pid), 30)
    assert second.process.poll() is None
    second.close()
    third = connect()
    assert shared_by(third) == shared
    third.close()


def test_who_keeps_nothing_has_a_forkserver_that_is_its_child(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though this process has used one that stays before, for a trial with another profile."""
    monkeypatch.setattr(forkserver, "_servers", {})
    kept = shared_server(dict(os.environ), SETUP, keep_seconds=KEEP)
    child = shared_server(dict(os.environ), SETUP, keep_seconds=0)
    assert psutil.Process(kept.process.pid).ppid() != os.getpid()
    assert psutil.Process(child.process.pid).ppid() == os.getpid()
    kept.close()
    child.close()


def test_a_server_ends_when_nobody_has_used_it_for_a_while(runtime_folder: Path) -> None:
    server = connect(keep_seconds=0.3)
    shared = shared_by(server)
    with pytest.raises(psutil.TimeoutExpired):
        shared.wait(0.6)
    server.close()
    shared.wait(30)
    assert [path.name for path in runtime_folder.iterdir()] == ["lock"]


def test_a_server_ends_once_its_folder_is_gone(
    runtime_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its user logs out; it looks whenever it wakes up."""
    server = connect(keep_seconds=KEEP)
    shared = shared_by(server)
    for path in runtime_folder.iterdir():
        path.unlink()
    runtime_folder.rmdir()
    server.close()
    shared.wait(30)
    assert not shared.is_running()


@pytest.mark.parametrize("change", ["killed", "stopped", "edited", "another version"])
def test_a_server_that_is_not_as_a_new_one_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(kept_forkserver, "STALL_TIMEOUT", 0.3)
    monkeypatch.setattr(kept_forkserver, "POLL", 0.1)
    loaded = tmp_path / "loaded.py"
    loaded.write_text("", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    setup = replace(SETUP, preload=["loaded"])
    server = connect(setup=setup)
    shared = shared_by(server)
    server.close()
    if change == "killed":
        shared.kill()
    elif change == "stopped":
        shared.suspend()
    elif change == "edited":
        loaded.write_text("VALUE = 1", encoding="utf-8")
    else:
        monkeypatch.setattr(kept_forkserver, "_installed_packages", lambda: ["torch-9.dist-info"])
    server = connect(setup=setup)
    assert shared_by(server) != shared
    server.close()
    if change != "another version":
        shared.wait(30)


def test_what_takes_long_is_loaded_while_the_first_new_server_loads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forkserver, "_servers", {})
    calls: list[str] = []

    def start(variable: str, keep_seconds: float) -> ForkServer:
        variables = {**os.environ, "VARIABLE": variable}
        return shared_server(
            variables,
            SETUP,
            keep_seconds=keep_seconds,
            while_loading=lambda: calls.append(variable),
        )

    servers = [start("new", KEEP)]
    assert calls == ["new"]
    servers.append(start("beside a trial", KEEP))
    forkserver._servers.clear()
    servers.append(start("new", KEEP))  # which has loaded everything already
    assert calls == ["new"]
    forkserver._servers.clear()
    servers.append(start("of this command alone", 0.0))
    assert calls == ["new", "of this command alone"]
    for server in servers:
        forkserver._close(server)


def test_a_server_that_does_not_come_up_leaves_the_command_to_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert ForkServer.connect(replace(SETUP, preload=["no_such"]), dict(os.environ), KEEP) is None

    def disk_is_full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(kept_forkserver, "_start", disk_is_full)
    assert ForkServer.connect(SETUP, dict(os.environ), KEEP) is None


def test_all_that_a_command_has_forked_ends_with_it_even_if_it_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import time; time.sleep(600)", encoding="utf-8")
    program = (
        "import os, sys, time; from pathlib import Path; from harness.launch import forkserver\n"
        "forkserver.TORCH = ()\n"
        "command = [sys.executable, '-P', '-m', 'program']\n"
        "process = forkserver.start_worker(command, dict(os.environ), Path('log'), keep_seconds=60)\n"
        "(server,) = forkserver._servers.values()\n"
        "print(server.process.pid, process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    python_path = os.pathsep.join([str(TOP), str(tmp_path)])
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": python_path},
    ) as command:
        assert command.stdout is not None
        server, process = map(int, command.stdout.readline().split())
        os.kill(server, signal.SIGSTOP)
        command.kill()
    wait_until(lambda: not psutil.pid_exists(server) and not psutil.pid_exists(process), 30)


def test_a_folder_that_is_not_private_is_not_used(tmp_path: Path, runtime_folder: Path) -> None:
    runtime_folder.symlink_to(tmp_path)
    assert ForkServer.connect(SETUP, dict(os.environ), KEEP) is None


def test_beyond_a_number_the_longest_unused_server_ends(
    monkeypatch: pytest.MonkeyPatch, runtime_folder: Path
) -> None:
    monkeypatch.setattr(kept_forkserver, "most_servers", lambda: 2)
    for color in ("red", "green", "blue"):
        monkeypatch.setenv("COLOR", color)
        connect().close()
    assert len(list(runtime_folder.glob("*.socket"))) == 2


def identity(setup: Setup = SETUP, **variables: str) -> str:
    return kept_forkserver._identity(setup, variables)


def test_a_command_that_would_hand_down_something_else_has_another_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = identity()
    assert identity() == before
    assert identity(MKL_CBWR="AVX2") != before
    assert identity(replace(SETUP, preload=["torch"])) != before
    umask = os.umask(0o077)
    try:
        assert identity() != before
    finally:
        os.umask(umask)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        assert len(cores) == 1 or identity() != before
    finally:
        os.sched_setaffinity(0, cores)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    try:
        assert identity() != before
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])
    assert identity() == before


def test_a_server_gets_what_libraries_may_read_and_no_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        os,
        "environ",
        {"TERM": "xterm", "OMP_NUM_THREADS": "1", "API_KEY": "a", "PROXY": "http://me:secret@host"},
    )
    variables = {**os.environ, "SHLVL": "a cell's own", "PYTHONPATH": "here"}
    assert loading_variables(variables) == {
        "OMP_NUM_THREADS": "1",
        "SHLVL": "a cell's own",
        "PYTHONPATH": str(Path.cwd() / "here"),
    }


def test_a_variable_says_for_how_long_a_server_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEEP_FORKSERVER, raising=False)
    assert load_profile("local").keep_forkserver == 300
    monkeypatch.setenv(KEEP_FORKSERVER, "0")
    assert load_profile("local").keep_forkserver == 0
    monkeypatch.setenv(KEEP_FORKSERVER, "soon")
    with pytest.raises(
        BadInput, match=r"HARNESS_KEEP_FORKSERVER: found 'soon'; allowed: 0 to 86,4"
    ):
        load_profile("local")


@pytest.mark.parametrize(
    ("gibibytes", "limit", "servers"), [(4, None, 4), (24, None, 13), (24, 8, 4), (24, 64, 13)]
)
def test_forkservers_take_an_eighth_of_the_memory(
    monkeypatch: pytest.MonkeyPatch, gibibytes: int, limit: int | None, servers: int
) -> None:
    """Of the machine, or of the control group; four are kept in any case."""
    memory = Mock(total=gibibytes << 30)
    monkeypatch.setattr(kept_forkserver, "FEWEST_SERVERS", 4)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    limit_bytes = None if limit is None else limit << 30
    monkeypatch.setattr(kept_forkserver, "memory_limit", lambda: limit_bytes)
    assert kept_forkserver.most_servers() == servers
