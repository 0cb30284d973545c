"""Equivalence by TOST: how often it is shown falsely, and how often as planned."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.statistics.equivalence import equivalence, pairs_needed
from harness.statistics.estimate import POWER, paired
from harness.statistics.verdict import ALPHA

MARGIN = 0.01
STUDIES = 2000


def share_shown(difference: float, deviation: float, pairs: int, seed: int = 7) -> float:
    """Return the share of simulated studies that show equivalence at MARGIN."""
    rng = np.random.default_rng(seed)
    studies = rng.normal(difference, deviation, (STUDIES, pairs))
    shown = [equivalence(paired(study), MARGIN).is_shown for study in studies.tolist()]
    return sum(shown) / STUDIES


def noise(probability: float) -> float:
    """Return four standard errors of a share among STUDIES: rare in any of a dozen tests."""
    return 4 * math.sqrt(probability * (1 - probability) / STUDIES)


@pytest.mark.parametrize("pairs", [3, 5, 10, 30])
@pytest.mark.parametrize("edge", [-MARGIN, MARGIN])
def test_false_equivalence_at_the_margins_edge(pairs: int, edge: float) -> None:
    """The worst case of a false claim is a true difference of exactly the margin."""
    assert share_shown(edge, deviation=0.004, pairs=pairs) <= ALPHA + noise(ALPHA)


def test_false_equivalence_reaches_the_level_where_spread_is_small() -> None:
    assert share_shown(MARGIN, deviation=0.002, pairs=10) >= ALPHA - noise(ALPHA)


@pytest.mark.parametrize("deviation", [0.003, 0.006, 0.012, 0.03])
def test_power_is_as_planned(deviation: float) -> None:
    pairs = pairs_needed(deviation, MARGIN)
    assert pairs is not None
    assert share_shown(0.0, deviation, pairs) >= POWER - noise(POWER)
    if pairs > 10:  # fewer can't be tuned as finely
        assert share_shown(0.0, deviation, pairs) <= POWER + 0.08
        assert share_shown(0.0, deviation, pairs * 3 // 4) < POWER


@pytest.mark.parametrize("seed", range(5))
def test_the_smallest_provable_margin_is_where_the_claim_begins_to_hold(seed: int) -> None:
    differences = np.random.default_rng(seed).normal(0.002, 0.005, 6).tolist()
    provable = equivalence(paired(differences), MARGIN).min_provable_margin
    assert provable is not None
    assert equivalence(paired(differences), provable * 1.001).is_shown
    assert not equivalence(paired(differences), provable * 0.999).is_shown


def test_one_pair_shows_nothing_and_plans_nothing() -> None:
    single = equivalence(paired([0.0]), MARGIN)
    assert not single.is_shown
    assert (single.min_provable_margin, single.pairs_needed) == (None, None)


def test_no_plan_for_a_margin_of_nothing() -> None:
    assert pairs_needed(0.01, 0.0) is None
    assert pairs_needed(1e9, MARGIN) is None
    assert pairs_needed(0.0, MARGIN) == 2
