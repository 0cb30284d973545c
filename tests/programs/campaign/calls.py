"""Faults at calls: SIGKILL before a call and after it, and an error instead of it.

Every call that an undisturbed run makes below its folder is recorded. Its address is

    calls/ROLE/CALL/NUMBER/ACTION/PATTERN

the role of the process, the call's name, its number among the calls of that role whose path matches
the pattern, and what happens, as `shim.Control.arm` has it.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from tests.programs.campaign.oracle import RANDOM_NAMES, Finding, check_report, take_snapshot
from tests.programs.campaign.shim import Call, read_calls
from tests.programs.campaign.stage import RUN, SweepStage

DISK_ERRORS = ("ENOSPC", "EIO", "ESTALE", "EDQUOT")
# The errors that a call may really have.
ERRORS = {
    "open": ("EIO", "ESTALE"),
    "create": (*DISK_ERRORS, "full-disk"),
    "mkdir": DISK_ERRORS,
    "write": (*DISK_ERRORS, "full-disk"),
    "fsync": ("EIO", "ENOSPC", "EDQUOT"),
    "rename": DISK_ERRORS,
    "unlink": ("EIO", "ESTALE"),
    "fork": ("EAGAIN", "ENOMEM"),
    "connect": ("ECONNREFUSED", "ETIMEDOUT"),
}
# What differs from one run to the next: ids of MLflow's runs, digests of packages, the hash in a cell's id.
IDS = re.compile(r"(?:[0-9a-f]{32})+|(?<=-)[0-9a-f]{8,16}(?=-s\d)")


class CallCampaign:
    """Strikes every call of a small sweep."""

    def __init__(self, stage: SweepStage) -> None:
        self.stage = stage

    def faults(self, generator: random.Random) -> Sequence[str]:
        """Return all faults; one at each kind of call comes before the second at any.

        The sweep runs twice more to record its calls. How often a call is made that waits for
        something differs from run to run, so only what both runs have is sure to be reached.
        """
        recorded = set(all_faults(self._record_calls())) & set(all_faults(self._record_calls()))
        groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for fault in sorted(recorded):
            role, call, _, action, pattern = fault.split("/", 5)[1:]
            groups[role, call, action, pattern].append(fault)
        columns = list(groups.values())
        for column in columns:
            generator.shuffle(column)
        generator.shuffle(columns)
        rounds = zip_longest(*columns)
        return [fault for round_ in rounds for fault in round_ if fault is not None]

    def row(self, address: str) -> str:
        """Return the call and what happens there."""
        _, _, call, _, action, _ = address.split("/", 5)
        return f"{call} {action}"

    def strike(self, address: str) -> list[Finding] | None:
        """Let a fault strike, run the sweep again, and judge; None if it was never reached."""
        _, role, name, number, action, pattern = address.split("/", 5)
        stage = self.stage
        stage.restore()
        with stage.watching():
            stage.control.arm(Call(role, name, pattern), int(number), action)
            (ended,) = stage.wait([stage.start(RUN)])
        if not stage.control.has_fired:
            return None
        findings = stage.check_end(ended, "run")
        findings += check_report(ended, stage.expected, take_snapshot(stage.work))
        return findings + stage.run_again(stage.expected)

    def _record_calls(self) -> list[Call]:
        """Run the sweep, and return the calls that it made."""
        stage = self.stage
        log = stage.folder / "calls"
        log.unlink(missing_ok=True)
        stage.restore()
        stage.control.watch(stage.work, log)
        stage.wait([stage.start(RUN)])
        stage.control.stop()
        return read_calls(log)


def all_faults(calls: Sequence[Call]) -> Iterator[str]:
    """Yield the address of every fault at every call."""
    counts: Counter[Call] = Counter()
    for role, name, path in calls:
        if role == "program":  # git and the like, which are not ours
            continue
        alike = Call(role, name, IDS.sub("*", RANDOM_NAMES.sub("*", path)))
        counts[alike] += 1
        for action in ("kill-before", "kill-after", *ERRORS[name]):
            yield f"calls/{role}/{name}/{counts[alike]}/{action}/{alike.path}"
