"""`harness certify`: measures code against itself many times, in the way that a gate does."""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from harness.core.errors import BadInput
from harness.core.paths import Results
from harness.core.progress import report_progress
from harness.core.text import counted
from harness.core.worktree import Tree
from harness.gate import certificate as certificates
from harness.gate.certificate import Certificate, CertifySettings, SelfComparison
from harness.gate.paired import Budget, run_paired
from harness.gate.pairs import PairStarter
from harness.hardware.machine import Device
from harness.launch.hold import hold_machine
from harness.records.code import describe_code
from harness.records.environment import (
    Hardware,
    Software,
    describe_hardware,
    describe_software,
)
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep


def certify(
    results: Results, sweep: Sweep, profile: Profile, settings: CertifySettings, count: int
) -> tuple[Certificate, Path]:
    """Compare the sweep's first cell with itself until this machine's certificate has `count` comparisons.

    Each is written to disk at once, so that a later run resumes an interrupted one. Returns the
    certificate and its path. Raises BadInput for an earlier one that can't be read or continued,
    HarnessError if a rank fails.
    """
    cell = sweep.cells[0]
    this_code = Tree(name="this code", top=Path.cwd(), path=Path.cwd())
    trees = {"a": this_code, "b": this_code}
    budget = Budget(min_effect=settings.min_effect, seconds=settings.seconds, alpha=settings.alpha)
    rng = np.random.default_rng()
    with (
        hold_machine(profile, "measuring its false alarms"),
        PairStarter(cell, sweep.seeds[0], trees, sweep.base_folder, profile) as starter,
    ):
        certificate = prepare(results, profile, settings)
        while len(certificate.comparisons) < count:
            alarms = counted(certificate.false_alarms, "false alarm")
            report_progress(f"{len(certificate.comparisons)} of {count} comparisons, {alarms}")
            measured = run_paired(cell, starter.pair, budget, rng)
            comparison = SelfComparison(
                verdict=measured.verdict,
                log_ratio=math.log(measured.ratio or 1.0),
                pairs=measured.pairs,
                seconds=measured.seconds,
                ended=time.time(),
                load=os.getloadavg()[0],  # how busy the machine was
            )
            certificate = replace(certificate, comparisons=[*certificate.comparisons, comparison])
            certificates.write(results, certificate)
    return certificate, results.certificates / f"{certificate.key}.json"


def prepare(results: Results, profile: Profile, settings: CertifySettings) -> Certificate:
    """Return this machine's certificate for these settings and versions, an empty one if it has none.

    Raises BadInput for one that can't be read, and for one of other settings or versions, to which no
    comparison can be added.
    """
    hardware, device = describe_machine(profile)
    software = describe_software()
    versions = Software(
        python=software.python,
        torch=software.torch,
        cuda=software.cuda,
        packages=software.packages,
    )
    empty = Certificate(
        device=device,
        hardware=hardware,
        software=versions,
        code=describe_code(),
        settings=settings,
    )
    path = results.certificates / f"{empty.key}.json"
    if not path.exists():
        return empty
    earlier = certificates.read(path)
    if not earlier.continues(empty):
        raise BadInput(
            f"{path}: found {counted(len(earlier.comparisons), 'comparison')} with other settings, code"
            " or versions; allowed: the same, or no such file"
        )
    return earlier


def describe_machine(profile: Profile) -> tuple[Hardware, Device]:
    """Return this machine and the device that the profile's ranks train on.

    A machine with GPUs has two keys, as a profile may train on its CPU.
    """
    hardware = describe_hardware()
    if hardware.gpus and profile.device != "cpu":
        return hardware, "cuda"
    return hardware, "cpu"
