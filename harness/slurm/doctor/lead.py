"""What the tiny job does on its first node: every node reports, then all ranks sum up; it leaves FOLDER/report.json."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.core.errors import BadInput
from harness.core.paths import write_atomically
from harness.core.ports import node_address
from harness.records.restore import restore
from harness.slurm.doctor.node import Report
from harness.slurm.doctor.step import Reduced, clock, reduce, run
from harness.slurm.leader import launcher_of
from harness.spec.cluster import Profile

LABEL = re.compile(r"\s*(?P<task>\d+): (?P<text>.*)")  # of a line that srun passes on


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What the job has found."""

    nodes: Sequence[str]
    reports: Sequence[Report]
    silent: Mapping[str, str]  # node without a report -> the last that was heard from it
    reduced: Reduced | None = None  # None: not tried, as it can't work


def report_of(folder: Path) -> Path:
    return folder / "report.json"


def lead(folder: str, profile: Profile) -> None:
    """Called by submitit."""
    found = examine(Path(folder), profile)
    write_atomically(report_of(Path(folder)), json.dumps(asdict(found), indent=1) + "\n")


def read(folder: Path) -> Examination:
    return restore(Examination, json.loads(report_of(folder).read_text(encoding="utf-8")))


def examine(folder: Path, profile: Profile) -> Examination:
    """All nodes of this job, and all ranks that it holds."""
    slurm = profile.slurm
    listed = ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]]
    nodes = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    try:
        here, absent = node_address(slurm.interface), False
    except BadInput:
        here, absent = node_address(None), True  # the reports tell which interfaces there are
    python = [*slurm.prefix, slurm.python or sys.executable]
    with clock() as port:
        lines = run(step(folder, python, nodes, here, port), os.environ | profile.environment)
    reports, silent = understand(lines, nodes)
    found = Examination(nodes=nodes, reports=reports, silent=silent)
    if silent or absent or any(report.unreachable for report in reports):
        return found
    reduced = reduce(
        launcher_of(profile, slurm.ranks_per_node), folder, slurm.max_ranks, profile.device
    )
    return Examination(nodes=nodes, reports=reports, silent=silent, reduced=reduced)


def step(
    folder: Path, python: Sequence[str], nodes: Sequence[str], here: str, port: int
) -> list[str]:
    """A task on each node, which alone ends if it fails; its lines come back with its number."""
    count = len(nodes)
    return [
        "srun", "--export=ALL", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--mpi=none", "--label",
        "--kill-on-bad-exit=0", "--unbuffered", "--input=none",
        *python, "-m", "harness.slurm.doctor.node", str(folder), here, str(port), *nodes,
    ]  # fmt: skip


def understand(lines: Sequence[str], nodes: Sequence[str]) -> tuple[list[Report], dict[str, str]]:
    """Reports in the order of nodes, and of each node without one its last words, or else the last that name it."""
    reports: dict[str, Report] = {}
    own: dict[str, str] = {}
    about: dict[str, str] = {}
    for line in lines:
        if (found := LABEL.fullmatch(line)) and int(found["task"]) < len(nodes):
            try:
                report = restore(Report, json.loads(found["text"]))
                reports[report.node] = report
            except (ValueError, TypeError, KeyError):
                own[nodes[int(found["task"])]] = found["text"]
        else:
            about |= {name: line for name in nodes if re.search(rf"\b{re.escape(name)}\b", line)}
    silent = {
        name: own.get(name) or about.get(name) or "no word of it"
        for name in nodes
        if name not in reports
    }
    return [reports[name] for name in nodes if name in reports], silent
