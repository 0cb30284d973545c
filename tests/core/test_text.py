"""Numbers in words."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from harness.core.text import ranges


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([7, 1, 2], "1-2, 7"),
        (range(1, 1024), "1-1023"),
        ([0, 2, 3, 4, 6], "0, 2-4, 6"),
    ],
)
def test_numbers_that_follow_each_other_are_a_range(numbers: Iterable[int], text: str) -> None:
    assert ranges(numbers) == text
