"""Damage to files that are read back: bits flipped, pages zeroed, ends cut off.

Their address is

    damage/STATE/CHANGE/SEED/PATH

where STATE says whether the sweep is `finished` or was `interrupted` in its second trial, SEED
decides which byte is changed, and PATH is a pattern of one file below the results
folder: of runs and baselines, and MLflow's database.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.programs.campaign.calls import IDS
from tests.programs.campaign.commands import Ended
from tests.programs.campaign.oracle import Finding, compare, take_snapshot
from tests.programs.campaign.stage import RUN, SweepStage
from tests.support.running import wait_until

PAGE = 4096  # bytes
# What looks at a sweep before it runs again.
READERS = {
    "show": ("show", "campaign"),
    "status": ("status", "campaign"),
    "compare": ("compare", "campaign", "baseline"),
    "verify": ("verify", "campaign"),  # reads the columns of records too
}
SAVED = "results/runs/campaign/*-s1-r0/best/step-*"
# Time goes on: what a reader prints of it differs without any damage.
TIMES = re.compile(r"\d+(\.\d+)? (ms|s|min|h|d)\b")
DATABASE = "mlflow.db"
# Logs are shown, not decoded, and a lock's content is only for an error.
UNCHECKED = re.compile(r"/logs/|/lock$")


def flip_bit(content: bytes, generator: random.Random) -> bytes:
    """Return the content with one bit changed."""
    changed = bytearray(content)
    changed[generator.randrange(len(changed))] ^= 1 << generator.randrange(8)
    return bytes(changed)


def zero_page(content: bytes, generator: random.Random) -> bytes:
    """Return the content with one page of zeros, as a disk leaves it that lost power."""
    start = generator.randrange(0, len(content), PAGE)
    zeros = bytes(min(PAGE, len(content) - start))
    return content[:start] + zeros + content[start + PAGE :]


def cut_off(content: bytes, generator: random.Random) -> bytes:
    """Return the beginning of the content, which may be nothing."""
    return content[: generator.randrange(len(content))]


CHANGES: Mapping[str, Callable[[bytes, random.Random], bytes]] = {
    "flip": flip_bit,
    "zeros": zero_page,
    "cut": cut_off,
}


class DamageCampaign:
    """Damages every file of a small sweep."""

    def __init__(self, stage: SweepStage) -> None:
        self.stage = stage
        stage.restore("whole")
        stage.run_undisturbed(("baseline", "campaign"))
        self.expected = take_snapshot(stage.work)
        stage.keep_copy("finished")
        stage.restore()
        with stage.watching():
            command = stage.start(RUN)
            with suppress(TimeoutError):
                wait_until(lambda: list(stage.work.glob(SAVED)), 60, every=0.01)
            command.kill()
            stage.wait([command])
        stage.keep_copy("interrupted")
        # What undamaged readers print, by state and reader.
        self.printed: dict[tuple[str, str], str] = {}
        for state in ("finished", "interrupted"):
            stage.restore(state)
            for name, arguments in READERS.items():
                self.printed[state, name] = TIMES.sub("", stage.run(arguments).output)

    def faults(self, generator: random.Random) -> Sequence[str]:
        """Return changes of every file by turns, at random bytes."""
        patterns = []
        for state in ("finished", "interrupted"):
            results = self.stage.folder / state / "results"
            names = {DATABASE}
            for path in (*results.glob("runs/**/*"), *results.glob("baselines/**/*")):
                if path.is_file() and path.stat().st_size:
                    names.add(str(path.relative_to(results)))
            patterns += [(state, IDS.sub("*", name)) for name in sorted(names)]
        faults = []
        for _ in range(20):
            generator.shuffle(patterns)
            for state, pattern in patterns:
                for change in CHANGES:
                    seed = generator.randrange(10**6)
                    faults.append(f"damage/{state}/{change}/{seed}/{pattern}")
        return faults

    def row(self, address: str) -> str:
        """Return the change and the file, without the numbers in its name."""
        _, _, change, _, pattern = address.split("/", 4)
        return f"{change} {re.sub('[0-9]+', 'N', Path(pattern).name)}"

    def strike(self, address: str) -> list[Finding] | None:
        """Damage the file, read the sweep, run it again, and judge; None if nothing changed."""
        _, state, change, seed, pattern = address.split("/", 4)
        stage = self.stage
        stage.restore(state)
        (path,) = (stage.work / "results").glob(pattern)
        content = path.read_bytes()
        damaged = CHANGES[change](content, random.Random(int(seed)))
        if damaged == content:
            return None
        path.write_bytes(damaged)
        findings = []
        is_named = False
        for name, arguments in READERS.items():
            ended = stage.run(arguments)
            findings += stage.check_end(ended, name)
            is_named |= _names(ended, path)
            is_same = TIMES.sub("", ended.output) == self.printed[state, name]
            if not is_same and not _names(ended, path) and not UNCHECKED.search(str(path)):
                text = f"{name} shows {path.name} as if it were whole"
                findings.append(Finding("misreported", text))
        ended = stage.run(RUN)
        findings += stage.check_end(ended, "run")
        # With the remedy, which is this one. That MLflow takes nothing fails no trial. What is
        # finished is run again without its columns, of which only readers say that they are damaged.
        is_to_be_removed = ended.exit_code != 0 or path.name == DATABASE or path.suffix == ".npz"
        if (is_named or _names(ended, path)) and is_to_be_removed:
            path.unlink()
            ended = stage.run(RUN)
            findings += stage.check_end(ended, "run without the file")
        if ended.exit_code != 0:
            text = f"run: exit code {ended.exit_code}: {ended.last_line}"
            findings.append(Finding("lost", text))
        return findings + compare(self.expected, take_snapshot(stage.work))


def _names(ended: Ended, path: Path) -> bool:
    """Return whether a command has named a damaged file, and the trial that it is of."""
    parts = [path.name] if path.parent.name == "campaign" else [path.name, path.parent.name]
    return all(part in ended.output for part in parts)
