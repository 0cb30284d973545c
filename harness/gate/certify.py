"""`harness certify`: measures how often gates take identical code for different on this machine.

A gate compares two versions of the code. If it compares a version with itself, every "faster" or
"slower" is a false alarm. Many such comparisons are recorded in the machine's A/A certificate,
`results/certificates/<key>.json`. It says

- how often a gate raises false alarms on this machine, and whether that is as rare as promised,
- how large a change has to be to rise above the machine's noise.

It changes nothing about other commands.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from pathlib import Path

from harness.core.errors import BadInput
from harness.core.paths import Results, write_atomically
from harness.core.progress import report_progress
from harness.core.text import counted
from harness.core.worktree import Tree
from harness.gate.paired import Budget, measure
from harness.hardware.machine import Device, machine_key
from harness.launch.hold import hold_machine
from harness.records.environment import (
    Code,
    Hardware,
    Software,
    describe_code,
    describe_hardware,
    describe_software,
)
from harness.records.format import (
    Amount,
    FileFormat,
    Moment,
    Number,
    Share,
    decode_file,
    sealed_text,
)
from harness.statistics.sequential import SpeedVerdict
from harness.sweep.cluster import Profile
from harness.sweep.sweep import Sweep

SCHEMA = 6
CERTIFICATE_FORMAT = FileFormat(
    name="certificate",
    schema=SCHEMA,
    remedy="harness certify makes a new one once it is gone",
    is_sealed=True,
)
MAX_FALSE_ALARMS = 0.05  # the share of comparisons that may be false alarms
NOISE_FLOOR_QUANTILE = 0.95  # the share of comparisons whose change is at most the noise floor
FALSE_ALARMS = ("faster", "slower")  # the verdicts that are wrong about identical code


@dataclass(frozen=True, kw_only=True)
class CertifySettings:
    """The settings that all comparisons of a certificate share."""

    cell: str  # the cell's id
    label: str  # the cell's label
    seconds: Amount  # of measuring at most, for each comparison
    min_effect: Share  # the smallest change that matters, a fraction of throughput
    alpha: Share  # the significance level of a gate


@dataclass(frozen=True, kw_only=True)
class SelfComparison:
    """One comparison of the code with itself."""

    verdict: SpeedVerdict
    log_ratio: float  # the mean difference of log throughput between the two sides
    pairs: Number  # pairs of processes that were measured
    seconds: Amount  # of measuring
    ended: Moment  # seconds since the epoch
    load: Amount  # of the machine over the last minute, when the comparison ended


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The record that `harness certify` writes."""

    schema: int = SCHEMA
    device: Device
    hardware: Hardware
    software: Software
    code: Code
    settings: CertifySettings
    comparisons: Sequence[SelfComparison] = ()

    @property
    def key(self) -> str:
        """The name of the record's file; see `machine_key`."""
        return machine_key(self.hardware, self.device)

    @property
    def false_alarms(self) -> int:
        """The number of comparisons that took identical code for different."""
        return sum(comparison.verdict in FALSE_ALARMS for comparison in self.comparisons)

    @property
    def false_alarm_interval(self) -> tuple[float, float]:
        """The 95% confidence interval (Clopper and Pearson) of the share of false alarms."""
        from scipy.stats import binomtest  # takes a second to load

        test = binomtest(self.false_alarms, len(self.comparisons))
        share = test.proportion_ci()
        return float(share.low), float(share.high)

    @property
    def holds(self) -> bool:
        """Whether gates hold on this machine: false unless too many false alarms are certain."""
        return self.false_alarm_interval[0] <= MAX_FALSE_ALARMS

    @property
    def noise_floor(self) -> float:
        """The change, up or down, that NOISE_FLOOR_QUANTILE of the comparisons did not exceed.

        It is a fraction of throughput, and the smallest of the measured changes with that property.
        """
        log_changes = sorted(abs(comparison.log_ratio) for comparison in self.comparisons)
        rank = math.ceil(NOISE_FLOOR_QUANTILE * len(log_changes))
        return math.expm1(log_changes[rank - 1])

    def continues(self, other: Certificate) -> bool:
        """Return whether the comparisons of both may count together.

        They may on the same hardware, with the same versions and the same settings.
        """
        decisive = attrgetter("key", "software", "code", "settings")
        return bool(decisive(self) == decisive(other))


def certify(
    results: Results,
    sweep: Sweep,
    profile: Profile,
    settings: CertifySettings,
    count: int,
) -> tuple[Certificate, Path]:
    """Compare the sweep's first cell with itself until this machine's certificate has `count` comparisons.

    Each is written to disk at once, so that a later run resumes an interrupted one. Returns the
    certificate and its path. Raises BadInput for an earlier one that can't be read or continued,
    HarnessError if a rank fails.
    """
    cell = sweep.cells[0]
    folder = Path.cwd()
    this_code = Tree(name="this code", top=folder, path=folder)
    trees = {"a": this_code, "b": this_code}
    budget = Budget(
        min_effect=settings.min_effect,
        seconds=settings.seconds,
        alpha=settings.alpha,
    )
    with hold_machine(profile, "measuring its false alarms"):
        certificate = prepare(results, profile, settings)
        for done in range(len(certificate.comparisons), count):
            alarms = counted(certificate.false_alarms, "false alarm")
            report_progress(f"{done} of {count} comparisons, {alarms}")
            measured = measure(sweep, cell, trees, profile, budget)
            comparison = SelfComparison(
                verdict=measured.verdict,
                log_ratio=math.log(measured.ratio or 1.0),
                pairs=measured.pairs,
                seconds=measured.seconds,
                ended=time.time(),
                load=os.getloadavg()[0],  # how busy the machine was
            )
            comparisons = [*certificate.comparisons, comparison]
            certificate = replace(certificate, comparisons=comparisons)
            write(results, certificate)
    return certificate, certificate_path(results, certificate)


def prepare(results: Results, profile: Profile, settings: CertifySettings) -> Certificate:
    """Return this machine's certificate for these settings and versions, an empty one if it has none.

    Raises BadInput for one that can't be read, and for one of other settings or versions, to which no
    comparison can be added.
    """
    hardware, device = describe_machine(profile)
    empty = Certificate(
        device=device,
        hardware=hardware,
        software=describe_software(),
        code=describe_code(),
        settings=settings,
    )
    path = certificate_path(results, empty)
    if not path.exists():
        return empty
    earlier = read(path)
    if not earlier.continues(empty):
        comparisons = counted(len(earlier.comparisons), "comparison")
        raise BadInput(
            f"{path}: found {comparisons} with other settings, code or versions; allowed: the same, or"
            " no such file"
        )
    return earlier


def certificate_path(results: Results, certificate: Certificate) -> Path:
    """Return the path of the certificate of a machine, which is named by its key."""
    return results.certificates / f"{certificate.key}.json"


def write(results: Results, certificate: Certificate) -> Path:
    """Write the certificate under its machine's key, and return the path."""
    path = certificate_path(results, certificate)
    write_atomically(path, sealed_text(asdict(certificate)))
    return path


def read(path: Path) -> Certificate:
    """Return a certificate; raises BadInput for a file that is none, or is of another schema."""
    return decode_file(Certificate, path, CERTIFICATE_FORMAT)


def describe_machine(profile: Profile) -> tuple[Hardware, Device]:
    """Return this machine and the device that the profile's ranks train on.

    A machine with GPUs has two keys, as a profile may train on its CPU.
    """
    hardware = describe_hardware()
    if hardware.gpus and profile.device != "cpu":
        return hardware, "cuda"
    return hardware, "cpu"
