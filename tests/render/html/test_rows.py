"""Positions and shades."""

from __future__ import annotations

import math

import pytest

from harness.render.html.rows import Ratios, Scale, Verdict, bars, shade


def test_a_scale_holds_one_and_all_ratios_in_their_order() -> None:
    scale = Ratios([0.5, 2.0, 4.0])
    places = [scale.place(ratio) for ratio in (0.5, 1.0, 2.0, 4.0)]
    assert places == sorted(places)
    assert 0 < places[0] < places[-1] < 100
    assert places[2] - places[1] == pytest.approx(
        places[3] - places[2]
    )  # equal ratios are equally far apart
    assert "1×" in [text for _, text in scale.ticks()]


def test_an_interval_is_drawn_whole_or_says_which_end_is_cut_off() -> None:
    scale = Scale([10.0, 12.0], [9.0, 13.0, 1000.0])
    whole = scale.span("a", 10.0, (9.0, 13.0), "", Verdict("", ""))
    assert whole.ends == ""
    assert whole.low is not None and whole.high is not None  # noqa: PT018 - for the type checker
    assert 0 < whole.low < whole.at < whole.high < 100
    cut = scale.span("b", 12.0, (9.0, 1000.0), "", Verdict("", ""))
    assert (cut.ends, cut.high) == ("open-high", 100)
    assert scale.span("c", 11.0, None, "", Verdict("", "")).low is None


@pytest.mark.parametrize(
    "values", [[0.9], [0.5, 0.5], [0.0, 1e-9], [1.0, 7.0], [0.9326, 0.9347], [-3e5, 1e6]]
)
def test_ticks_are_few_and_inside(values: list[float]) -> None:
    places = [place for place, _ in Scale(values).ticks()]
    assert 1 <= len(places) <= 6
    assert places == sorted(places)
    assert 0 <= places[0] <= places[-1] <= 100


@pytest.mark.parametrize("ratio", [0.0, math.inf, 1e300])
def test_bounds_without_end_stay_inside(ratio: float) -> None:
    assert 0 <= Ratios([0.9, ratio]).place(ratio) <= 100


def test_shades_grow_with_the_ratio_and_tell_faster_from_slower() -> None:
    def red(colour: str) -> int:
        return int(colour[1:3], 16)

    assert shade(1.0, 2.0) == "#ffffff"
    assert red(shade(2.0, 2.0)) < red(shade(1.2, 2.0)) < 255
    assert shade(0.5, 2.0) != shade(2.0, 2.0)


def test_the_largest_bar_is_as_wide_as_there_is_room() -> None:
    found = bars([("a", 1.0, "1"), ("b", 4.0, "4")])
    assert [row.parts[0].width for row in found] == [25.0, 100.0]
    assert bars([("a", 0.0, "0")])[0].parts[0].width == 0.0
