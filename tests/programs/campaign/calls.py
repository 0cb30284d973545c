"""Faults at calls: SIGKILL before a call and after it, and an error instead of it.

Every call that an undisturbed run makes below its folder is recorded. Its address is

    calls/ROLE/CALL/NUMBER/ACTION/PATTERN

the role of the process, the call's name, its number among the calls of that role whose path matches
the pattern, and what happens, as `shim.ACTIONS` has it.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from tests.programs.campaign.oracle import RANDOM_NAMES, Finding, Snapshot, check_report
from tests.programs.campaign.shim import Call, read_calls
from tests.programs.campaign.stage import Stage, run_again, undisturbed

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


@dataclass(frozen=True, kw_only=True)
class CallFault:
    """One fault at one call."""

    role: str
    call: str
    number: int
    action: str
    pattern: str

    @property
    def address(self) -> str:
        """Return the text that `parse` reads."""
        return f"calls/{self.role}/{self.call}/{self.number}/{self.action}/{self.pattern}"

    @property
    def row(self) -> str:
        """Return the row of the table that counts it."""
        return f"{self.call} {self.action}"

    @classmethod
    def parse(cls, address: str) -> CallFault:
        """Return the fault with an address; raises ValueError."""
        _, role, call, number, action, pattern = address.split("/", 5)
        return cls(role=role, call=call, number=int(number), action=action, pattern=pattern)


@dataclass
class CallCampaign:
    """Strikes every call of a small sweep."""

    stage: Stage
    undisturbed: Snapshot

    @classmethod
    def prepare(cls, folder: Path) -> CallCampaign:
        """Run the sweep undisturbed."""
        stage = Stage(folder / "calls")
        stage.prepare()
        return cls(stage, undisturbed(stage))

    def output_files(self) -> list[Path]:
        """Return the files with what the commands of the last fault printed."""
        return self.stage.output_files()

    def close(self) -> None:
        """End nothing: no process outlives its fault."""

    def faults(self, seed: int) -> list[CallFault]:
        """Return all faults; one at each kind of call comes before the second at any.

        The sweep runs twice more to record its calls. How often a call is made that waits for
        something differs from run to run, so only what both runs have is sure to be reached.
        """
        generator = random.Random(seed)
        recorded = [set(all_faults(self._record_calls())) for _ in range(2)]
        groups: dict[tuple[str, str, str], list[CallFault]] = defaultdict(list)
        for fault in sorted(set.intersection(*recorded), key=lambda fault: fault.address):
            groups[fault.role, fault.row, fault.pattern].append(fault)
        for group in groups.values():
            generator.shuffle(group)
        columns = list(groups.values())
        generator.shuffle(columns)
        rounds = zip_longest(*columns)
        return [fault for round_ in rounds for fault in round_ if fault is not None]

    def strike(self, fault: CallFault) -> list[Finding] | None:
        """Let a fault strike, run the sweep again, and judge; None if it was never reached."""
        stage = self.stage
        stage.restore()
        stage.control.watch(stage.work)
        stage.control.arm(
            role=fault.role,
            call=fault.call,
            pattern=fault.pattern,
            number=fault.number,
            action=fault.action,
        )
        ended = stage.run(stage.run_command)
        stage.control.stop()
        if not stage.control.has_fired:
            return None
        findings = stage.check_end(ended, "run")
        findings += check_report(ended, self.undisturbed, stage.snapshot(), "run")
        return findings + run_again(stage, self.undisturbed)

    def _record_calls(self) -> list[Call]:
        """Run the sweep, and return the calls that it made."""
        log = self.stage.folder / "calls"
        log.unlink(missing_ok=True)
        self.stage.restore()
        self.stage.control.watch(self.stage.work, log)
        self.stage.run(self.stage.run_command)
        self.stage.control.stop()
        return read_calls(log)


def all_faults(calls: Sequence[Call]) -> Iterator[CallFault]:
    """Yield every fault at every call."""
    counts: dict[Call, int] = defaultdict(int)
    for call in calls:
        if call.role == "program":  # git and the like, which are not ours
            continue
        pattern = IDS.sub("*", RANDOM_NAMES.sub("*", call.path))
        alike = Call(call.role, call.name, pattern)
        counts[alike] += 1
        for action in ("kill-before", "kill-after", *ERRORS[call.name]):
            yield CallFault(
                role=call.role,
                call=call.name,
                number=counts[alike],
                action=action,
                pattern=pattern,
            )
