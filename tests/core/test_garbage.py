"""Commands that end soon look for no garbage, and leave what they made to the system."""

from __future__ import annotations

import gc

import pytest

from harness.core import own_process
from harness.core.garbage import collection_paused

OBJECTS = 1000


@pytest.mark.parametrize("until_exit", [False, True])
@pytest.mark.parametrize("is_own", [False, True])
def test_nothing_is_looked_at_within_nor_after_if_a_process_of_ours_ends(
    until_exit: bool, is_own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_process, "_is_own", is_own)
    kept = []
    frozen_before = gc.get_freeze_count()
    with collection_paused(until_exit=until_exit):
        assert not gc.isenabled()
        kept += [[number] for number in range(OBJECTS)]
    assert gc.isenabled()
    is_frozen = gc.get_freeze_count() >= frozen_before + OBJECTS
    assert is_frozen == (until_exit and is_own)
