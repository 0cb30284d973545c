"""After which failures a trial runs again by itself, and how often."""

from __future__ import annotations

import pytest

from harness.launch.retries import RETRIES, RETRIES_OF_SAVED, is_retried
from harness.records.record import Failure


def failures(*kinds: str) -> list[Failure]:
    """Return the failures of attempts 1, 2, ..., which began at 10 s, 20 s, ..."""
    made = []
    for number, kind in enumerate(kinds, start=1):
        made.append(Failure(kind=kind, message="", attempt=number, began_at=10.0 * number))
    return made


@pytest.mark.parametrize(
    ("kind", "times"),
    [("Lost", 2), ("NodeFailure", 2), ("Hang", 1), ("Unresponsive", 1), ("ValueError", 0)],
)
def test_a_failure_allows_so_many_more_attempts(kind: str, times: int) -> None:
    answers = []
    for count in range(1, 5):
        answers.append(is_retried(failures(*[kind] * count), 0.0, RETRIES))
    assert answers == [True] * times + [False] * (4 - times)


def test_failures_before_a_submission_do_not_count() -> None:
    lost = failures("NodeFailure", "NodeFailure", "NodeFailure")
    assert not is_retried(lost, 0.0, RETRIES)
    assert is_retried(lost, 20.0, RETRIES)


def test_what_may_be_the_trials_own_is_retried_where_it_saves() -> None:
    """Two ends before a save leave all retries to those after it; a fault of its own has none."""
    killed = failures("Killed", "Killed", "Killed")
    assert is_retried(killed, 15.0, RETRIES_OF_SAVED)
    assert not is_retried(killed, 5.0, RETRIES_OF_SAVED)
    assert not is_retried(killed, 15.0, RETRIES)
    assert not is_retried(failures("ValueError"), 15.0, RETRIES_OF_SAVED)
