"""Defines `harness diff audit`: what is deterministic on this machine, and what that costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.arguments import (
    ClusterOption,
    DataOption,
    JsonOption,
    SetOption,
    SweepArgument,
    check_launcher,
    examples,
    load_sweep,
)

if TYPE_CHECKING:
    from harness.analysis.parity import SweepParity
    from harness.spec.cluster import Profile
    from harness.spec.sweep import Sweep

app = typer.Typer()


@app.command(
    epilog=examples(
        "harness diff audit",
        "harness diff audit --workload mlp --budget 0s",
        "harness diff audit --operations --workload cnn --all",
        "harness diff audit my-audit.yaml --json",
    )
)
def audit(
    sweep: SweepArgument = "audit",
    workloads: Annotated[
        list[str],
        typer.Option(
            "--workload", metavar="LABEL", help="Audit only this workload of the sweep. Repeatable."
        ),
    ] = [],  # noqa: B006 - typer copies it
    operations: Annotated[
        bool,
        typer.Option("--operations", help="Run each operation of a training step again and again."),
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="With --operations: show those that nothing changes too.")
    ] = False,
    budget: Annotated[
        str,
        typer.Option(
            "--budget",
            metavar="DURATION",
            help="Measure each cost for this long, as in 1m; 0s: not at all.",
        ),
    ] = "20s",
    settings: SetOption = [],  # noqa: B006
    data: DataOption = [],  # noqa: B006
    cluster: ClusterOption = "local",
    as_json: JsonOption = False,
) -> None:
    """Show what changes bits, and what determinism costs.

    Runs the cells of a sweep that turns one setting at a time, and holds each against the cell before
    it that it is most like: bitwise, within tolerance, or neither, with the step and the phase in
    which they part and the likely cause. Then measures in turn what `deterministic: true` and
    `reduction: tree` cost. With --operations, runs every operation of a training step on the same
    inputs instead: 25 times, at other addresses and with 1, 2 and 4 threads, in fp32 and bf16.

    Exit code 1 if a second run computes other bits, a cell fails, or an operation does not repeat.
    """
    import shutil
    import tempfile

    from harness.core.text import parse_duration
    from harness.reproduce.audit import choose_workloads

    seconds = parse_duration(budget, "--budget")
    loaded, profile = load_sweep(sweep, settings, data, cluster, timed=False)
    check_launcher(cluster, profile, "torchrun")
    loaded = choose_workloads(loaded, workloads)
    folder = Path(tempfile.mkdtemp(prefix="harness-audit-"))
    if operations:
        all_well = _audit_operations(loaded, profile, folder, every=every, as_json=as_json)
    else:
        all_well = _audit_settings(loaded, profile, folder, seconds, as_json=as_json)
    if all_well:
        shutil.rmtree(folder)  # otherwise it has the logs that errors name
    else:
        raise typer.Exit(1)


def _audit_operations(
    sweep: Sweep, profile: Profile, folder: Path, *, every: bool, as_json: bool
) -> bool:
    """Print the catalogue of operations, and return whether all of them repeat."""
    import json

    from harness.render.terminal import operations as view
    from harness.render.terminal.console import TerminalConsole
    from harness.reproduce.audit import measure_operations

    with TerminalConsole(stderr=True).status("") as status:
        measured = measure_operations(sweep, profile, folder, status.update)
    if as_json:
        print(json.dumps(view.operations_to_json(measured), indent=1))
    else:
        view.show_operations(TerminalConsole(), measured, every=every)
    return all(result.is_repeatable for results in measured.values() for result in results)


def _audit_settings(
    sweep: Sweep, profile: Profile, folder: Path, seconds: float, *, as_json: bool
) -> bool:
    """Print what the settings of a sweep change and cost; return whether all second runs repeat."""
    import json

    from harness.analysis.rungs import MAX_ULP
    from harness.gate.tax import measure_tax
    from harness.render.terminal import audit as view
    from harness.render.terminal.console import TerminalConsole
    from harness.reproduce.audit import plan_audit, taxed_pairs
    from harness.reproduce.parity import measure_parity
    from harness.reproduce.tracing import Tracer

    plan = plan_audit(sweep)
    taxes = []
    seed = sweep.seeds[0]
    with TerminalConsole(stderr=True).status("") as status:
        parity = measure_parity(
            sweep,
            plan,
            Tracer(folder, profile, sweep.timeout, status.update),
            seed=seed,
            max_ulp=MAX_ULP,
            margin=0.0,
            on_cell=lambda cell: None,
        )
        for pair in taxed_pairs(plan) if seconds else []:
            status.update(f"measuring what {pair.setting} costs {pair.reference.label}")
            taxes.append(
                measure_tax(
                    pair.setting,
                    pair.reference,
                    pair.cell,
                    seed=seed,
                    base=sweep.base_folder,
                    profile=profile,
                    seconds=seconds,
                    on_progress=lambda text: None,
                )
            )
    if as_json:
        print(json.dumps(view.to_json(parity, taxes), indent=1, default=str))
    else:
        view.show_audit(TerminalConsole(), parity, taxes)
    return _repeats(parity)


def _repeats(parity: SweepParity) -> bool:
    """Return whether every reference computed the same bits twice, and no cell failed."""
    same_bits = all(reference.control is None for reference in parity.references)
    return same_bits and not any(cell.failure for cell in parity.cells)
