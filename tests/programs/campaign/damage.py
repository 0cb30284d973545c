"""Damage to files that are read back: bits flipped, pages zeroed, ends cut off.

Their address is

    damage/STATE/CHANGE/SEED/PATH

where STATE says whether the sweep is `finished` or was `interrupted` in its second trial, SEED
decides which byte is changed, and PATH is a pattern of one file below the results
folder: of runs, baselines, peaks and certificates, and MLflow's database.
"""

from __future__ import annotations

import random
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.core.paths import Results
from harness.gate import certify
from harness.hardware import machine
from harness.records.files import read_record
from tests.factories import make_machine
from tests.gate.test_certificate import made
from tests.programs.campaign.calls import IDS
from tests.programs.campaign.oracle import Finding, Snapshot, compare
from tests.programs.campaign.stage import Stage, undisturbed
from tests.programs.campaign.warm import Ended

PAGE = 4096  # bytes
RESULTS = ("--results", "results")
# What looks at a sweep before it runs again.
READERS = {
    "show": ("show", "campaign", *RESULTS),
    "status": ("status", "campaign", *RESULTS),
    "compare": ("compare", "campaign", "baseline", *RESULTS),
    "verify": ("verify", "campaign", *RESULTS),  # reads the columns of records too
}
STEP_SECONDS = 0.05  # slow enough for the second trial to be interrupted after an evaluation
# Time goes on: what a reader prints of it differs without any damage.
TIMES = re.compile(r"\d+(\.\d+)? (ms|s|min|h|d)\b")
DATABASE = "mlflow.db"
MACHINE_FOLDERS = ("baselines", "peaks", "certificates")  # of the results folder
# Logs are shown, not decoded, and a lock's content is only for an error.
UNCHECKED = re.compile(r"/logs/|/lock$")


def flip_bit(content: bytes, generator: random.Random) -> bytes:
    """Return the content with one bit changed."""
    if not content:
        return content
    changed = bytearray(content)
    changed[generator.randrange(len(changed))] ^= 1 << generator.randrange(8)
    return bytes(changed)


def zero_page(content: bytes, generator: random.Random) -> bytes:
    """Return the content with one page of zeros, as a disk leaves it that lost power."""
    start = generator.randrange(0, max(1, len(content)), PAGE)
    zeros = bytes(min(PAGE, len(content) - start))
    return content[:start] + zeros + content[start + PAGE :]


def cut_off(content: bytes, generator: random.Random) -> bytes:
    """Return the beginning of the content."""
    return content[: generator.randrange(max(1, len(content)))]


def empty(content: bytes, generator: random.Random) -> bytes:
    """Return nothing."""
    return b""


CHANGES: Mapping[str, Callable[[bytes, random.Random], bytes]] = {
    "flip": flip_bit,
    "zeros": zero_page,
    "cut": cut_off,
    "empty": empty,
}


@dataclass(frozen=True, kw_only=True)
class DamageFault:
    """One change of one file."""

    state: str
    change: str
    seed: int
    pattern: str

    @property
    def address(self) -> str:
        """Return the text that `parse` reads."""
        return f"damage/{self.state}/{self.change}/{self.seed}/{self.pattern}"

    @property
    def row(self) -> str:
        """Return the row of the table that counts it."""
        return f"{self.change} {re.sub('[0-9]+', 'N', Path(self.pattern).name)}"

    @classmethod
    def parse(cls, address: str) -> DamageFault:
        """Return the fault with an address; raises ValueError."""
        _, state, change, seed, pattern = address.split("/", 4)
        return cls(state=state, change=change, seed=int(seed), pattern=pattern)


