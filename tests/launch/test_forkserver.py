"""A forkserver forks processes that have torch loaded and are otherwise as if started anew."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from harness.core.errors import HarnessError
from harness.core.processes import start_session
from harness.launch import forkserver
from harness.launch.forkserver import (
    ForkedRanks,
    ForkRequest,
    ForkServer,
    shared_server,
)
from tests.support.running import wait_until
from tests.support.tree import TOP

# Prints what a process can see of how it was started.
DESCRIBE = """\
import json, os, sys, threading
print(json.dumps({
    "arguments": sys.argv[1:],
    "folder": os.getcwd(),
    "import_path": sys.path,
    "mine": os.environ.get("MINE"),
    "other variables": sorted(set(os.environ) - {"MINE"}),
    "leads a group": os.getpgid(0) == os.getpid(),
    "stdin": sys.stdin.read(),
    "threads": threading.active_count(),
    "files": [name for name in os.listdir("/proc/self/fd") if int(name) > 2][1:],
    "name": __name__,
    "loaded": "decimal" in sys.modules,
}))
sys.exit(7)
"""
PRINT_TREE = """\
import json, os, sys
import own
loaded = [name for name in sys.modules if name.split(".")[0] == "harness"]
print(json.dumps({"value": own.VALUE, "cores": sorted(os.sched_getaffinity(0)), "harness": loaded}))
"""

PRELOAD = ("decimal",)


@pytest.fixture(autouse=True)
def few_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have forkservers load next to nothing: what they do does not depend on what they have loaded."""
    monkeypatch.setattr(forkserver, "PRELOAD", PRELOAD)


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """The file of a module `program`."""
    return tmp_path / "program.py"


def request(
    log: Path,
    arguments: Sequence[str] = (),
    cores: Sequence[int] = (),
    variables: Mapping[str, str] = MappingProxyType({}),
) -> ForkRequest:
    """A process that runs the module `program` in the folder of its log, as a rank of a gate's arm is started."""
    tree = str(log.parent)
    return ForkRequest(
        module="program",
        arguments=arguments,
        variables={**os.environ, "PYTHONPATH": tree, **variables},
        folder=tree,
        log=str(log),
        cores=cores,
    )


def start(log: Path, *arguments: str, **variables: str) -> ForkedRanks:
    """Start a process from the forkserver that the tests share."""
    process = request(log, arguments, variables=variables)
    return shared_server(os.environ, PRELOAD).fork([process])


def printed(log: Path) -> Any:
    return json.loads(log.read_text(encoding="utf-8"))


def test_a_forked_process_is_as_if_started_anew(module: Path) -> None:
    module.write_text(DESCRIBE, encoding="utf-8")
    forked_log = module.with_name("forked.log")
    fresh_log = module.with_name("fresh.log")
    assert start(forked_log, "a b", "c", MINE="1").wait(300) == 7
    command = [sys.executable, "-P", "-m", "program", "a b", "c"]
    variables = {**os.environ, "PYTHONPATH": str(module.parent), "MINE": "1"}
    assert start_session(command, variables, fresh_log, module.parent).wait(300) == 7
    forked = printed(forked_log)
    fresh = printed(fresh_log)
    assert (forked.pop("loaded"), fresh.pop("loaded")) == (True, False), "that is the point"
    assert forked == fresh


def test_a_process_finds_nothing_that_an_earlier_one_left_behind(module: Path) -> None:
    module.write_text(
        "import decimal, os, sys\n"
        "print(decimal.getcontext().prec, os.environ.pop('MINE', None))\n"
        "decimal.getcontext().prec = 5\n"
        "sys.modules['decimal'] = None\n",
        encoding="utf-8",
    )
    logs = [module.with_name(f"{number}.log") for number in range(3)]
    for log in logs:
        assert start(log, MINE="1").wait(300) == 0
    assert len({log.read_text(encoding="utf-8") for log in logs}) == 1
    assert "1" in logs[0].read_text(encoding="utf-8").split()


@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("raise ValueError('the dog ate it')", "ValueError: the dog ate it\n"),
        ("import sys; sys.exit('no rank today')", "no rank today\n"),
    ],
)
def test_a_module_that_fails_leaves_why(module: Path, code: str, end: str) -> None:
    module.write_text(code, encoding="utf-8")
    log = module.with_name("log")
    assert start(log).wait(300) == 1
    assert log.read_text(encoding="utf-8").endswith(end)


def test_the_exit_code_of_a_process_that_ends_at_once_is_not_lost(module: Path) -> None:
    module.write_text("import os; os._exit(3)", encoding="utf-8")
    for number in range(10):
        assert start(module.with_name(f"{number}.log")).wait(60) == 3


def test_processes_end_with_their_groups_before_the_next_ones_start(module: Path) -> None:
    module.write_text("import subprocess; subprocess.run(['sleep', '600'])", encoding="utf-8")
    processes = start(module.with_name("log"))
    (pid,) = processes.pids
    children = Path(f"/proc/{pid}/task/{pid}/children")
    wait_until(children.read_text)
    (child,) = children.read_text().split()
    with pytest.raises(subprocess.TimeoutExpired):
        processes.wait(0.01)
    processes.end(grace=0.0)
    assert processes.exit_codes() == [-signal.SIGKILL]
    assert not Path(f"/proc/{pid}").exists()
    wait_until(lambda: not Path(f"/proc/{child}").exists())


