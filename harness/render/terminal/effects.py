"""`harness compare SWEEP --effects`: what each axis bought."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape

from harness.render.terminal.table import make_table, show
from harness.statistics.attribution import Attribution, Effect
from harness.statistics.verdict import ALPHA


def show_effects(found: Mapping[str, Attribution], *, as_json: bool) -> None:
    """A table for each workload: a line for every level of an axis, then for every two levels of two axes."""
    if as_json:
        print(
            json.dumps(
                {label: asdict(one) for label, one in found.items()}, indent=1, allow_nan=False
            )
        )
        return
    console = Console(highlight=False)
    for label, one in found.items():
        table = make_table(
            [label, "against", "throughput", "95% interval", "certain"],
            ["throughput", "95% interval"],
        )
        for effect in one.effects:
            table.add_row(_words(effect.levels), _words(effect.reference), *_numbers(effect))
        show(console, table)
        console.print(
            f"[dim]a trial deviates by {one.deviation:.1%} from the model;"
            f" {one.degrees_of_freedom} degrees of freedom[/]\n"
        )
        for term in one.unknown:
            console.print(
                f"{escape(' and '.join(term))}: can't be told from the other axes", soft_wrap=True
            )
    console.print(
        "[dim]of an axis: averaged over the others' values; of two: how much more the first buys with the second than"
        f" without; certain: at {ALPHA:.0%} over all lines (Holm)[/]",
        soft_wrap=True,
    )


def _words(levels: Mapping[str, Hashable]) -> str:
    return " with ".join(f"{name}={level}" for name, level in levels.items())


def _numbers(effect: Effect) -> tuple[str, str, str]:
    certain = "yes" if effect.p <= ALPHA else "no"
    return f"{effect.ratio:.3f}×", f"{effect.low:.3f} to {effect.high:.3f}", certain
