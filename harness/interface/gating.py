"""Paired measurement on this machine: the gate, its bisection and the certificate of a machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.core.errors import BadInput
from harness.core.paths import Results
from harness.core.worktree import find_repository
from harness.gate.against import CellOutcome, Comparison, GateOptions, GateOutcome, gate
from harness.gate.bisect import BisectListener, BisectOptions, BisectOutcome, bisect
from harness.gate.certify import certify, describe_machine, prepare
from harness.gate.commits import commits_between
from harness.hardware.certificate import Certificate, CertifySettings
from harness.hardware.machine import machine_key
from harness.interface.machine import hold_machine
from harness.spec.cell import Cell
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep, ready_sweeps


def gate_sweep(
    sweep: Sweep,
    profile: Profile,
    options: GateOptions,
    *,
    on_message: Callable[[str], None],
    on_progress: Callable[[str], None],
    on_cell: Callable[[CellOutcome], None],
) -> GateOutcome:
    """Measure the cells of a sweep against the revision that the options name.

    `on_message` is that of `hold_machine`. Raises BadInput outside of a repository and for
    a revision that does not exist, before the machine is waited for.
    """

    def report_progress(cell: Cell, text: str) -> None:
        """Report which cell is being measured and how far that is."""
        on_progress(f"{cell.label}: {text}")

    comparison = Comparison.find(_repository_folder(sweep), options.revision)
    hardware = machine_key(*describe_machine(profile))
    with hold_machine(profile, f"measuring {sweep.name}", on_message=on_message):
        return gate(sweep, profile, options, comparison, hardware, report_progress, on_cell)


def bisect_cell(
    sweep: Sweep,
    cell: Cell,
    profile: Profile,
    options: BisectOptions,
    listener: BisectListener,
    *,
    on_message: Callable[[str], None],
) -> BisectOutcome:
    """Search the commits for the first that made a cell slower.

    `on_message` is that of `hold_machine`. A GOOD or BAD that can't serve as such is an
    error, not an outcome.
    """
    repository = find_repository(_repository_folder(sweep))
    commits = commits_between(repository, options.good, options.bad)
    activity = f"measuring commits for {sweep.name}"
    with hold_machine(profile, activity, on_message=on_message):
        return bisect(sweep, cell, profile, options, repository, commits, listener)


def only_cell(sweep: Sweep) -> Cell:
    """Return the only cell of a sweep; raises BadInput for one that has several."""
    if len(sweep.cells) == 1:
        return sweep.cells[0]
    ids = [cell.id for cell in sweep.cells]
    raise BadInput(
        f"{sweep.source}: found {len(ids)} cells; allowed: one, as with --only cell={ids[0]}"
    )


def _repository_folder(sweep: Sweep) -> Path:
    """Return a folder in the repository to measure: the sweep file's, or the current one.

    A ready sweep is in the harness's own repository, which is not what its user changed. Any folder
    inside a repository will do: the gate finds its top.
    """
    if sweep.source in ready_sweeps().values():
        return Path()
    return sweep.base_folder


def certify_machine(
    results: Results,
    sweep: Sweep,
    profile: Profile,
    settings: CertifySettings,
    count: int,
    *,
    on_message: Callable[[str], None],
    on_progress: Callable[[Certificate], None],
) -> Certificate:
    """Make the missing comparisons of `count`; those of an earlier run on this machine count.

    Every comparison is on disk as soon as it is made. `on_message` is that of
    `hold_machine`. Raises BadInput for an earlier certificate that can't be read or continued,
    HarnessError if a rank fails.
    """
    with hold_machine(profile, "measuring its false alarms", on_message=on_message):
        certificate = prepare(results, profile, settings)
        on_progress(certificate)
        return certify(results, sweep, profile, certificate, count, on_progress)
