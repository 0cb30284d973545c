"""Draws what a classifier takes for what, for the report and for MLflow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.analysis.classes import matrix
from harness.core.errors import one_line
from harness.core.text import counted
from harness.records.record import Confusions
from harness.render import chart
from harness.render import format as fmt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 72  # in an inch
TITLE_SIZE = 10.0  # points
NOTE_SIZE = 8.0  # points
LETTER_WIDTH = 0.65  # of a letter on average, as a share of the size of its font
NAME_LETTERS = 30  # of a class's name that are shown
MARGIN = 0.15  # inches around everything
LABEL_SPACE = 0.25  # inches for what an axis stands for
TITLE_SPACE = 0.35  # inches
LARGEST_SIDE = 12.0  # inches of a matrix that has too many classes for text in its fields


@dataclass(frozen=True, kw_only=True)
class Detail:
    """What is written into the fields of a matrix, and how large they are for it."""

    field: float  # inches, of a side
    name_size: float  # points, of the names of classes
    count_size: float | None  # points, of the counts; None: none are written
    has_shares: bool  # whether shares of the row are below the counts
    least_shade: float  # of a field with a single sample, which would otherwise be white


@dataclass(frozen=True, kw_only=True)
class Field:
    """The samples of one class that were taken for one class."""

    row: int  # the class's number
    column: int  # the number of the class that they were taken for
    count: int
    share: float  # of the samples of the row's class

    @property
    def share_text(self) -> str:
        """Return the share in percent; one below 1% has a digit after the point."""
        return fmt.share(self.share, digits=0 if self.share >= 0.01 else 1)

    def color(self, least_shade: float) -> str:
        """Return the field's color as `#rrggbb`; `least_shade` is that of no samples."""
        color = chart.COLORS[0] if self.row == self.column else chart.COLORS[1]
        return chart.tint(color, least_shade + (1 - least_shade) * self.share)

    @property
    def corners(self) -> Sequence[tuple[float, float]]:
        """Return the corners of the field, around its middle."""
        left, right = self.column - 0.5, self.column + 0.5
        top, bottom = self.row - 0.5, self.row + 0.5
        return [(left, top), (right, top), (right, bottom), (left, bottom)]


def draw_confusions(confusions: Confusions, title: str = "") -> Figure:
    """Return a figure with the samples of each class, a row, by what they were taken for.

    What is right is blue, and a mistake orange; the darker, the larger its share of the row. Up to 20
    classes have counts and shares, up to 100 have counts. Sizes follow from the number of classes and
    from the longest name, so that texts are readable and nothing has to be measured.
    """
    detail = _detail(len(confusions.classes))
    names = [one_line(name, NAME_LETTERS) for name in confusions.classes]
    note = ""
    if confusions.omitted:
        note = f"{counted(confusions.omitted, 'mistake')} of rarer pairs are not drawn"
    longest_name = _width(max(names, key=len), detail.name_size)
    is_upright = longest_name > detail.field  # of the names above the columns
    column_height = longest_name if is_upright else detail.name_size / POINTS
    side = detail.field * len(names)
    left = MARGIN + LABEL_SPACE + longest_name
    bottom = MARGIN + (LABEL_SPACE if note else 0)
    top = MARGIN + LABEL_SPACE + column_height + (TITLE_SPACE if title else 0)
    below_and_above = max(_width(title, TITLE_SIZE), _width(note, NOTE_SIZE))
    width = MARGIN + max(left - MARGIN + side, below_and_above) + MARGIN
    height = bottom + side + top
    figure = chart.new_figure(width, height)
    figure.set_layout_engine("none")  # which would measure each text, and takes seconds
    axes = figure.add_axes((left / width, bottom / height, side / width, side / height))
    _draw_fields(axes, confusions, detail)
    _name_classes(axes, names, detail, is_upright=is_upright)
    start = MARGIN / width
    figure.text(start, 1 - MARGIN / height, title, va="top", fontsize=TITLE_SIZE, fontweight="bold")
    figure.text(start, MARGIN / height, note, fontsize=NOTE_SIZE, color=chart.INK)
    return figure


def _detail(classes: int) -> Detail:
    """Return what the fields of a matrix have room for, by its number of `classes`."""
    if classes <= 20:
        return Detail(field=0.5, name_size=9, count_size=8.5, has_shares=True, least_shade=0.15)
    if classes <= 100:
        return Detail(field=0.155, name_size=6.5, count_size=5, has_shares=False, least_shade=0.25)
    return Detail(
        field=LARGEST_SIDE / classes,
        name_size=6.5,
        count_size=None,
        has_shares=False,
        least_shade=0.7,
    )


def _width(text: str, size: float) -> float:
    """Return the approximate width of a text in inches, in a font of `size` points."""
    return len(text) * LETTER_WIDTH * size / POINTS


def _draw_fields(axes: Axes, confusions: Confusions, detail: Detail) -> None:
    """Draw the fields that have samples; a class's number is where the middle of its field is."""
    from matplotlib.collections import PolyCollection

    fields = []
    for row, counts in enumerate(matrix(confusions)):
        for column, count in enumerate(counts):
            if count:
                share = count / confusions.support[row]
                fields.append(Field(row=row, column=column, count=count, share=share))
    corners = [field.corners for field in fields]
    colors = [field.color(detail.least_shade) for field in fields]
    gap = 0.5 if detail.count_size is not None else 0.0  # points between fields
    axes.add_collection(
        PolyCollection(corners, facecolors=colors, edgecolors="white", linewidths=gap),
        autolim=False,
    )
    if detail.count_size is None:
        return
    for field in fields:
        text = f"{field.count:,}"
        if detail.has_shares:
            text += f"\n{field.share_text}"
        axes.text(
            field.column,
            field.row,
            text,
            fontsize=detail.count_size,
            color=chart.INK,
            ha="center",
            va="center",
        )


def _name_classes(axes: Axes, names: Sequence[str], detail: Detail, *, is_upright: bool) -> None:
    """Write the names of classes next to the rows and above the columns; of very many, every nth."""
    line_height = 1.25 * detail.name_size / POINTS
    every = max(1, math.ceil(line_height / detail.field))
    shown = range(0, len(names), every)
    labels = [names[number] for number in shown]
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_ylim(len(names) - 0.5, -0.5)  # the first class is at the top
    axes.set_xticks(shown, labels, rotation=90 if is_upright else 0)
    axes.set_yticks(shown, labels)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(labelsize=detail.name_size, labelcolor=chart.INK, length=0, pad=2)
    axes.set_xlabel("taken for", fontsize=9, color=chart.INK)
    axes.set_ylabel("label", fontsize=9, color=chart.INK)
    axes.grid(True, color=chart.PALE, linewidth=0.4)
    axes.set_axisbelow(True)
    axes.spines[:].set_color(chart.SPINE)
