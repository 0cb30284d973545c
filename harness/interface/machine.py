"""What a machine or a cluster can do: its checks, its peaks, its certificate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.core.paths import Results, write_atomically
from harness.gate.certify import certify, prepare
from harness.hardware.certificate import Certificate, CertifySettings
from harness.hardware.machine import Machine
from harness.launch import probe
from harness.render import chart
from harness.render.terminal.peak import draw
from harness.slurm.doctor.checks import Check
from harness.slurm.doctor.cluster import examine_cluster
from harness.slurm.doctor.machine import examine_machine
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep


def examine_profile(
    profile: Profile,
    results: Results,
    *,
    patience: float,
    all_nodes: bool,
    on_progress: Callable[[str], None],
) -> list[Check]:
    """Return the checks of what a profile launches on.

    `patience` is how many seconds the doctor's job may be pending in Slurm's queue; with `all_nodes` it
    examines every node of the partition. Raises BadInput if results can't be written.
    """
    if profile.launcher == "slurm":
        return examine_cluster(profile, results, on_progress, patience, all_nodes=all_nodes)
    return examine_machine(profile, results, on_progress)


def measure_peaks(
    results: Results,
    profile: Profile,
    *,
    ranks: int | None,
    quick: bool,
    fine: bool,
    on_progress: Callable[[str], None],
) -> tuple[Machine, Path, Path]:
    """Measure this machine; return what was measured, and the paths of its record and its plot.

    `ranks` is how many all-reduce, None for the default of the machine. `quick` measures fewer sizes
    with fewer repeats, `fine` products of twice as many sizes. The record replaces an earlier one of
    this machine.

    Raises BadInput for more ranks than the machine has slots, and what `probe.measure` raises.
    """
    count = probe.choose_rank_count(profile, ranks)
    path, machine = probe.measure(
        results, profile, ranks=count, quick=quick, on_progress=on_progress, fine=fine
    )
    plot_path = path.with_suffix(".png")
    write_atomically(plot_path, chart.png_bytes(draw(machine)))
    return machine, path, plot_path


def certify_machine(
    results: Results,
    sweep: Sweep,
    profile: Profile,
    settings: CertifySettings,
    count: int,
    *,
    anew: bool,
    on_progress: Callable[[Certificate], None],
) -> tuple[Certificate, int]:
    """Make the missing comparisons of `count`; return the certificate and how many were made.

    `settings` are common to all comparisons; those of an earlier run count if they had the same, on
    the same machine with the same versions. `anew` discards them. Every comparison is on disk as soon
    as it is made.

    Raises BadInput for an earlier certificate that can't be read, HarnessError if a rank fails.
    """
    certificate = prepare(results, profile, settings, anew=anew)
    previous_count = len(certificate.comparisons)
    if previous_count < count:
        on_progress(certificate)
        certificate = certify(results, sweep, profile, certificate, count, on_progress)
    return certificate, len(certificate.comparisons) - previous_count
