"""Paired measurement on this machine: the gate, its bisection and the certificate of a machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.analysis.selection import planned_cell
from harness.core.errors import BadInput, HarnessError, did_you_mean
from harness.core.paths import Results
from harness.gate.against import GateOptions, GateOutcome, gate
from harness.gate.bisect import BisectOptions, BisectOutcome, bisect
from harness.gate.bisect_stacks import StackBisectOutcome, bisect_stacks
from harness.gate.certify import certify, describe_conditions, prepare, with_visible_effect
from harness.gate.explain import ExplainOptions, explain
from harness.gate.explanation import HERE, Explanation
from harness.gate.stacks import gate_stacks
from harness.hardware.certificate import Certificate, CertifySettings
from harness.interface.machine import hold_machine
from harness.render.bisect import BisectView
from harness.spec.cell import Cell
from harness.spec.cluster import Profile, check_fits
from harness.spec.selected import find_cell
from harness.spec.sweep import Sweep, ready_sweeps


def gate_sweep(
    sweep: Sweep,
    profile: Profile,
    results: Results,
    options: GateOptions,
    *,
    by_certificate: bool,
    wait: bool,
    on_message: Callable[[str], None],
    on_progress: Callable[[str], None],
) -> GateOutcome:
    """Measure the cells of a sweep against the revision or the stack that the options name.

    `by_certificate`: the smallest slowdown that matters is the smallest that can be seen here, by
    the machine's certificate. `wait` and `on_message` are those of `hold_machine`. Raises BadInput
    for a certificate that can't be read, before anything is measured.
    """
    conditions = describe_conditions(results, profile)
    if by_certificate:
        options = with_visible_effect(options, results, conditions, len(sweep.cells))

    def report_progress(cell: Cell, text: str) -> None:
        """Report which cell is being measured and how far that is."""
        on_progress(f"{cell.label}: {text}")

    with hold_machine(profile, f"measuring {sweep.name}", wait=wait, on_message=on_message):
        if options.stack:
            return gate_stacks(sweep, profile, options, conditions, report_progress)
        repository = _repository_folder(sweep)
        return gate(sweep, profile, options, conditions, repository, report_progress)


def bisect_cell(
    sweep: Sweep,
    cell: Cell,
    profile: Profile,
    options: BisectOptions,
    view: BisectView,
    *,
    is_over_stacks: bool,
    wait: bool,
    on_message: Callable[[str], None],
) -> BisectOutcome | StackBisectOutcome:
    """Search the commits, or the sweep's stacks, for the first that made a cell slower.

    `wait` and `on_message` are those of `hold_machine`. A GOOD or BAD that can't serve as such is an
    error, not an outcome.
    """
    activity = f"measuring commits for {sweep.name}"
    with hold_machine(profile, activity, wait=wait, on_message=on_message):
        if is_over_stacks:
            return bisect_stacks(sweep, cell, profile, options, view)
        repository = _repository_folder(sweep)
        return bisect(sweep, cell, profile, options, repository, view)


def explain_arms(
    sweep: Sweep,
    cell_name: str | None,
    profile: Profile,
    options: ExplainOptions,
    *,
    wait: bool,
    on_message: Callable[[str], None],
    on_progress: Callable[[str], None],
) -> Explanation:
    """Measure what the difference of two cells, revisions or stacks consists of.

    Revisions and stacks train the cell of that name, or the only one; it is None for cells. `wait`
    and `on_message` are those of `hold_machine`.
    """
    cell = None if cell_name is None else choose_cell(sweep, cell_name)
    activity = f"explaining {sweep.name}"
    with hold_machine(profile, activity, wait=wait, on_message=on_message):
        inside = _repository_folder(sweep)
        return explain(sweep, cell, profile, options, inside, on_progress)


def explain_slower(
    sweep: Sweep,
    profile: Profile,
    outcome: GateOutcome,
    *,
    wait: bool,
    on_message: Callable[[str], None],
    on_progress: Callable[[str], None],
) -> dict[str, Explanation]:
    """Explain each cell that a gate has found slower, for as long as it was measured; by cell id.

    `wait` and `on_message` are those of `hold_machine`. A cell that can't be explained is a message,
    because the gate's verdict stands without its explanation.
    """
    explanations = {}
    for slower in outcome.slower_cells:
        options = ExplainOptions(
            a=outcome.options.stack or outcome.options.revision,
            b=HERE,
            arms="stacks" if outcome.options.stack else "revisions",
            budget_seconds=outcome.options.budget_seconds,
            order_seed=outcome.options.order_seed,
        )
        try:
            explanations[slower.cell.id] = explain_arms(
                sweep,
                slower.cell.id,
                profile,
                options,
                wait=wait,
                on_message=on_message,
                on_progress=on_progress,
            )
        except HarnessError as error:
            on_message(f"{slower.cell.label}: not explained: {error}")
    return explanations


def choose_cell(sweep: Sweep, name: str) -> Cell:
    """Return the cell that is named, or the only one; raises BadInput if it is not clear which."""
    if name:
        return find_cell(sweep, name)
    if len(sweep.cells) == 1:
        return sweep.cells[0]
    ids = {cell.id for cell in sweep.cells}
    raise BadInput(
        f"--cell is required because {sweep.source} has {len(ids)} cells; {did_you_mean('', ids)}"
    )


def recorded_cell(
    results: Results, name: str, profile: Profile, option: str = "--cell"
) -> tuple[Sweep, Cell]:
    """Return a cell of a sweep that has run, with its sweep.

    `option` is where the name was given, for errors. Raises BadInput for a cell that no sweep or
    several sweeps have, and for one that the profile can't run.
    """
    sweep, cell = planned_cell(results, name, option)
    check_fits(profile, [cell], sweep.source)
    return sweep, cell


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
    restart: bool,
    wait: bool,
    on_message: Callable[[str], None],
    on_progress: Callable[[Certificate], None],
) -> tuple[Certificate, int]:
    """Make the missing comparisons of `count`; return the certificate and how many were made.

    `settings` are common to all comparisons; those of an earlier run on this machine count, and must
    have had the same settings and versions. `restart` discards them. Every comparison is on disk as
    soon as it is made. `wait` and `on_message` are those of `hold_machine`.

    Raises BadInput for an earlier certificate that can't be read or continued, HarnessError if a rank
    fails.
    """
    with hold_machine(profile, "measuring its false alarms", wait=wait, on_message=on_message):
        certificate = prepare(results, profile, settings, restart=restart)
        previous_count = len(certificate.comparisons)
        if previous_count < count:
            on_progress(certificate)
            certificate = certify(results, sweep, profile, certificate, count, on_progress)
    return certificate, len(certificate.comparisons) - previous_count
