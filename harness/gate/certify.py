"""`harness certify`: measures code against itself many times, in the way that a gate does."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from harness.core.errors import BadInput
from harness.core.paths import Results
from harness.core.text import counted
from harness.core.worktree import Tree
from harness.gate.against import Conditions, GateOptions
from harness.gate.paired import Budget, run_paired, visible_effect
from harness.gate.pairs import PairStarter
from harness.hardware import certificate as certificates
from harness.hardware.certificate import Certificate, CertifySettings, SelfComparison
from harness.hardware.machine import Device, machine_key
from harness.records.code import describe_code
from harness.records.differences import Value, differences, flatten, shown
from harness.records.environment import (
    Hardware,
    Software,
    describe_hardware,
    describe_software,
)
from harness.spec.cell import Cell
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep
from harness.statistics.verdict import ALPHA

MAX_TIME_RATIO = 2.0  # of a certificate's pairs and a gate's, either way
MOST_NAMED = 4  # differences that an error lists
MAX_VISIBLE_EFFECT = 0.9  # a machine that can't even see that has another problem


def settings(cell: Cell, seconds: float, min_effect: float) -> CertifySettings:
    """Return the settings of all comparisons of a certificate.

    `seconds` is the measuring time of each; `min_effect` a fraction of throughput.
    """
    return CertifySettings(
        cell=cell.id, label=cell.label, seconds=seconds, min_effect=min_effect, alpha=ALPHA
    )


def prepare(
    results: Results, profile: Profile, wanted: CertifySettings, *, restart: bool
) -> Certificate:
    """Return this machine's certificate for these settings and versions, an empty one if it has none.

    `restart` ignores an existing one. Raises BadInput for one that can't be read, and for one of other
    settings or versions, whose comparisons would be lost.
    """
    hardware, device = _describe_machine(profile)
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
        settings=wanted,
    )
    if restart:
        return empty
    earlier = certificates.read(results, empty.key)
    if earlier is None:
        return empty
    if not earlier.continues(empty):
        changed = differences(_decisive_fields(earlier), _decisive_fields(empty))
        texts = []
        for difference in changed:
            texts.append(f"{difference.field} {shown(difference.a)}, now {shown(difference.b)}")
        if len(texts) > MOST_NAMED:
            texts[MOST_NAMED:] = [f"{len(texts) - MOST_NAMED} more"]
        raise BadInput(
            f"{certificates.certificate_path(results, earlier.key)}: found"
            f" {counted(len(earlier.comparisons), 'comparison')} with {'; '.join(texts)};"
            " allowed: the same settings and versions, or --restart, which discards them"
        )
    return earlier


def _decisive_fields(certificate: Certificate) -> dict[str, Value]:
    """Return what all comparisons of a certificate share, as a flat table."""
    content = asdict(certificate)
    decisive = {
        "settings": content["settings"],
        "harness": content["code"],
        "software": content["software"],
    }
    return flatten(decisive)


def describe_conditions(results: Results, profile: Profile) -> Conditions:
    """Return the machine that a gate with this profile measures on. Loads torch.

    Raises BadInput for a certificate that can't be read.
    """
    key = machine_key(*_describe_machine(profile))
    (citation,) = certificates.citation_lines(results, [key])
    return Conditions(hardware=key, torch=describe_software().torch, certificate=citation)


def with_visible_effect(
    options: GateOptions, results: Results, conditions: Conditions, cells: int
) -> GateOptions:
    """Return the options of a gate of so many cells with the smallest slowdown that it can see here.

    That is what the machine's certificate says can be told from none within the budget, rounded up to
    a tenth of a percent. It stays as it is without a certificate, with one of too few comparisons,
    and with one of pairs that were measured for far less or far more time than the gate's: how their
    noise depends on it is not known.
    """
    certificate = certificates.read(results, conditions.hardware)
    if certificate is None or certificate.pair_deviation is None:
        return options
    budget = options.budget(cells)
    ratio = certificate.pair_seconds / budget.seconds_per_pair
    if not 1 / MAX_TIME_RATIO <= ratio <= MAX_TIME_RATIO:
        return options
    seen = visible_effect(certificate.pair_deviation, budget)
    return replace(
        options,
        min_effect=min(math.ceil(1000 * seen) / 1000, MAX_VISIBLE_EFFECT),
        min_effect_source=(
            f"what the certificate of this machine says can be seen in {options.budget_seconds:g} s"
        ),
    )


def _describe_machine(profile: Profile) -> tuple[Hardware, Device]:
    """Return this machine and the device that the profile's ranks train on.

    A machine with GPUs has two keys, as a profile may train on its CPU.
    """
    hardware = describe_hardware()
    if hardware.gpus and profile.device != "cpu":
        return hardware, "cuda"
    return hardware, "cpu"


def certify(
    results: Results,
    sweep: Sweep,
    profile: Profile,
    certificate: Certificate,
    count: int,
    on_progress: Callable[[Certificate], None],
) -> Certificate:
    """Compare the sweep's first cell with itself until the certificate has `count` comparisons.

    Each is written to disk at once, so that a later run resumes an interrupted one. Raises
    HarnessError if a rank fails.
    """
    cell = sweep.cells[0]
    this_code = Tree(name="this code", top=Path.cwd(), path=Path.cwd())
    trees = {"a": this_code, "b": this_code}
    budget = Budget(
        min_effect=certificate.settings.min_effect,
        seconds=certificate.settings.seconds,
        alpha=certificate.settings.alpha,
        one_sided=True,  # as a gate asks
    )
    rng = np.random.default_rng()
    with PairStarter(cell, sweep.seeds[0], trees, sweep.base_folder, profile) as starter:
        while len(certificate.comparisons) < count:
            measured = run_paired(cell, starter.pair, budget, rng)
            comparison = SelfComparison(
                verdict=measured.verdict,
                log_ratio=float(np.mean(measured.log_ratios)),
                # The mean of both arms, which run the same code, disturbances included: the trials
                # that are compared by it were disturbed too.
                rate=measured.mean_rate or 0.0,
                pairs=measured.pairs,
                seconds=measured.seconds,
                ended=time.time(),
                load=os.getloadavg()[0],  # how busy the machine was
            )
            certificate = replace(certificate, comparisons=[*certificate.comparisons, comparison])
            certificates.write(results, certificate)
            on_progress(certificate)
    return certificate
