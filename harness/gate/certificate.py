"""The A/A certificate of a machine: how often it took identical code for different.

A gate compares two versions of the code. If it compares a version with itself, every "faster" or
"slower" is a false alarm. `harness certify` makes many such comparisons and records them in
`results/certificates/<key>.json`. The record says

- how often a gate raises false alarms on this machine, and whether that is as rare as promised,
- how large a change has to be to rise above the machine's noise.

It changes nothing about other commands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from harness.core.paths import Results, write_atomically
from harness.hardware.machine import Device, machine_key
from harness.records.bounds import Amount, Moment, Number, Share
from harness.records.code import Code
from harness.records.decode import FileFormat, decode_file
from harness.records.environment import Hardware, Software
from harness.records.seal import sealed_text
from workloads.settings import Between

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

    verdict: Literal["faster", "slower", "same", "not slower", "inconclusive"]
    # The mean difference of log throughput between the two sides.
    log_ratio: Annotated[float, Between(-100, 100)]
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

        share = binomtest(self.false_alarms, len(self.comparisons)).proportion_ci()
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
        changes = [math.expm1(abs(comparison.log_ratio)) for comparison in self.comparisons]
        rank = math.ceil(NOISE_FLOOR_QUANTILE * len(changes))
        return sorted(changes)[rank - 1]

    def continues(self, other: Certificate) -> bool:
        """Return whether the comparisons of both may count together.

        They may on the same hardware, with the same versions and the same settings.
        """
        decisive = ("key", "software", "code", "settings")
        return all(getattr(self, name) == getattr(other, name) for name in decisive)


def write(results: Results, certificate: Certificate) -> Path:
    """Write the certificate under its machine's key, and return the path."""
    path = results.certificates / f"{certificate.key}.json"
    write_atomically(path, sealed_text(asdict(certificate)))
    return path


def read(path: Path) -> Certificate:
    """Return a certificate; raises BadInput for a file that is none, or is of another schema."""
    return decode_file(Certificate, path, CERTIFICATE_FORMAT)
