"""Keeps what was measured of nodes, and says which of them no job should get.

`harness doctor --measure` writes the file `nodes.json` in the results folder; a submission with
`exclude: auto` reads it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.core.paths import write_atomically
from harness.records.decode import FileFormat, decode_file
from harness.records.seal import sealed_text
from harness.statistics.nodes import NodeSpeed

SCHEMA = "2.0"
FINDINGS_FORMAT = FileFormat(
    name="file of measured nodes",
    schema=SCHEMA,
    remedy="delete it, and harness doctor --measure measures them again",
    is_sealed=True,
)


@dataclass(frozen=True, kw_only=True)
class NodeFinding:
    """What was measured of one node."""

    node: str  # name
    measured_at: float  # seconds since the epoch
    speed: NodeSpeed | None  # None where there was no other node to compare it with
    # That it computes other bits than the majority, and which; None: the same.
    other_bits: str | None


@dataclass(frozen=True, kw_only=True)
class NodeFindings:
    """The content of `nodes.json`."""

    schema: str = SCHEMA
    nodes: Sequence[NodeFinding]


def read_findings(path: Path) -> list[NodeFinding]:
    """Return what was measured of nodes, nothing without the file; raises BadInput for another one."""
    if not path.exists():
        return []
    return list(decode_file(NodeFindings, path, FINDINGS_FORMAT).nodes)


def keep_findings(path: Path, findings: Sequence[NodeFinding]) -> None:
    """Add what was measured of nodes to the file; it replaces what was measured of them before."""
    by_node = {finding.node: finding for finding in [*read_findings(path), *findings]}
    ordered = [by_node[node] for node in sorted(by_node)]
    write_atomically(path, sealed_text(asdict(NodeFindings(nodes=ordered))))


def reasons_to_exclude(
    findings: Iterable[NodeFinding], by_trials: Iterable[NodeSpeed]
) -> Mapping[str, str]:
    """Return why jobs should not get a node, by its name, the worst first.

    Nodes that compute other bits come before slow ones, by measurement or by recorded trials.
    """
    wrong: dict[str, str] = {}
    slow: dict[str, tuple[float, str]] = {}
    for finding in findings:
        measured = time.strftime("measured on %Y-%m-%d", time.localtime(finding.measured_at))
        if finding.other_bits is not None:
            wrong[finding.node] = f"{finding.other_bits}, {measured}"
        if finding.speed is not None and finding.speed.is_slow:
            reason = f"{finding.speed.description}, {measured}"
            slow[finding.node] = (finding.speed.ratio, reason)
    for speed in by_trials:
        if speed.is_slow:
            slow.setdefault(speed.node, (speed.ratio, f"{speed.description} of this sweep"))
    slowest_first = sorted(slow, key=lambda node: slow[node][0])
    return wrong | {node: slow[node][1] for node in slowest_first if node not in wrong}
