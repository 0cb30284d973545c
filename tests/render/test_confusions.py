"""The picture of what a classifier takes for what is readable, however many classes there are."""

from __future__ import annotations

import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from harness.records.record import Confusions
from harness.render.confusions import draw_confusions
from tests.factories import CONFUSIONS

LONG_NAME = "balance_not_updated_after_cheque_or_cash_deposit"


def make_confusions(count: int, *, omitted: int = 0) -> Confusions:
    """Make ten samples of each class, two of which are taken for the next one."""
    mistakes = [(label, (label + 1) % count, 2) for label in range(count)]
    return Confusions(
        classes=tuple(f"{LONG_NAME} {number}" for number in range(count)),
        support=(10,) * count,
        predicted=(10,) * count,
        correct=(8,) * count,
        mistakes=tuple(mistakes),
        omitted=omitted,
    )


def axes_of(figure: Figure) -> Axes:
    (axes,) = figure.axes
    return axes


def names_of_rows(figure: Figure) -> list[str]:
    return [label.get_text() for label in axes_of(figure).get_yticklabels()]


def outside(figure: Figure) -> list[str]:
    """Return the texts that are cut off by the edge of the figure."""
    FigureCanvasAgg(figure)
    axes = axes_of(figure)
    texts: list[Text] = [*figure.texts, *axes.get_xticklabels(), *axes.get_yticklabels()]
    texts += [axes.xaxis.label, axes.yaxis.label]
    figure.draw_without_rendering()
    whole = figure.bbox
    cut_off = []
    for text in texts:
        box = text.get_window_extent()
        if box.x0 < whole.x0 or box.x1 > whole.x1 or box.y0 < whole.y0 or box.y1 > whole.y1:
            cut_off.append(text.get_text())
    return cut_off


def test_few_classes_have_counts_and_shares_of_their_rows() -> None:
    figure = draw_confusions(CONFUSIONS, "mlp")
    fields = {text.get_position(): text.get_text() for text in axes_of(figure).texts}
    assert fields == {
        (0, 0): "9\n90%",
        (1, 0): "1\n10%",
        (0, 1): "2\n10%",
        (1, 1): "18\n90%",
        (0, 2): "1\n3%",
        (2, 2): "29\n97%",
    }
    assert names_of_rows(figure) == ["cat", "dog", "eel"]


@pytest.mark.parametrize("count", [2, 20, 77])
def test_names_and_notes_fit(count: int) -> None:
    figure = draw_confusions(make_confusions(count, omitted=3), "distilbert, 1 trial")
    assert outside(figure) == []
    assert len(names_of_rows(figure)) == count
    assert max(map(len, names_of_rows(figure))) == 30
    assert "3 mistakes of rarer pairs are not drawn" in [text.get_text() for text in figure.texts]


def test_very_many_classes_are_colors_with_every_nth_name() -> None:
    figure = draw_confusions(make_confusions(1000))
    assert len(axes_of(figure).texts) == 0
    assert 50 < len(names_of_rows(figure)) < 150
    assert max(figure.get_size_inches()) < 16
