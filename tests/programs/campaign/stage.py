"""A folder in which one fault after the other strikes the same half-finished sweep."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.programs.campaign import shim, warm
from tests.programs.campaign.oracle import Finding, Snapshot, check_end, compare, take_snapshot
from tests.programs.campaign.warm import Ended
from tests.support.running import line_sweep, local_profile

DEADLINE = 180.0  # seconds after which a command counts as hung
SWEEP_KEYS: Mapping[str, Any] = {
    "name": "campaign",
    "seeds": [0, 1],
    "length": {"steps": 12},
    "evaluate": {"steps": 4},
    "checkpoint": {"best": True, "every": "3 steps"},
    "timeout": 90,
}
OPTIONS = {"dropout": 0.3, "noise": 0.1}  # so that the state of every generator counts
TWO_RANKS = {"world_size": 2, "strategy": "ddp"}


@dataclass
class Stage:
    """A sweep of two trials, the first of which is done, and all that a fault is to strike.

    `work` holds the sweep, its results and temporary files; it is the root of the calls that
    count. Before each fault it is restored from a copy.
    """

    folder: Path
    options: Mapping[str, Any] = field(default_factory=dict)  # further ones of the workload
    axes: Mapping[str, Any] = field(default_factory=lambda: TWO_RANKS)
    profile: Mapping[str, Any] = field(default_factory=dict)  # keys of the cluster profile
    keys: Mapping[str, Any] = field(default_factory=dict)  # of the sweep
    write: Callable[[Path], None] | None = None  # writes other files than those of the sweep

    @property
    def work(self) -> Path:
        """Return the folder that faults strike."""
        return self.folder / "work"

    def output(self, number: int) -> Path:
        """Return the file that a command's output goes to."""
        return self.folder / f"output-{number}"

    def output_files(self) -> list[Path]:
        """Return the files with what the commands of the last fault printed."""
        return sorted(self.folder.glob("output-*"))

    @property
    def control(self) -> shim.Control:
        """Return the control page, which this process has to have been started with."""
        return shim.Control(Path(os.environ[shim.CONTROL_VARIABLE]))

    @property
    def run_command(self) -> list[str]:
        """Return the arguments of the command that runs the sweep, both trials of it."""
        return ["run", "line.yaml", "--cluster", "local.yaml", "--results", "results"]

    def prepare_files(self) -> None:
        """Write the files that commands read, and keep a copy of them."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._make_folders()
        if self.write is not None:
            self.write(self.work)
        else:
            entry = {"options": {**OPTIONS, **self.options}, "axes": dict(self.axes)}
            line_sweep(self.work, {"line": entry}, **{**SWEEP_KEYS, **self.keys})
            local_profile(self.work, slots=2, **self.profile)
        self._keep_copy()

    def prepare(self) -> None:
        """Write the sweep, run its first trial, and keep a copy of all that."""
        self.prepare_files()
        modules = self.folder / "modules"
        self.control.watch(self.work)
        ended = self.run([*self.run_command, "--set", "seeds=[0]"], modules=modules)
        self.control.stop()
        if ended.exit_code != 0:
            raise RuntimeError(f"the first trial failed: {ended.output}")
        warm.preload_from(modules)
        self._keep_copy()

    def restore(self) -> None:
        """Put everything back to where the copy was made."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.folder / "template", self.work)
        self._make_folders()

    def run(self, arguments: Sequence[str], *, modules: Path | None = None) -> Ended:
        """Run a command to its end."""
        (ended,) = self.wait([self.start(arguments, modules=modules)])
        return ended

    def start(
        self, arguments: Sequence[str], *, number: int = 0, modules: Path | None = None
    ) -> int:
        """Start a command and return its id; `number` counts those that run beside each other."""
        output = self.output(number)
        output.unlink(missing_ok=True)
        variables = {
            "TMPDIR": str(self.work / "tmp"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "COLUMNS": "200",
        }
        return warm.start(
            arguments, folder=self.work, variables=variables, output=output, modules=modules
        )

    def wait(self, pids: Sequence[int], server: int | None = None) -> list[Ended]:
        """Wait until the commands have ended, in the order in which they were started.

        A `server` is interrupted after them.
        """
        outputs = [self.output(number) for number in range(len(pids))]
        return warm.wait(pids, outputs=outputs, deadline=DEADLINE, server=server)

    def kill(self, pid: int) -> None:
        """Kill a command, and none of what it started."""
        os.kill(pid, signal.SIGKILL)

    def snapshot(self) -> Snapshot:
        """Return what the oracle sees of the folder now."""
        return take_snapshot(self.work)

    def check_end(self, ended: Ended, command: str) -> list[Finding]:
        """Return what is wrong with how a command ended."""
        return check_end(ended, self.control.roles(), command)

    def _keep_copy(self) -> None:
        """Keep a copy of the folder, in place of an earlier one."""
        shutil.rmtree(self.folder / "template", ignore_errors=True)
        shutil.copytree(self.work, self.folder / "template", symlinks=True)

    def _make_folders(self) -> None:
        (self.work / "tmp").mkdir(parents=True, exist_ok=True)


def undisturbed(stage: Stage) -> Snapshot:
    """Run the sweep to its end without a fault, and return what it leaves."""
    stage.restore()
    stage.control.watch(stage.work)
    ended = stage.run(stage.run_command)
    stage.control.stop()
    findings = stage.check_end(ended, "run")
    if ended.exit_code or findings:
        raise RuntimeError(f"the undisturbed run: {findings}\n{ended.output}")
    return stage.snapshot()


def run_again(stage: Stage, expected: Snapshot) -> list[Finding]:
    """Run the sweep without a fault, and hold the outcome against an undisturbed run."""
    stage.output(0).rename(stage.folder / "output-disturbed")
    stage.control.watch(stage.work)
    ended = stage.run(stage.run_command)
    stage.control.stop()
    findings = stage.check_end(ended, "run again")
    if ended.exit_code not in (0, None):
        last_line = ended.output.rstrip().rpartition("\n")[2]
        findings.append(Finding("lost", f"run again: exit code {ended.exit_code}: {last_line}"))
    return findings + compare(expected, stage.snapshot())
