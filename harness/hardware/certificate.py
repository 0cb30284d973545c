"""How often equal code was told apart on a machine: the record `results/certificates/<key>.json`."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import stdev

from harness.core.paths import Results, write_atomically
from harness.hardware.machine import Device, machine_key
from harness.records.decode import FileFormat, decode_file
from harness.records.environment import Code, Hardware, Software
from harness.statistics.estimate import Drift
from harness.statistics.interval import share_interval

SCHEMA = "3.0"
CERTIFICATE_FORMAT = FileFormat(
    name="certificate", schema=SCHEMA, remedy="harness certify --anew makes a new one"
)
MAX_FALSE_ALARMS = 0.05  # share of comparisons that may be false alarms
FLOOR = 0.95  # share of comparisons that stayed below the noise floor


@dataclass(frozen=True, kw_only=True)
class CertifySettings:
    """What the comparisons have in common."""

    cell: str  # its id
    label: str
    seconds: float  # of measuring at most, for each
    min_effect: float  # change that matters, a fraction of throughput
    alpha: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Of code with itself. `load` is the machine's, over a minute, when it ended."""

    verdict: str  # faster, slower, same or inconclusive
    log_ratio: float
    rate: float  # samples/s of both sides
    pairs: int  # of processes
    seconds: float  # of measuring
    ended: float  # seconds since the epoch
    load: float


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The record of `harness certify`."""

    schema: str = SCHEMA
    device: Device
    hardware: Hardware
    software: Software
    code: Code
    settings: CertifySettings
    comparisons: Sequence[Comparison] = ()

    @property
    def key(self) -> str:
        return machine_key(self.hardware, self.device)

    @property
    def false_alarms(self) -> int:
        return sum(one.verdict in ("faster", "slower") for one in self.comparisons)

    @property
    def false_alarm_interval(self) -> tuple[float, float]:
        """95% bounds of the share of false alarms."""
        return share_interval(self.false_alarms, len(self.comparisons))

    @property
    def holds(self) -> bool:
        """Unless false alarms are certainly more than were allowed for."""
        return self.false_alarm_interval[0] <= MAX_FALSE_ALARMS

    @property
    def noise_floor(self) -> float:
        """The change that all but 1 - `FLOOR` of the comparisons stayed below, up or down."""
        changes = sorted(math.expm1(abs(one.log_ratio)) for one in self.comparisons)
        return changes[math.ceil(FLOOR * len(changes)) - 1]

    @property
    def drift(self) -> Drift | None:
        """Of log throughput, from one comparison to another; None for a single one."""
        count = len(self.comparisons)
        if count < 2:
            return None
        return Drift(
            deviation=stdev(math.log(one.rate) for one in self.comparisons),
            degrees_of_freedom=count - 1,
        )

    @property
    def description(self) -> str:
        """`3 of 200 false alarms (1.5%, 0.3% to 4.3%), noise floor 0.4% in 1 s; 2026-11-21`."""
        count, low, high = len(self.comparisons), *self.false_alarm_interval
        day = time.strftime("%Y-%m-%d", time.localtime(self.comparisons[-1].ended))
        return (
            f"{self.false_alarms} of {count} false alarms ({self.false_alarms / count:.1%}, {low:.1%} to {high:.1%}),"
            f" noise floor {self.noise_floor:.1%} in {self.settings.seconds:g} s; {day}"
        )

    def continues(self, other: Certificate) -> bool:
        """Whether comparisons of the two count together."""
        return all(
            getattr(self, name) == getattr(other, name)
            for name in ("key", "software", "code", "settings")
        )


def certificate_path(results: Results, hardware: str) -> Path:
    return results.certificates / f"{hardware}.json"


def write(results: Results, certificate: Certificate) -> Path:
    """Leave the record under its hardware's key, a line for each comparison."""
    path = certificate_path(results, certificate.key)
    text = json.dumps(asdict(certificate), indent=1, allow_nan=False)
    write_atomically(
        path,
        re.sub(r"\{[^{}]*\"verdict\"[^{}]*\}", lambda found: " ".join(found[0].split()), text)
        + "\n",
    )
    return path


def read(results: Results, hardware: str) -> Certificate | None:
    """None if there is none; raises BadInput for what is none, not whole, of other hardware or of another schema."""
    path = certificate_path(results, hardware)
    if not path.exists():
        return None
    found = decode_file(Certificate, path, CERTIFICATE_FORMAT)
    if not found.comparisons:
        raise CERTIFICATE_FORMAT.error(path, "not a valid certificate: no comparison")
    if found.key != hardware:
        raise CERTIFICATE_FORMAT.error(path, f"not a valid certificate: is of {found.key}")
    return found


def drift_by_hardware(results: Results, hardware: Iterable[str]) -> dict[str, Drift]:
    """How much the speed of each hardware moved between comparisons, where a certificate tells."""
    found = {kind: read(results, kind) for kind in set(hardware)}
    return {kind: one.drift for kind, one in found.items() if one and one.drift}


def citation_lines(results: Results, hardware: Iterable[str]) -> list[str]:
    """A line for each hardware that a verdict rests on; none of several if one of them has no certificate."""
    kinds = list(dict.fromkeys(hardware))
    found = {kind: read(results, kind) for kind in kinds}
    if len(kinds) == 1:
        (one,) = found.values()
        words = one.description if one else "none; harness certify measures it"
        return [f"A/A certificate of this hardware: {words}"]
    known = {kind: one.description for kind, one in found.items() if one}
    return (
        [f"A/A certificate of {kind}: {words}" for kind, words in known.items()]
        if len(known) == len(kinds)
        else []
    )
