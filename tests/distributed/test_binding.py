"""Ranks find themselves on the cores that their cell asks for, whatever has started them."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.cores import usable_cores
from tests.support.running import line_sweep, run

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(len(usable_cores()) < 2, reason="one core is all that there is"),
]


def cores_of_ranks(folder: Path, *, forks: bool) -> list[set[int]]:
    """Return the cores that each rank of a trial with binding `exclusive` has found."""
    axes = {"strategy": "ddp", "world_size": 2, "binding": "exclusive", "num_workers": 1}
    sweep = line_sweep(folder, {"line": {}}, length={"steps": 4}, axes=axes)
    (record,) = run(sweep, forkserver=forks)
    assert record.failure is None, record.failure
    cores = []
    for rank in record.ranks:
        assert rank.binding is not None
        cores.append(set(rank.binding.cores))
    return cores


@pytest.mark.parametrize(
    "forks", [True, pytest.param(False, marks=pytest.mark.nightly)], ids=["forked", "torchrun"]
)
def test_ranks_have_separate_cores(tmp_path: Path, forks: bool) -> None:
    first, second = cores_of_ranks(tmp_path, forks=forks)
    assert first
    assert second
    assert not first & second
    assert first | second <= set(usable_cores())
