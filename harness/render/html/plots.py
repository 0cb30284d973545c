"""What needs axes, as SVG within the page: curves and the roofline. Words are the reader's fonts, not outlines."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from harness.records.record import Record
from harness.records.series import Numbers
from harness.render import chart
from harness.render.html.facts import CellFacts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 16  # lines of a workload that are drawn: of the fastest cells
BANDS = 4  # lines of which the range is drawn too
DASHES: Sequence[Any] = ("-", (0, (4, 1.5)), (0, (1, 1)))
POINTS = 200  # of a curve


@dataclass(frozen=True, kw_only=True)
class Plot:
    """`lines` are the legend: colour, dashes, name."""

    title: str
    svg: Markup
    lines: Sequence[tuple[str, str, str]]
    note: str


def loss_plot(title: str, cells: Sequence[CellFacts]) -> Plot | None:
    """The mean loss over ranks and trials, step by step, with the range over trials."""
    return _curves(title, cells, "training loss", _losses)


def metric_plot(title: str, cells: Sequence[CellFacts]) -> Plot | None:
    """The target metric at each evaluation; None where there was but one."""
    named = next((cell.target for cell in cells if cell.target), "target metric")
    return _curves(title, cells, named, _metrics)


def _losses(record: Record) -> dict[int, float]:
    values = record.loss.unpack() if record.loss else np.empty(0)
    places = np.unique(
        np.linspace(0, len(values) - 1, min(len(values), POINTS)).round().astype(int)
    )
    return {int(place) + 1: float(values[place]) for place in places}


def _metrics(record: Record) -> dict[int, float]:
    learned = record.rank0
    return (
        {one.step: one.metrics[learned.target.name] for one in learned.evaluations}
        if learned
        else {}
    )


def _curves(title: str, cells: Sequence[CellFacts], what: str, values: Any) -> Plot | None:
    cells = sorted(
        (cell for cell in cells if cell.done),
        key=lambda cell: -(cell.rate.mean if cell.rate else 0.0),
    )
    found: dict[
        tuple[Any, bytes], tuple[list[CellFacts], Numbers]
    ] = {}  # by what they are, as some are the same
    for cell in cells:
        rows = [values(record) for record in cell.done]
        steps = tuple(sorted(set.intersection(*(set(row) for row in rows))))
        table: Numbers = np.array([[row[step] for step in steps] for row in rows])
        if len(steps) > 1:
            found.setdefault((steps, table.tobytes()), ([], table))[0].append(cell)
    if not found:
        return None
    drawn = chart.new_figure(3.6, 2.7)
    axes = drawn.subplots()
    lines = []
    for (steps, _), (alike, table) in sorted(
        list(found.items())[:SHOWN], key=lambda item: _first(item[1][0])
    ):
        number = _first(alike)
        colour, dash = (
            chart.COLORS[number % len(chart.COLORS)],
            number // len(chart.COLORS) % len(DASHES),
        )
        axes.plot(steps, table.mean(axis=0), color=colour, linestyle=DASHES[dash], linewidth=1.1)
        if len(table) > 1 and len(found) <= BANDS:
            axes.fill_between(
                steps, table.min(axis=0), table.max(axis=0), color=colour, alpha=0.15, linewidth=0
            )
        names = " = ".join(cell.name for cell in sorted(alike, key=lambda cell: cell.number))
        lines.append((colour, ("none", "6 2", "2 2")[dash], names))
    chart.style_axes(axes, "", "step", what)
    note = f"the {SHOWN} fastest of {len(found)}" if len(found) > SHOWN else ""
    return Plot(title=title, svg=svg(drawn, f"{what} of {title}"), lines=lines, note=note)


def _first(cells: Sequence[CellFacts]) -> int:
    return min(cell.number for cell in cells)


def svg(drawn: Figure, label: str) -> Markup:
    """Inline, with the same bytes for the same plot, and for a screen reader what it is."""
    import matplotlib as mpl

    content = io.StringIO()
    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": label,
        "font.family": "sans-serif",
        "text.parse_math": False,
    }
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # glyphs that matplotlib's own font lacks and the reader's may have
        drawn.savefig(
            content, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    numbered = re.compile(
        r' id="[a-z_A-Z0-9]*_\d+"'
    )  # the same in every plot, and nothing refers to them
    drawing = numbered.sub("", content.getvalue().partition("<svg")[2])
    return Markup('<svg role="img" aria-label="{}"').format(label) + Markup(drawing)
