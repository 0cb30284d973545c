"""Says how fast each node is, compared with the others that did the same work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from harness.statistics.estimate import Estimate, paired, unpaired
from harness.statistics.interval import exp

ALPHA = 0.05  # the chance that any node is named where all are alike
# A node that is slower by less is not named: nodes of one kind differ by about as much.
MIN_SLOWDOWN = 0.02

Blocks = Sequence[dict[str, float]]  # of each block, the log speed of each node that took part


@dataclass(frozen=True, kw_only=True)
class NodeSpeed:
    """The speed of a node as a ratio to that of the others, with its interval."""

    node: str
    ratio: float
    low: float  # the lower bound of the interval, which is corrected for the number of nodes
    high: float
    count: int  # blocks that it took part in
    kind: Literal["blocks", "windows"] = "blocks"  # what was counted

    @property
    def is_slow(self) -> bool:
        """Return whether the node is slower than the others by more than the interval."""
        return self.high < 1 and self.ratio < 1 - MIN_SLOWDOWN

    @property
    def description(self) -> str:
        """Return its speed, as in `31.2% slower (28.1 to 34.2%, 6 blocks)`.

        A node that need not be slower is not called so: `+0.4% (-1.2 to +2.0%, 6 blocks)`.
        """
        low, value, high = (100 * (ratio - 1) for ratio in (self.low, self.ratio, self.high))
        if self.is_slow:
            speed, bounds = f"{-value:.1f}% slower", f"{-high:.1f} to {-low:.1f}%"
        else:
            speed, bounds = f"{value:+.1f}%", f"{low:+.1f} to {high:+.1f}%"
        return f"{speed} ({bounds}, {self.count} {self.kind})"


def node_speeds(blocks: Blocks, kind: Literal["blocks", "windows"] = "blocks") -> list[NodeSpeed]:
    """Return the speed of each node, the slowest first.

    In a block with several nodes, a node is compared with the median of the others, so that what
    slows all of them down at that time cancels out: blocks are pairs. A node that never shared a
    block is compared with the blocks of the other nodes, by Welch's interval. The intervals of all
    nodes hold together (Bonferroni). A node with fewer than two blocks has no interval, and is left
    out.
    """
    nodes = sorted({node for block in blocks for node in block})
    speeds = []
    for node in nodes:
        estimate = _estimate(node, blocks)
        if estimate is None or estimate.standard_error is None:
            continue
        low, high = estimate.interval(1 - ALPHA / len(nodes))
        speeds.append(
            NodeSpeed(
                node=node,
                ratio=exp(estimate.value),
                low=exp(low),
                high=exp(high),
                count=sum(node in block for block in blocks),
                kind=kind,
            )
        )
    return sorted(speeds, key=lambda speed: speed.ratio)


def _estimate(node: str, blocks: Blocks) -> Estimate | None:
    """Return the difference of the node's log speed from that of the others, None without others."""
    differences = []
    alone: list[float] = []  # values of the node's blocks
    others: list[float] = []  # and of the blocks without it
    for block in blocks:
        rest = [value for name, value in block.items() if name != node]
        if node not in block:
            others.append(fmean(rest))
        elif rest:
            differences.append(block[node] - median(rest))
        else:
            alone.append(block[node])
    if differences:
        return paired(differences)
    if alone and others:
        return unpaired(others, alone)
    return None
