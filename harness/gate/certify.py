"""`harness certify`: measures code against itself, many times, as a gate would measure it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from harness.core.paths import Results
from harness.core.worktree import Tree
from harness.gate.against import Conditions
from harness.gate.arms import PairStarter
from harness.gate.paired import Budget, PairedResult, run_paired
from harness.hardware import certificate as certificates
from harness.hardware.certificate import Certificate, CertifySettings, SelfComparison
from harness.hardware.machine import Device, machine_key
from harness.records.environment import Hardware, Software
from harness.spec.cell import Cell
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep
from harness.statistics.verdict import ALPHA


def settings(cell: Cell, seconds: float, min_effect: float) -> CertifySettings:
    """Return what all comparisons of a certificate have in common.

    `seconds` is the time that each may measure; `min_effect` a fraction of throughput.
    """
    return CertifySettings(
        cell=cell.id, label=cell.label, seconds=seconds, min_effect=min_effect, alpha=ALPHA
    )


def prepare(
    results: Results, profile: Profile, wanted: CertifySettings, *, anew: bool
) -> Certificate:
    """Return this machine's certificate under these settings and versions, an empty one if there is
    none.

    `anew` ignores an earlier one. Raises BadInput for one that can't be read.
    """
    from harness.records.code import describe_code
    from harness.records.environment import describe_software

    machine = _describe_machine(profile)
    software = describe_software()
    versions = Software(
        python=software.python,
        torch=software.torch,
        cuda=software.cuda,
        packages=software.packages,
    )
    empty = Certificate(
        device=machine.device,
        hardware=machine.hardware,
        software=versions,
        code=describe_code(),
        settings=wanted,
    )
    if anew:
        return empty
    earlier = certificates.read(results, empty.key)
    if earlier is None or not earlier.continues(empty):
        return empty
    return earlier


def describe_conditions(results: Results, profile: Profile) -> Conditions:
    """Return what a gate with this profile measures on; raises BadInput for a certificate that
    can't be read.

    Loads torch.
    """
    from harness.records.environment import describe_software

    machine = _describe_machine(profile)
    key = machine_key(machine.hardware, machine.device)
    (citation,) = certificates.citation_lines(results, [key])
    return Conditions(hardware=key, torch=describe_software().torch, certificate=citation)


@dataclass(frozen=True, kw_only=True)
class _MachineDescription:
    """This machine, as ranks of a profile use it.

    A machine with GPUs has two keys, as a profile may train on its CPU.
    """

    hardware: Hardware
    device: Device


def _describe_machine(profile: Profile) -> _MachineDescription:
    """Return this machine and the device that the profile's ranks train on."""
    from harness.records.environment import describe_hardware

    hardware = describe_hardware()
    device: Device = "cpu"
    if hardware.gpus and profile.device != "cpu":
        device = "cuda"
    return _MachineDescription(hardware=hardware, device=device)


def certify(
    results: Results,
    sweep: Sweep,
    profile: Profile,
    certificate: Certificate,
    count: int,
    on_progress: Callable[[Certificate], None],
) -> Certificate:
    """Compare the sweep's first cell with itself until the certificate has `count` comparisons.

    Each is on disk as soon as it is made, so that a later run resumes an interrupted one. Raises
    HarnessError if a rank fails.
    """
    cell = sweep.cells[0]
    this_code = Tree(name="this code", top=Path.cwd(), path=Path.cwd())
    trees = {"a": this_code, "b": this_code}
    budget = Budget(
        min_effect=certificate.settings.min_effect,
        seconds=certificate.settings.seconds,
        alpha=certificate.settings.alpha,
    )
    rng = np.random.default_rng()
    with PairStarter(cell, sweep.seeds[0], trees, sweep.base_folder, profile) as starter:
        while len(certificate.comparisons) < count:
            measured = run_paired(cell, starter.pair, budget, rng)
            comparisons = [*certificate.comparisons, _comparison(measured)]
            certificate = replace(certificate, comparisons=comparisons)
            certificates.write(results, certificate)
            on_progress(certificate)
    return certificate


def _comparison(measured: PairedResult) -> SelfComparison:
    """Return what a certificate keeps of a measurement that has just ended.

    The rate is that of both arms, which are the same code, with all that disturbed them: trials
    that are compared by it were disturbed likewise. The load says how busy the machine was with
    anything else.
    """
    return SelfComparison(
        verdict=measured.verdict,
        log_ratio=float(np.mean(measured.log_ratios)),
        rate=measured.mean_rate or 0.0,
        pairs=measured.pairs,
        seconds=measured.seconds,
        ended=time.time(),
        load=os.getloadavg()[0],
    )
