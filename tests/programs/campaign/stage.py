"""A folder in which one fault after the other strikes the same half-finished sweep."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from harness.core.processes import die_with_parent
from tests.programs.campaign.commands import Command, Ended, wait
from tests.programs.campaign.oracle import Finding, Snapshot, check_end, compare, take_snapshot
from tests.programs.campaign.shim import Control
from tests.support.running import line_sweep, local_profile

# Seconds after which a command counts as hung: a forkserver that is stopped while it loads is given 300.
DEADLINE = 420.0
RUN = ("run", "line.yaml", "--cluster", "local.yaml")  # both trials of the sweep
SWEEP_KEYS: Mapping[str, Any] = {
    "name": "campaign",
    "seeds": [0, 1],
    "length": {"steps": 12},
    "evaluate": {"steps": 4},
    "checkpoint": {"best": True, "every": "3 steps"},
}
# So that the state of every generator counts, and faults strike while ranks train.
OPTIONS = {"dropout": 0.3, "noise": 0.1, "step_seconds": 0.1}
AXES = {"world_size": 2, "strategy": "ddp"}
TIMEOUT = 30.0  # seconds, of a trial: a rank that is stopped costs all of them


class Stage:
    """What a fault is to strike, and the commands that run there.

    `work` holds a sweep, its results and temporary files; it is the root of the calls that
    count. Before each fault it is restored from a copy.
    """

    def __init__(self, folder: Path, write: Callable[[Path], None]) -> None:
        """Have `write` write the files that commands read, and keep a copy of them."""
        shutil.rmtree(folder, ignore_errors=True)
        self.folder = folder
        self.work = folder / "work"
        (self.work / "tmp").mkdir(parents=True)
        self.control = Control(folder)
        write(self.work)
        self.keep_copy("template")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count the calls below the folder while the block lasts."""
        self.control.watch(self.work)
        yield
        self.control.stop()

    def keep_copy(self, name: str) -> None:
        """Keep a copy of the folder, in place of an earlier one of that name."""
        shutil.rmtree(self.folder / name, ignore_errors=True)
        shutil.copytree(self.work, self.folder / name, symlinks=True)

    def restore(self, name: str = "template") -> None:
        """Put everything back to where a copy was made."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.folder / name, self.work)

    def start(self, arguments: Sequence[str], *, number: int = 0) -> Command:
        """Start a command; `number` counts those that run beside each other."""
        environment = {
            **os.environ,
            **self.control.variables,
            "TMPDIR": str(self.work / "tmp"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "COLUMNS": "200",
        }
        environment.pop("MLFLOW_TRACKING_URI", None)
        with self._output(number).open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "harness.cli", *arguments],
                cwd=self.work,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                # A campaign that is killed leaves nothing behind either.
                preexec_fn=partial(die_with_parent, parent=os.getpid()),
            )

    def wait(self, commands: Sequence[Command], server: Command | None = None) -> list[Ended]:
        """Wait until the commands have ended, in the order in which they were started.

        A `server` is interrupted after them.
        """
        outputs = [self._output(number) for number in range(len(commands))]
        return wait(commands, outputs=outputs, deadline=DEADLINE, server=server)

    def run(self, arguments: Sequence[str]) -> Ended:
        """Run a command to its end."""
        with self.watching():
            (ended,) = self.wait([self.start(arguments)])
        return ended

    def check_end(self, ended: Ended, command: str) -> list[Finding]:
        """Return what is wrong with how a command ended."""
        return check_end(ended, self.control.roles(), command)

    def run_undisturbed(self, arguments: Sequence[str]) -> Ended:
        """Run a command without a fault; raises RuntimeError if anything is wrong with it."""
        ended = self.run(arguments)
        findings = self.check_end(ended, arguments[0])
        if ended.exit_code or findings:
            raise RuntimeError(f"undisturbed {arguments[0]}: {findings}\n{ended.output}")
        return ended

    def run_again(self, expected: Snapshot) -> list[Finding]:
        """Run the sweep without a fault, and compare the outcome with that of an undisturbed run."""
        self.keep_output()
        ended = self.run(RUN)
        findings = self.check_end(ended, "run again")
        if ended.exit_code not in (0, None):
            text = f"run again: exit code {ended.exit_code}: {ended.last_line}"
            findings.append(Finding("lost", text))
        return findings + compare(expected, take_snapshot(self.work))

    def keep_output(self) -> None:
        """Keep what the disturbed command has printed, before another one runs."""
        self._output(0).rename(self.folder / "output-disturbed")

    def _output(self, number: int) -> Path:
        return self.folder / f"output-{number}"


class SweepStage(Stage):
    """A stage with a sweep of two trials of which one is done."""

    def __init__(
        self, folder: Path, *, num_workers: int = 0, timeout: float = TIMEOUT, **profile: Any
    ) -> None:
        def write(work: Path) -> None:
            entry = {"options": OPTIONS, "axes": {**AXES, "num_workers": num_workers}}
            line_sweep(work, {"line": entry}, timeout=timeout, **SWEEP_KEYS)
            local_profile(work, slots=2, **profile)

        super().__init__(folder, write)
        self.run_undisturbed([*RUN, "--set", "seeds=[0]"])
        self.keep_copy("template")
        self.run_undisturbed(RUN)
        self.expected = take_snapshot(self.work)  # what a whole run leaves
        self.keep_copy("whole")
