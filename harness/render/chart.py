"""One look for all plots: colors, markers, axes and the format of files.

Matplotlib is imported when the first plot is drawn, as it takes longer than most commands. Its
`Figure` is used without pyplot, which keeps every figure in memory and wants a display.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from harness.render.format import si_prefixed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The palette of Okabe and Ito, distinguishable for the color-blind too (Color Universal Design,
# 2008). The last three are pale on white and so come last.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8C6D31", "#E69F00", "#56B4E9", "#B3A800")
INK = "#222222"  # text, and lines that stand for no series
PALE = "#DDDDDD"  # grid lines
SPINE = "#888888"
DPI = 150


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure; width and height are in inches.

    Its texts are drawn as they are: a dollar sign in a user's name does not start a formula.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # Matplotlib reads this setting when a text is made, so it is set for the whole process.
    mpl.rcParams["text.parse_math"] = False
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def style_axes(axes: Axes, title: str, x_label: str, y_label: str) -> None:
    """Give axes their title and labels, and the look that all plots share."""
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)
    axes.set_xlabel(x_label, fontsize=9, color=INK)
    axes.set_ylabel(y_label, fontsize=9, color=INK)
    axes.tick_params(labelsize=8.5, colors=INK, which="both")
    axes.grid(True, which="major", color=PALE, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(SPINE)


def png_bytes(figure: Figure, dpi: int = DPI) -> bytes:
    """Return a figure as the content of a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    content = io.BytesIO()
    figure.set_dpi(dpi)
    # `Figure.savefig` would draw everything twice, the first time for formats that need the size.
    FigureCanvasAgg(figure).print_png(content)  # type: ignore[no-untyped-call]
    return content.getvalue()


def si_tick(value: float, _: float) -> str:
    """Return a tick's label with an SI prefix: `208 G`."""
    return si_prefixed(value).strip()
