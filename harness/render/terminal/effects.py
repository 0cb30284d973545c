"""Shows `harness compare SWEEP --effects`: what each axis contributes.

The effects are ratios of throughput from a model of all cells together
(`harness.statistics.attribution`); the table says which of them are certain.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape

from harness.core.text import counted
from harness.render import format as fmt
from harness.render.table import Table
from harness.render.terminal.console import TerminalConsole
from harness.render.terminal.table import show
from harness.statistics.attribution import Attribution
from harness.statistics.verdict import ALPHA

LEGEND = (
    "of one axis: averaged over the values of the others; of two: how much more the first"
    f" contributes with the second than without it; certain: at {ALPHA:.0%} over all lines (Holm),"
    " where the interval, corrected likewise, leaves out 1"
)


def show_effects(attributions: Mapping[str, Attribution], *, as_json: bool) -> None:
    """Print a table for each workload: a line for every level of an axis, then for every two.

    `attributions` are by the workload's label. With `as_json` they are printed as JSON instead.
    """
    if as_json:
        content = {}
        for label, attribution in attributions.items():
            content[label] = asdict(attribution)
        print(json.dumps(content, indent=1, allow_nan=False))
        return
    console = TerminalConsole()
    for label, attribution in attributions.items():
        _print_attribution(console, label, attribution)
    console.print(f"[dim]{LEGEND}[/]", soft_wrap=True)


def _print_attribution(console: Console, label: str, attribution: Attribution) -> None:
    """Print one workload's effects, how well the model fits, and the terms it can't separate.

    A term is an axis or a pair of axes. It can't be separated where the cells that would tell it
    from others are not in the sweep.
    """
    table = Table(
        [label, "against", "throughput", "interval", "certain"],
        ["throughput", "interval"],
    )
    for effect in attribution.effects:
        table.add_row(
            fmt.axis_levels(effect.levels),
            fmt.axis_levels(effect.reference),
            fmt.effect_ratio(effect),
            fmt.effect_bounds(effect),
            fmt.certainty(effect),
        )
    show(console, table)
    console.print(
        f"[dim]a trial deviates by {attribution.deviation:.1%} from the model;"
        f" {counted(attribution.degrees_of_freedom, 'degree')} of freedom[/]\n"
    )
    for term in attribution.unknown:
        axes = escape(" and ".join(term))
        console.print(f"{axes}: can't be separated from the other axes", soft_wrap=True)
