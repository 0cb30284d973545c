"""One look for all plots; matplotlib is imported when the first is drawn."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.paths import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

# Okabe and Ito's colours, told apart by the colour-blind too; the last three are pale on white and come last.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8C6D31", "#E69F00", "#56B4E9", "#B3A800")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
INK, PALE = "#222222", "#DDDDDD"
DPI = 150


def figure(width: float, height: float) -> Figure:
    """In inches. Words on it are drawn as they are: dollars in users' names mean no formulas."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["text.parse_math"] = False  # read when a text is made, so for the whole process
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def dress(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)
    axes.set_xlabel(x, fontsize=9, color=INK)
    axes.set_ylabel(y, fontsize=9, color=INK)
    axes.tick_params(labelsize=8.5, colors=INK, which="both")
    axes.grid(True, which="major", color=PALE, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#888888")


def save(drawn: Figure, path: Path) -> None:
    """As a PNG that is whole or not there."""
    content = io.BytesIO()
    drawn.savefig(content, format="png", dpi=DPI)
    write_whole(path, content.getvalue())


def size(bytes_: float) -> str:
    """`4 B`, `64 KiB`, `8 MiB`."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if bytes_ >= unit:
            return f"{bytes_ / unit:g} {name}"
    return f"{bytes_:g} B"


def rate(value: float, unit: str) -> str:
    """Of something a second, as in `208 GFLOP/s`, `3.35 TB/s`."""
    return f"{short(value)}{unit}/s"


def short(value: float) -> str:
    """With a prefix of three digits' step: `208 G`, `3.35 T`."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "


def prefixed() -> FuncFormatter:
    """Labels of an axis as `short` writes them."""
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: short(value).strip())


def plain() -> FuncFormatter:
    """Labels of an axis without powers of ten."""
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: f"{value:g}")