def test_a_forkserver_that_was_killed_takes_its_processes_along_and_is_replaced(
    module: Path,
) -> None:
    module.write_text("import time; time.sleep(600)", encoding="utf-8")
    process = start(module.with_name("log"))
    process.server.process.send_signal(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    wait_until(lambda: not Path(f"/proc/{process.pids[0]}").exists())
    module.write_text("", encoding="utf-8")
    assert start(module.with_name("log")).wait(300) == 0


def test_everything_ends_with_the_process_that_started_the_forkserver(module: Path) -> None:
    module.write_text("import time; time.sleep(600)", encoding="utf-8")
    log = module.with_name("log")
    program = (
        "import os, time\n"
        "from harness.launch.forkserver import ForkRequest, shared_server\n"
        f"server = shared_server(dict(os.environ), {PRELOAD})\n"
        "request = ForkRequest(module='program', arguments=[], variables=dict(os.environ),"
        f" folder='.', log={str(log)!r})\n"
        "process = server.fork([request])\n"
        "print(server.process.pid, *process.pids, flush=True)\n"
        "time.sleep(600)\n"
    )
    python_path = os.pathsep.join([str(TOP), str(module.parent)])
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": python_path},
    ) as starter:
        assert starter.stdout is not None
        pids = [int(pid) for pid in starter.stdout.readline().split()]
        starter.kill()
    assert len(pids) == 2
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 60)


def test_a_forkserver_with_a_second_thread_is_refused(module: Path) -> None:
    """Such as a profiler's: a fork would lose it, and the locks that it holds would stay locked."""
    module.with_name("sitecustomize.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=[60], daemon=True).start()\n",
        encoding="utf-8",
    )
    server = ForkServer({**os.environ, "PYTHONPATH": str(module.parent)}, PRELOAD)
    with pytest.raises(HarnessError, match=r"has 2 threads after loading its modules; allowed: 1$"):
        server.fork([])
    server.close()


def test_a_library_that_starts_a_thread_when_it_is_loaded_is_told_not_to(module: Path) -> None:
    """That of pyarrow's allocator, which scikit-learn loads where pandas is installed."""
    server = ForkServer(os.environ, ["pyarrow"])
    module.write_text("import os; print(os.environ.get('JE_ARROW_MALLOC_CONF'))")
    log = module.with_name("log")
    try:
        assert server.fork([request(log)]).wait(60) == 0
    finally:
        server.close()
    assert log.read_text(encoding="utf-8") == "None\n"


def test_a_package_that_a_tree_must_not_hide_is_found_where_it_is(module: Path) -> None:
    own = module.with_name("harness")
    own.mkdir()
    (own / "__init__.py").write_text("raise RuntimeError('not ours')")
    module.write_text("import harness.core.errors\nprint(harness.__path__[0])")
    hidden = request(module.with_name("log"))
    found = replace(hidden, packages={"harness": str(TOP)})
    server = shared_server(os.environ, PRELOAD)
    assert [server.fork([process]).wait(60) for process in (hidden, found)] == [1, 0]
    lines = Path(found.log).read_text(encoding="utf-8").splitlines()
    assert lines[-1] == str(TOP / "harness")


def test_processes_of_one_forkserver_import_from_their_own_trees(tmp_path: Path) -> None:
    """It has loaded nothing of the harness, which each of them imports from its own tree too."""
    usable = sorted(os.sched_getaffinity(0))
    requests, expected = [], []
    for name, core in (("a", usable[0]), ("b", usable[-1])):
        tree = tmp_path / name
        tree.mkdir()
        (tree / "own.py").write_text(f"VALUE = {name!r}\n", encoding="utf-8")
        (tree / "program.py").write_text(PRINT_TREE, encoding="utf-8")
        requests.append(request(tree / "log", cores=[core]))
        expected.append({"value": name, "cores": [core], "harness": []})
    server = shared_server(os.environ, PRELOAD)
    assert server.fork(requests).wait(300) == 0
    assert [printed(Path(process.log)) for process in requests] == expected
    assert shared_server(os.environ, PRELOAD) is server


def test_idle_forkservers_are_ended_beyond_a_number_the_longest_unused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable that is missing makes another forkserver, as one with another value does."""
    monkeypatch.setattr(forkserver, "_servers", {})
    monkeypatch.setattr(forkserver, "MAX_SERVERS", 2)
    monkeypatch.setenv("COLOR_OF_SERVER", "green")
    (tmp_path / "program.py").write_text("import time; time.sleep(600)", encoding="utf-8")
    green = dict(os.environ)
    blue = {**green, "COLOR_OF_SERVER": "blue"}
    unset = {name: value for name, value in green.items() if name != "COLOR_OF_SERVER"}
    busy = shared_server(green, [])
    processes = busy.fork([request(tmp_path / "log")])
    idle = shared_server(blue, [])
    idle.fork([])
    third = shared_server(unset, [])
    assert list(forkserver._servers.values()) == [busy, third]
    assert idle.process.poll() is not None
    assert shared_server(green, []) is busy
    processes.end()
    for server in (busy, third):
        server.close()