@dataclass
class DamageCampaign:
    """Damages every file of a small sweep."""

    stage: Stage
    expected: Snapshot
    # What undamaged readers print, by state and reader: of the states that faults have struck.
    printed: dict[tuple[str, str], str] = field(default_factory=dict)

    @classmethod
    def prepare(cls, folder: Path) -> DamageCampaign:
        """Run the sweep undisturbed, which is the finished state."""
        stage = Stage(folder / "damage", {"step_seconds": STEP_SECONDS})
        stage.prepare()
        undisturbed(stage)
        _add_files_of_the_machine(stage)
        expected = stage.snapshot()
        shutil.copytree(stage.work, stage.folder / "finished")
        return cls(stage, expected)

    def _prepare_state(self, state: str) -> None:
        """Make the folder of a state, unless it is there; the interrupted one takes another run."""
        if (self.stage.folder / state).exists():
            return
        _interrupt(self.stage)
        for name in MACHINE_FOLDERS:
            source = self.stage.folder / "finished" / "results" / name
            shutil.copytree(source, self.stage.work / "results" / name)
        shutil.copytree(self.stage.work, self.stage.folder / state)

    def _read_undamaged(self, state: str) -> None:
        """Have readers print a state as it is, unless they have done so."""
        _restore(self.stage, state)
        for name, arguments in READERS.items():
            if (state, name) not in self.printed:
                self.printed[state, name] = TIMES.sub("", self.stage.run(arguments).output)

    def output_files(self) -> list[Path]:
        """Return the files with what the commands of the last fault printed."""
        return self.stage.output_files()

    def close(self) -> None:
        """End nothing: no process outlives its fault."""

    def faults(self, seed: int) -> list[DamageFault]:
        """Return changes of every file by turns, at bytes drawn from `seed`."""
        generator = random.Random(seed)
        patterns = []
        for state in ("finished", "interrupted"):
            self._prepare_state(state)
            results = self.stage.folder / state / "results"
            names = {DATABASE}
            for name in ("runs", *MACHINE_FOLDERS):
                for path in (results / name).rglob("*"):
                    if path.is_file() and path.stat().st_size:
                        names.add(str(path.relative_to(results)))
            patterns += [(state, IDS.sub("*", name)) for name in sorted(names)]
        faults = []
        for round_ in range(20):
            generator.shuffle(patterns)
            for state, pattern in patterns:
                for change in CHANGES:
                    if change == "empty" and round_:  # it has no byte to be drawn
                        continue
                    draw = generator.randrange(10**6)
                    fault = DamageFault(state=state, change=change, seed=draw, pattern=pattern)
                    faults.append(fault)
        return faults

    def strike(self, fault: DamageFault) -> list[Finding] | None:
        """Damage the file, read the sweep, run it again, and judge; None if nothing changed."""
        stage = self.stage
        self._prepare_state(fault.state)
        self._read_undamaged(fault.state)
        _restore(stage, fault.state)
        (path,) = (stage.work / "results").glob(fault.pattern)
        content = path.read_bytes()
        damaged = CHANGES[fault.change](content, random.Random(fault.seed))
        if damaged == content:
            return None
        path.write_bytes(damaged)
        findings = []
        is_named = False
        stage.control.watch(stage.work)
        for name, arguments in READERS.items():
            ended = stage.run(arguments)
            findings += stage.check_end(ended, name)
            is_named |= _names(ended, path)
            same = TIMES.sub("", ended.output) == self.printed[fault.state, name]
            if not same and not _names(ended, path) and not UNCHECKED.search(str(path)):
                text = f"{name} shows {path.name} as if it were whole"
                findings.append(Finding("misreported", text))
        ended = stage.run(stage.run_command)
        findings += stage.check_end(ended, "run")
        # With the remedy, which is this one. That MLflow takes nothing fails no trial.
        # What is finished is run again without its columns, of which only readers say that they are damaged.
        is_to_be_removed = ended.exit_code != 0 or path.name == DATABASE or path.suffix == ".npz"
        if (is_named or _names(ended, path)) and is_to_be_removed:
            path.unlink()
            ended = stage.run(stage.run_command)
            findings += stage.check_end(ended, "run without the file")
        stage.control.stop()
        if ended.exit_code != 0:
            last_line = ended.output.rstrip().rpartition("\n")[2]
            findings.append(Finding("lost", f"run: exit code {ended.exit_code}: {last_line}"))
        return findings + compare(self.expected, stage.snapshot())


def _restore(stage: Stage, state: str) -> None:
    """Put the sweep back to a state."""
    shutil.rmtree(stage.work, ignore_errors=True)
    shutil.copytree(stage.folder / state, stage.work)


def _interrupt(stage: Stage) -> None:
    """Run the sweep, and kill it once its second trial has saved a checkpoint."""
    stage.restore()
    stage.control.watch(stage.work)
    pid = stage.start(stage.run_command)
    deadline = time.monotonic() + 60
    pattern = "results/runs/campaign/*-s1-r0/best/step-*"
    while not list(stage.work.glob(pattern)) and time.monotonic() < deadline:
        time.sleep(0.01)
    stage.kill(pid)
    stage.wait([pid])
    stage.control.stop()


def _add_files_of_the_machine(stage: Stage) -> None:
    """Add a baseline, measured peaks and a certificate to the results of the finished sweep."""
    ended = stage.run(("baseline", "campaign", *RESULTS))
    if ended.exit_code:
        raise RuntimeError(f"no baseline was saved: {ended.output}")
    results = Results(stage.work / "results")
    record = read_record(next(results.runs.glob("campaign/*/attempt-*/record.json")))
    assert record.environment is not None
    # Of this hardware, or nobody would read them.
    hardware = record.environment.hardware
    machine.write(results.peaks, replace(make_machine(), hardware=hardware))
    certify.write(results, replace(made(1, 5), hardware=hardware))
    stage.run(stage.run_command)  # which draws the roofline, now that it knows the peaks


def _names(ended: Ended, path: Path) -> bool:
    """Return whether a command has named a damaged file, and the trial that it is of."""
    parts = [path.name] if path.parent.name == "campaign" else [path.name, path.parent.name]
    return all(part in ended.output for part in parts)
