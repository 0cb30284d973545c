"""How fast nodes are, compared with each other: planted differences are found, and no others."""

from __future__ import annotations

import math

import numpy as np

from harness.statistics.nodes import node_speeds

NODES = ("n1", "n2", "n3", "n4")


def shared_blocks(count: int, slow: float, seed: int = 0) -> list[dict[str, float]]:
    """Return blocks of all nodes, with a drift that they share and noise of 1% of each; n2 is slow."""
    rng = np.random.default_rng(seed)
    blocks = []
    for _ in range(count):
        drift = rng.normal(0, 0.3)
        block = {node: drift + rng.normal(0, 0.01) for node in NODES}
        block["n2"] += math.log(1 - slow)
        blocks.append(block)
    return blocks


def test_blocks_are_pairs_so_that_a_drift_of_all_nodes_hides_nothing() -> None:
    slowest, *others = node_speeds(shared_blocks(8, slow=0.2))
    assert (slowest.node, slowest.is_slow, slowest.count) == ("n2", True, 8)
    assert slowest.low < 0.8 < slowest.high < 0.85
    assert [speed.is_slow for speed in others] == [False] * 3


def test_nodes_that_never_shared_a_block_are_compared_by_their_blocks() -> None:
    rng = np.random.default_rng(1)
    blocks = []
    for number in range(24):
        node = NODES[number % 4]
        slowdown = math.log(0.7) if node == "n2" else 0.0
        blocks.append({node: rng.normal(0, 0.02) + slowdown})
    slowest, *others = node_speeds(blocks)
    assert (slowest.node, slowest.is_slow, slowest.count) == ("n2", True, 6)
    assert slowest.low < 0.7 < slowest.high
    assert not any(speed.is_slow for speed in others)


def test_alike_nodes_are_named_in_one_sweep_of_twenty_at_most() -> None:
    named = 0
    for seed in range(300):
        named += any(speed.high < 1 for speed in node_speeds(shared_blocks(6, slow=0, seed=seed)))
    assert named / 300 < 0.05, "two bounds of an interval, and only one of them names a node"


def test_a_difference_that_does_not_matter_names_no_node() -> None:
    (slowest, *_) = node_speeds(shared_blocks(500, slow=0.01))
    assert (slowest.node, slowest.high < 1, slowest.is_slow) == ("n2", True, False)


def test_without_two_blocks_or_another_node_there_is_no_interval() -> None:
    assert node_speeds([]) == []
    assert node_speeds([{"n1": 1.0}, {"n1": 2.0}]) == []
    assert node_speeds([{"n1": 1.0, "n2": 2.0}]) == []


def test_descriptions_call_slow_what_is_slow() -> None:
    slowest, *others = node_speeds(shared_blocks(8, slow=0.2))
    assert slowest.description.startswith("20.")
    assert "% slower (" in slowest.description
    assert slowest.description.endswith("%, 8 blocks)")
    assert "slower" not in others[0].description
