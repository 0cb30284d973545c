"""Positions on a scale, and shades."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from harness.render.html.rows import RatioScale, Scale, bars, shade


def test_a_ratio_scale_contains_1_and_all_ratios_in_order() -> None:
    scale = RatioScale([0.5, 2.0, 4.0])
    half, one_fold, double, fourfold = map(scale.position, (0.5, 1.0, 2.0, 4.0))
    assert 0 < half < one_fold < double < fourfold < 100
    assert double - one_fold == pytest.approx(fourfold - double)  # equal ratios, equal distances
    assert "1×" in [label for _, label in scale.ticks()]


def test_an_interval_is_drawn_whole_or_its_cut_end_is_marked() -> None:
    scale = Scale([10.0, 12.0], [9.0, 13.0, 1000.0])
    whole = scale.span("a", 10.0, (9.0, 13.0), "")
    assert whole.ends == ""
    assert whole.low is not None
    assert whole.high is not None
    assert 0 < whole.low < whole.position < whole.high < 100
    cut = scale.span("b", 12.0, (9.0, 1000.0), "")
    assert (cut.ends, cut.high) == ("open-high", 100)
    assert scale.span("c", 11.0, None, "").low is None


def test_the_interval_of_values_that_are_all_alike_is_drawn_whole() -> None:
    scale = Scale([0.9, 0.9], [0.85, 0.95])
    assert scale.contains(0.85)
    assert scale.contains(0.95)


@pytest.mark.parametrize(
    "values", [[0.9], [1e13], [0.5, 0.5], [0.0, 1e-9], [1.0, 7.0], [0.9326, 0.9347], [-3e5, 1e6]]
)
def test_ticks_are_few_and_inside(values: list[float]) -> None:
    positions = [position for position, _ in Scale(values).ticks()]
    assert 1 <= len(positions) <= 6
    assert positions == sorted(positions)
    assert 0 <= positions[0] <= positions[-1] <= 100


@pytest.mark.parametrize("ratios", [[4.0, 2.0], [0.99, 1.01], [8.0, 0.1], [100.0, 0.01], [1.0]])
def test_ticks_of_ratios_contain_1_and_do_not_overlap(ratios: list[float]) -> None:
    ticks = RatioScale(ratios).ticks()
    positions = [position for position, _ in ticks]
    assert "1×" in [label for _, label in ticks]
    assert all(after - before >= 8 for before, after in pairwise(positions))
    assert 0 <= positions[0] <= positions[-1] <= 100


@pytest.mark.parametrize("ratio", [0.0, math.inf, 1e300])
def test_infinite_bounds_stay_inside(ratio: float) -> None:
    assert 0 <= RatioScale([0.9, ratio]).position(ratio) <= 100
    assert 0 <= RatioScale([1.0], [0.5, ratio]).position(1.0) <= 100


def test_shades_grow_with_the_ratio_and_differ_for_faster_and_slower() -> None:
    def red(color: str) -> int:
        return int(color[1:3], 16)

    assert shade(1.0, 2.0) == "#ffffff"
    assert red(shade(2.0, 2.0)) < red(shade(1.2, 2.0)) < 255
    assert shade(0.5, 2.0) != shade(2.0, 2.0)


def test_the_largest_bar_takes_all_the_space() -> None:
    rows = bars([("a", 1.0, "1"), ("b", 4.0, "4")])
    assert [row.parts[0].width for row in rows] == [25.0, 100.0]
    assert bars([("a", 0.0, "0")])[0].parts[0].width == 0.0
