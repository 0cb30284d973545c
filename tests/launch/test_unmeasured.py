"""Tasks of ranks that are no trials: what they leave behind."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from harness.core.errors import HarnessError
from harness.core.paths import TrialFolder
from harness.launch.ranks import run_ranks
from harness.launch.torchrun import Torchrun
from harness.launch.unmeasured import finish
from tests.support.running import wait_until

# Starts something in a session of its own, and is killed before it could end that.
KILLED = """
import os, signal, subprocess
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@dataclass(frozen=True, kw_only=True)
class Program(Torchrun):
    """Starts a program in place of torchrun."""

    code: str

    def command(
        self, module: str, folder: TrialFolder, ranks: int, more: Sequence[str] = ()
    ) -> list[str]:
        return [sys.executable, "-S", "-c", self.code]


def run(folder: TrialFolder, program: Program) -> None:
    """Run a program that leaves no result of a rank."""
    variables = program.variables(1, {})
    folder.assignment_path.touch()
    with pytest.raises(HarnessError, match="rank 0: Lost: left no result; its launcher"):
        finish(run_ranks(program, folder, 1, variables, 60), folder)


def test_what_a_killed_launcher_has_left_is_ended(tmp_path: Path) -> None:
    folder = TrialFolder(tmp_path)
    run(folder, Program(code=KILLED, environment={}))
    child = int(folder.launch_log.read_text(encoding="utf-8"))
    wait_until(lambda: not psutil.pid_exists(child), 10)
    assert not psutil.pid_exists(child)


def test_a_log_is_kept_as_it_was_printed(tmp_path: Path) -> None:
    """A name that looks like a password is text of the user's, as is a word after `Basic`."""
    text = "Basic ResidualBlock3 next_token=the2cat KEY=layer1.weight"
    folder = TrialFolder(tmp_path)
    run(folder, Program(code=f"print({text!r})", environment={}))
    assert folder.launch_log.read_text(encoding="utf-8") == f"{text}\n"
