"""Ranks are forked from a process that has torch loaded, and are otherwise as if they had been started anew."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.errors import HarnessError
from harness.core.processes import Process, end_process_group, start_session
from harness.launch import forkserver
from tests.support.running import wait_until
from tests.support.tree import TOP

TOLD = """\
import json, os, sys, threading
print(json.dumps({
    "arguments": sys.argv[1:], "folder": os.getcwd(), "first": sys.path[0], "mine": os.environ.get("MINE"),
    "others": sorted(set(os.environ) - {"MINE"}), "group": os.getpgid(0) == os.getpid(), "stdin": sys.stdin.read(),
    "threads": threading.active_count(), "files": [name for name in os.listdir("/proc/self/fd") if int(name) > 2][1:],
    "name": __name__, "torch": "torch" in sys.modules,
}))
sys.exit(7)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a module `here` in the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "here.py"


def start(log: Path, *arguments: str, **variables: str) -> Process:
    return forkserver.start_worker(
        [sys.executable, "-m", "here", *arguments], {**os.environ, **variables}, log
    )


def test_it_is_as_if_started_anew(module: Path) -> None:
    module.write_text(TOLD, encoding="utf-8")
    forked, anew = module.with_name("forked.log"), module.with_name("anew.log")
    assert start(forked, "a b", "c", MINE="1").wait(300) == 7
    command = [sys.executable, "-m", "here", "a b", "c"]
    assert start_session(command, {**os.environ, "MINE": "1"}, anew).wait(300) == 7
    found, expected = (json.loads(log.read_text(encoding="utf-8")) for log in (forked, anew))
    assert (found.pop("torch"), expected.pop("torch")) == (True, False), "that is the point"
    assert found == expected


def test_each_is_as_the_first(module: Path) -> None:
    """What one leaves behind, the next one does not find."""
    text = "import os, sys, torch\nprint(torch.rand(1).item(), os.environ.pop('MINE', None))\nsys.modules['torch'] = None"
    module.write_text(text, encoding="utf-8")
    logs = [module.with_name(f"{number}.log") for number in range(3)]
    assert [start(log, MINE="1").wait(300) for log in logs] == [0, 0, 0]
    assert len({log.read_text(encoding="utf-8") for log in logs}) == 1
    assert "1" in logs[0].read_text(encoding="utf-8").split()


def test_a_module_that_fails_leaves_its_traceback(module: Path) -> None:
    module.write_text("raise ValueError('the dog ate it')", encoding="utf-8")
    log = module.with_name("log")
    assert start(log).wait(300) == 1
    assert log.read_text(encoding="utf-8").endswith("ValueError: the dog ate it\n")


def test_a_module_may_end_with_words(module: Path) -> None:
    module.write_text("import sys; sys.exit('no rank today')", encoding="utf-8")
    log = module.with_name("log")
    assert start(log).wait(300) == 1
    assert log.read_text(encoding="utf-8") == "no rank today\n"


def test_it_ends_with_its_group(module: Path) -> None:
    module.write_text("import subprocess; subprocess.run(['sleep', '600'])", encoding="utf-8")
    process = start(module.with_name("log"))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_until(children.read_text)
    (child,) = children.read_text().split()
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    end_process_group(process)
    assert process.poll() == -signal.SIGTERM
    wait_until(lambda: not Path(f"/proc/{child}").exists())


def test_a_server_that_was_killed_takes_its_processes_along_and_is_replaced(module: Path) -> None:
    module.write_text(
        "import time; time.sleep(600)",
        encoding="utf-8",
    )
    process = start(module.with_name("log"), MINE="killed")
    (parent,) = (line.split()[1] for line in status(process.pid) if line.startswith("PPid:"))
    os.kill(int(parent), signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    wait_until(lambda: not Path(f"/proc/{process.pid}").exists())
    module.write_text("", encoding="utf-8")
    assert start(module.with_name("log"), MINE="killed").wait(300) == 0


def status(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()


def test_it_ends_with_whoever_asked_for_it(module: Path) -> None:
    module.write_text("import time; time.sleep(600)", encoding="utf-8")
    text = (
        "import os, sys, time; from pathlib import Path; from harness.launch import forkserver\n"
        "process = forkserver.start_worker([sys.executable, '-m', 'here'], dict(os.environ), Path('log'))\n"
        "print(next(iter(forkserver._servers.values())).process.pid, process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    top = str(TOP)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([top, os.environ.get("PYTHONPATH", "")]),
    }
    with subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, env=environment
    ) as asking:
        assert asking.stdout is not None
        pids = asking.stdout.readline().split()
        asking.kill()
    assert len(pids) == 2
    wait_until(lambda: not any(Path(f"/proc/{int(pid)}").exists() for pid in pids), 60)


def test_a_thread_in_the_server_is_refused(module: Path) -> None:
    """Such as a profiler's that was preloaded: a fork would lose it, and what locks it holds would stay held."""
    sneaked = "import threading, time\nthreading.Thread(target=time.sleep, args=[60], daemon=True).start()\n"
    module.with_name("sitecustomize.py").write_text(sneaked, encoding="utf-8")
    path = os.pathsep.join([str(module.parent), os.environ.get("PYTHONPATH", "")])
    with pytest.raises(
        HarnessError,
        match=r"has 2 threads after loading its modules; allowed: 1; log: .*; `forkserver: false` in the profile",
    ):
        start(module.with_name("log"), PYTHONPATH=path)
