"""Real ranks of two sides, as the forkserver starts them."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import psutil
import pytest

from harness.gate.arms import PairStarter
from harness.gate.worktree import Tree
from harness.spec.cluster import Profile
from harness.spec.sweep import load_sweep
from tests.support.running import line_sweep

pytestmark = pytest.mark.distributed


def test_each_rank_shares_its_cores_with_its_like_of_the_other_side_alone(tmp_path: Path) -> None:
    sweep = load_sweep(
        line_sweep(tmp_path, {"line": {"axes": {"strategy": "ddp", "world_size": 2}}})
    )
    tree = Tree(name="here", top=tmp_path, path=tmp_path)
    usable = os.sched_getaffinity(0)
    with PairStarter(
        sweep.cells[0], 0, {"a": tree, "b": tree}, sweep.base_folder, Profile(device="cpu")
    ) as starter:
        for order in ("ab", "ba"):
            with starter.pair(order):
                ranks = psutil.Process(starter.server.process.pid).children()
                cores = Counter(tuple(rank.cpu_affinity()) for rank in ranks)
            assert sorted(cores.values()) == ([2, 2] if len(usable) > 1 else [4])
            assert usable.issuperset(core for shared in cores for core in shared)
            assert len(usable) < 2 or len({core for shared in cores for core in shared}) == sum(
                map(len, cores)
            )
