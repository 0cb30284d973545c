"""One look for all plots; matplotlib is imported when the first is drawn."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.paths import write_atomically
from harness.render.format import si_prefixed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

# Okabe and Ito's colours, told apart by the colour-blind too; the last three are pale on white and come last.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8C6D31", "#E69F00", "#56B4E9", "#B3A800")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
INK, PALE = "#222222", "#DDDDDD"
DPI = 150


def new_figure(width: float, height: float) -> Figure:
    """In inches. Words on it are drawn as they are: dollars in users' names mean no formulas."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["text.parse_math"] = False  # read when a text is made, so for the whole process
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def style_axes(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)
    axes.set_xlabel(x, fontsize=9, color=INK)
    axes.set_ylabel(y, fontsize=9, color=INK)
    axes.tick_params(labelsize=8.5, colors=INK, which="both")
    axes.grid(True, which="major", color=PALE, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#888888")


def save_png(drawn: Figure, path: Path) -> None:
    """As a PNG that is whole or not there."""
    content = io.BytesIO()
    drawn.savefig(content, format="png", dpi=DPI)
    write_atomically(path, content.getvalue())


def si_formatter() -> FuncFormatter:
    """Labels of an axis as `si_prefixed` writes them."""
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: si_prefixed(value).strip())


def plain_formatter() -> FuncFormatter:
    """Labels of an axis without powers of ten."""
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: f"{value:g}")
