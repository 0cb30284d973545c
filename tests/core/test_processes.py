"""Processes end when they should, and fork when they may."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from harness.core.errors import HarnessError
from harness.core.processes import (
    PARENT_VARIABLE,
    end_process_group,
    run_command,
    signal_group,
    start_session,
    wait_for_idle_threads,
)
from tests.support.running import wait_until
from tests.support.tree import TOP


def work(ended: threading.Event) -> None:
    hashlib.pbkdf2_hmac("sha256", b"long", b"enough", 300_000)  # without the interpreter
    ended.set()


def test_threads_at_work_are_waited_for_and_threads_that_wait_are_not() -> None:
    worked, ended = threading.Event(), threading.Event()
    waiting = threading.Thread(target=ended.wait)
    waiting.start()
    threading.Thread(target=work, args=[worked]).start()
    wait_for_idle_threads(60)
    assert worked.is_set()
    assert waiting.is_alive()
    ended.set()
    waiting.join()


def test_threads_that_never_rest_are_not_waited_for_for_long() -> None:
    ended = threading.Event()

    def go_on() -> None:
        while not ended.is_set():
            work(threading.Event())

    restless = threading.Thread(target=go_on)
    restless.start()
    wait_for_idle_threads(0.05)
    assert not ended.is_set()
    ended.set()
    restless.join()


def run_program(program: str, **variables: str) -> str:
    """Return what a Python program prints, once every process that has its output has ended."""
    environment = {**os.environ, "PYTHONPATH": str(TOP), **variables}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    return done.stdout


class TestDieWithParent:
    # Its parent has ended before it can ask the kernel for anything.
    ORPHAN = (
        "import os, time\n"
        "from harness.core.processes import die_with_parent\n"
        "parent = os.getpid()\n"
        "if os.fork():\n"
        "    os._exit(0)\n"
        "while os.getppid() == parent:\n"
        "    time.sleep(0.001)\n"
        "print('orphan', flush=True)\n"
    )

    def test_ends_a_process_whose_parent_has_ended_before(self) -> None:
        program = f"{self.ORPHAN}die_with_parent(parent=parent)\nprint('alive')\n"
        assert run_program(program) == "orphan\n"

    def test_takes_the_parent_from_the_variable_once(self) -> None:
        ended = f"{self.ORPHAN}die_with_parent()\nprint('alive')\n"
        assert run_program(ended, **{PARENT_VARIABLE: "1000000"}) == "orphan\n"
        alive = (
            "import os\n"
            "from harness.core.processes import die_with_parent, parent_variables\n"
            f"os.environ[{PARENT_VARIABLE!r}] = str(os.getppid())\n"
            "die_with_parent()\n"
            f"print({PARENT_VARIABLE!r} in os.environ)\n"
        )
        assert run_program(alive) == "False\n"

    def test_needs_no_more_than_the_standard_library(self) -> None:
        program = (
            "import sys; before = set(sys.modules); import harness.core.processes\n"
            "added = {name.split('.')[0] for name in set(sys.modules) - before}\n"
            "print(*sorted(added - set(sys.stdlib_module_names)))\n"
        )
        assert run_program(program) == "harness\n"


def test_what_a_block_has_started_ends_with_it_in_whatever_session() -> None:
    program = (
        "import subprocess\n"
        "from harness.core.processes import ending_descendants\n"
        "with ending_descendants():\n"
        "    subprocess.run(['sh', '-c', 'setsid sleep 60 >/dev/null & echo $!'])\n"
        "print('ended')\n"
    )
    pid, ended = run_program(program).split()
    assert ended == "ended"
    assert not psutil.pid_exists(int(pid))


class TestEndProcessGroup:
    def test_ends_what_a_leader_that_has_ended_left_behind(self, tmp_path: Path) -> None:
        leader = start_session(["sh", "-c", "sleep 60 & echo $!"], os.environ, tmp_path / "log")
        assert leader.wait(60) == 0
        pid = int((tmp_path / "log").read_text(encoding="utf-8"))
        assert psutil.pid_exists(pid)
        end_process_group(leader)
        wait_until(lambda: not psutil.pid_exists(pid), 5)

    def test_kills_a_process_that_ignores_the_request(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("harness.core.processes.TERMINATE_TIMEOUT", 0.1)
        log = tmp_path / "log"
        program = "trap '' TERM; echo ready; sleep 60; sleep 60"
        process = start_session(["sh", "-c", program], os.environ, log)
        wait_until(lambda: log.read_text(encoding="utf-8"))
        end_process_group(process)
        assert process.poll() == -signal.SIGKILL

    def test_does_nothing_once_all_have_ended(self, tmp_path: Path) -> None:
        process = start_session(["true"], os.environ, tmp_path / "log")
        process.wait(60)
        end_process_group(process)
        signal_group(process.pid, signal.SIGTERM)
        assert process.poll() == 0


def test_a_command_that_takes_too_long_is_ended_with_all_that_it_has_started() -> None:
    done = run_command(["sh", "-c", "echo out; echo err >&2; cat; exit 3"], timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")
    mark = f"sleep {600 + os.getpid() / 1e6}"
    with pytest.raises(HarnessError, match=r"^waited 0\.2 s for `sh`, which was ended; look into"):
        run_command(["sh", "-c", f"{mark} & wait"], timeout=0.2, remedy="look into it")

    def is_gone() -> bool:
        """Whether no process has the command; the kernel may take a moment to end one."""
        running = psutil.process_iter(["cmdline"])
        return mark not in [" ".join(process.info["cmdline"] or []) for process in running]

    wait_until(is_gone, seconds=10)
