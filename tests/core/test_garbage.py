"""Commands that end soon look for no garbage, and leave what they made to the system."""

from __future__ import annotations

import gc

import pytest

from harness.core.garbage import collection_paused

OBJECTS = 1000


@pytest.mark.parametrize("until_exit", [False, True])
def test_nothing_is_looked_at_within_nor_after_if_the_process_ends(until_exit: bool) -> None:
    kept = []
    frozen_before = gc.get_freeze_count()
    with collection_paused(until_exit=until_exit):
        assert not gc.isenabled()
        kept += [[number] for number in range(OBJECTS)]
    assert gc.isenabled()
    assert (gc.get_freeze_count() >= frozen_before + OBJECTS) == until_exit
