"""What the doctor's job does with its nodes.

Every node reports about itself, as a task of one step, and then all ranks sum up, as another. With
`measure`, they measure their nodes in a third. The job's batch script runs
`python -m harness.slurm.doctor.allocation FOLDER [measure]`, which takes the profile from
FOLDER/profile.json and leaves what it has seen in FOLDER/report.json. The reports come back as
output of the step, not by files, because the nodes may not share the folder.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from harness.core.errors import BadInput
from harness.core.paths import write_atomically
from harness.core.ports import node_address
from harness.core.private import FILE_MODE, refuse_foreign
from harness.core.processes import output_lines, run_command
from harness.core.slurm_environment import client_variables
from harness.records.decode import FileFormat, decode_file, decode_text
from harness.slurm.doctor.all_reduce import AllReduce, all_reduce
from harness.slurm.doctor.clock import serve_clock
from harness.slurm.doctor.measurement import NodeMeasurement, measure_nodes
from harness.slurm.doctor.node import NodeReport
from harness.slurm.leader import launcher_of
from harness.spec.cluster import Profile

MEASURE = "measure"  # the argument that asks for it
STEP_SECONDS = 120.0  # that the reports may take
LABELED_LINE = re.compile(r"\s*(?P<task>\d+): (?P<text>.*)")  # as srun prints it with --label

PROFILE_FORMAT = FileFormat(name="profile of a doctor's job")
EXAMINATION_FORMAT = FileFormat(name="report of a doctor's job")
NODE_REPORT_FORMAT = FileFormat(name="report of a node")


@dataclass(frozen=True, kw_only=True)
class Examination:
    """Everything that the job has seen."""

    nodes: Sequence[str]  # names, in Slurm's order
    reports: Sequence[NodeReport]  # of the nodes that reported, in the same order
    silent_nodes: Mapping[str, str]  # node without a report -> the last line that it wrote
    all_reduce: AllReduce | None = None  # None: not tried, because it can't work
    # Why nodes could not be measured, if that is text; None: not tried.
    measurement: NodeMeasurement | str | None = None


def report_path(folder: Path) -> Path:
    """Return where the job leaves what it has seen."""
    return folder / "report.json"


def profile_path(folder: Path) -> Path:
    """Return where the job gets the profile from."""
    return folder / "profile.json"


def write_profile(folder: Path, profile: Profile) -> None:
    """Leave the profile for the job; nobody else may read the variables in it."""
    content = json.dumps(asdict(profile), default=str)
    write_atomically(profile_path(folder), content, mode=FILE_MODE)


def lead(folder: Path, *, measure: bool) -> None:
    """Examine the nodes of this job and leave the result in `folder`, which should be shared."""
    for path in (folder, profile_path(folder)):  # nobody else may say what this job runs
        refuse_foreign(path)
    profile = decode_file(Profile, profile_path(folder), PROFILE_FORMAT)
    examination = examine_nodes(folder, profile, measure=measure)
    content = json.dumps(asdict(examination), indent=1) + "\n"
    write_atomically(report_path(folder), content)


def read_examination(folder: Path) -> Examination:
    """Read what the job has left."""
    return decode_file(Examination, report_path(folder), EXAMINATION_FORMAT)


def examine_nodes(folder: Path, profile: Profile, *, measure: bool) -> Examination:
    """Examine all nodes of this job, and an all-reduce over all its ranks; `measure` them if so asked.

    What takes all ranks is not tried if the reports show that it can't work. The first node's clock is
    served at the same time, which shows the others whether they reach it.
    """
    slurm = profile.slurm
    show_nodes = ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]]
    shown = run_command(show_nodes, timeout=STEP_SECONDS)
    shown.check_returncode()
    nodes = shown.stdout.split()
    lacks_interface = False
    try:
        address = node_address(slurm.interface)
    except BadInput:
        # The reports say which interfaces there are, so they are wanted all the same.
        lacks_interface = True
        address = node_address(None)
    python = [*slurm.prefix, slurm.python or sys.executable]
    with serve_clock() as port:
        command = report_command(folder, python, nodes, address, port)
        lines = output_lines(command, client_variables() | profile.environment, STEP_SECONDS)
    reports, silent_nodes = parse_reports(lines, nodes)
    examination = Examination(nodes=nodes, reports=reports, silent_nodes=silent_nodes)
    is_unreachable = any(report.unreachable for report in reports)
    if silent_nodes or lacks_interface or is_unreachable:
        return examination
    launcher = launcher_of(profile, slurm.ranks_per_node)
    # The line of the rank that has failed says all, and the others would wait for it.
    launcher = replace(launcher, kill_on_bad_exit=True)
    result = all_reduce(launcher, folder, slurm.max_ranks, profile.device)
    examination = replace(examination, all_reduce=result)
    if not measure or result.failure:
        return examination
    measurement = measure_nodes(
        launcher, folder, slurm.max_ranks, profile.device, slurm.cpus_per_rank
    )
    return replace(examination, measurement=measurement)


def report_command(
    folder: Path, python: Sequence[str], nodes: Sequence[str], address: str, port: int
) -> list[str]:
    """Return the step that runs `harness.slurm.doctor.node` on each node.

    A task that fails does not end the others, and srun puts the number of the task before each line
    that it writes.
    """
    count = len(nodes)
    return [
        "srun", "--export=ALL", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1",
        "--mpi=none", "--label", "--kill-on-bad-exit=0", "--unbuffered", "--input=none",
        *python, "-P", "-m", "harness.slurm.doctor.node", str(folder), address, str(port), *nodes,
    ]  # fmt: skip


def parse_reports(
    lines: Sequence[str], nodes: Sequence[str]
) -> tuple[list[NodeReport], dict[str, str]]:
    """Return the reports, and for each node without one the line that says most about it.

    The reports are in the order of `nodes`, which is that of the tasks. The line is the last one
    that the node's task wrote, or else the last one of srun that names the node.
    """
    reports: dict[str, NodeReport] = {}
    last_written: dict[str, str] = {}
    last_mention: dict[str, str] = {}
    for line in lines:
        labeled = LABELED_LINE.fullmatch(line)
        if labeled is None or int(labeled["task"]) >= len(nodes):
            for name in nodes:
                if re.search(rf"\b{re.escape(name)}\b", line):  # n2 is not in `n22`
                    last_mention[name] = line
            continue
        try:
            report = decode_text(NodeReport, labeled["text"], "a node", NODE_REPORT_FORMAT)
            reports[report.node] = report
        except BadInput:  # no report, or that of another version of the harness
            last_written[nodes[int(labeled["task"])]] = labeled["text"]
    silent_nodes = {}
    for name in nodes:
        if name not in reports:
            mention = last_mention.get(name, "it wrote nothing")
            silent_nodes[name] = last_written.get(name, mention)
    return [reports[name] for name in nodes if name in reports], silent_nodes


if __name__ == "__main__":
    lead(Path(sys.argv[1]), measure=sys.argv[2:] == [MEASURE])
