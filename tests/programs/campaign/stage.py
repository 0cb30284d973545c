"""A folder in which one fault after the other strikes the same half-finished sweep."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from tests.programs.campaign import shim, warm
from tests.programs.campaign.oracle import Finding, Snapshot, check_end, compare, take_snapshot
from tests.programs.campaign.warm import Ended
from tests.support.running import line_sweep, local_profile

DEADLINE = 180.0  # seconds after which a command counts as hung
RUN = ("run", "line.yaml", "--cluster", "local.yaml")  # both trials of the sweep
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


class Campaign(Protocol):
    """Faults of one kind, and what they strike; made with a folder of its own."""

    def faults(self, generator: random.Random) -> Sequence[str]:
        """Return the addresses of all faults in the order in which they strike."""
        ...

    def row(self, address: str) -> str:
        """Return the row of the table that counts a fault."""
        ...

    def strike(self, address: str) -> list[Finding] | None:
        """Let a fault strike, run the sweep again, and judge; None if it was never reached."""
        ...

    def output_files(self) -> list[Path]:
        """Return the files with what the commands of the last fault printed."""
        ...


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
        self.control = shim.Control(Path(os.environ[shim.CONTROL_VARIABLE]))
        (self.work / "tmp").mkdir(parents=True)
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

    def start(self, arguments: Sequence[str], *, number: int = 0) -> int:
        """Start a command and return its id; `number` counts those that run beside each other."""
        output = self._output(number)
        output.unlink(missing_ok=True)
        variables = {
            "TMPDIR": str(self.work / "tmp"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "COLUMNS": "200",
        }
        return warm.start(arguments, folder=self.work, variables=variables, output=output)

    def wait(self, pids: Sequence[int], server: int | None = None) -> list[Ended]:
        """Wait until the commands have ended, in the order in which they were started.

        A `server` is interrupted after them.
        """
        outputs = [self._output(number) for number in range(len(pids))]
        return warm.wait(pids, outputs=outputs, deadline=DEADLINE, server=server)

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
        self._output(0).rename(self.folder / "output-disturbed")
        ended = self.run(RUN)
        findings = self.check_end(ended, "run again")
        if ended.exit_code not in (0, None):
            text = f"run again: exit code {ended.exit_code}: {ended.last_line}"
            findings.append(Finding("lost", text))
        return findings + compare(expected, take_snapshot(self.work))

    def output_files(self) -> list[Path]:
        """Return the files with what the commands of the last fault printed."""
        return sorted(self.folder.glob("output-*"))

    def _output(self, number: int) -> Path:
        return self.folder / f"output-{number}"


def sweep_stage(
    folder: Path,
    *,
    options: Mapping[str, Any] | None = None,
    axes: Mapping[str, Any] = TWO_RANKS,
    timeout: float = 90,
    **profile: Any,
) -> tuple[Stage, Snapshot]:
    """Return a stage with a sweep of two trials of which one is done, and what a whole run leaves."""

    def write(work: Path) -> None:
        entry = {"options": {**OPTIONS, **(options or {})}, "axes": dict(axes)}
        line_sweep(work, {"line": entry}, **{**SWEEP_KEYS, "timeout": timeout})
        local_profile(work, slots=2, **profile)

    stage = Stage(folder, write)
    stage.run_undisturbed([*RUN, "--set", "seeds=[0]"])
    stage.keep_copy("template")
    stage.run_undisturbed(RUN)
    return stage, take_snapshot(stage.work)
