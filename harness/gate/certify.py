"""`harness certify`: code measured against itself, many times, as a gate would measure it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from harness.core.paths import Results
from harness.gate.against import Conditions
from harness.gate.arms import PairStarter
from harness.gate.paired import Budget, run_paired
from harness.gate.worktree import Tree
from harness.hardware import certificate
from harness.hardware.certificate import Certificate, CertifySettings, Comparison
from harness.hardware.machine import Device, machine_key
from harness.records.environment import Hardware, Software
from harness.spec.cell import Cell
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep
from harness.statistics.verdict import ALPHA


def settings(cell: Cell, seconds: float, min_effect: float) -> CertifySettings:
    return CertifySettings(
        cell=cell.id, label=cell.label, seconds=seconds, min_effect=min_effect, alpha=ALPHA
    )


def prepare(
    results: Results, profile: Profile, asked: CertifySettings, *, anew: bool
) -> Certificate:
    """What is known of this machine under the same settings and versions, or an empty certificate; raises BadInput for
    one that can't be read."""
    from harness.records.environment import describe_code, describe_software

    (hardware, device), software = _hardware(profile), describe_software()
    versions = Software(
        python=software.python,
        torch=software.torch,
        cuda=software.cuda,
        packages=software.packages,
    )
    fresh = Certificate(
        device=device,
        hardware=hardware,
        software=versions,
        code=describe_code(),
        settings=asked,
    )
    before = None if anew else certificate.read(results, fresh.key)
    return before if before is not None and before.continues(fresh) else fresh


def describe_conditions(results: Results, profile: Profile) -> Conditions:
    """This machine, as ranks of this profile use it; loads torch. Raises BadInput for an unreadable certificate."""
    from harness.records.environment import describe_software

    hardware = machine_key(*_hardware(profile))
    (cited,) = certificate.citation_lines(results, [hardware])
    return Conditions(hardware=hardware, torch=describe_software().torch, certificate=cited)


def _hardware(profile: Profile) -> tuple[Hardware, Device]:
    from harness.records.environment import describe_hardware

    found = describe_hardware()
    return found, "cuda" if found.gpus and profile.device != "cpu" else "cpu"


def certify(
    results: Results,
    sweep: Sweep,
    profile: Profile,
    begun: Certificate,
    count: int,
    on_progress: Callable[[Certificate], None],
) -> Certificate:
    """Compare the sweep's first cell with itself until there are `count` comparisons. Each is on disk as soon as it is
    made, so that an interrupted run is gone on with. Raises HarnessError if a rank fails."""
    here = Tree(name="this code", top=Path.cwd(), path=Path.cwd())
    budget = Budget(
        min_effect=begun.settings.min_effect,
        seconds=begun.settings.seconds,
        alpha=begun.settings.alpha,
    )
    found, rng = begun, np.random.default_rng()
    with PairStarter(
        sweep.cells[0], sweep.seeds[0], {"a": here, "b": here}, sweep.base_folder, profile
    ) as starter:
        while len(found.comparisons) < count:
            one = run_paired(sweep.cells[0], starter.pair, budget, rng)
            comparison = Comparison(
                verdict=one.verdict,
                log_ratio=float(np.mean(one.log_ratios)),
                rate=math.sqrt((one.a_rate or 0.0) * (one.b_rate or 0.0)),
                pairs=one.pairs,
                seconds=one.seconds,
                ended=time.time(),
                load=os.getloadavg()[0],
            )
            found = replace(found, comparisons=[*found.comparisons, comparison])
            certificate.write(results, found)
            on_progress(found)
    return found
