"""The cluster's partitions, as sinfo lists them, and whether a profile fits them.

sbatch accepts some jobs that no node can ever run and leaves them pending forever. So a profile is
checked against the partitions before anything is submitted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from harness.core.errors import HarnessError, did_you_mean
from harness.core.processes import run_command
from harness.core.slurm_environment import client_variables
from harness.spec.slurm import SlurmOptions, time_limit

# Partition (the default one with *), limit, nodes, CPUs, MiB and GPUs of a node: man sinfo,
# --format. Without --exact, sinfo puts nodes that differ into one line, with the least of each as
# in `8+`.
COMMAND = ["sinfo", "--all", "--noheader", "--exact", "--format=%P|%l|%D|%c|%m|%G"]
TIMEOUT = 5.0  # seconds that Slurm has to answer
# One entry of %G, such as gpu:2, gpu:a100:4 or gpu:a100:4(S:0-1); several are joined by commas.
GPU = re.compile(r"gpu:(?:(?P<type>[^:(,]+):)?(?P<count>\d{1,9})", re.ASCII)
COUNT = re.compile(r"\d{1,15}[+]?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """Nodes of a partition that are alike."""

    count: int  # of nodes, whatever state they are in
    cpus: int  # of each node
    memory_mib: int  # of each node
    gpus: Mapping[str, int]  # of each node, by type; "" where the cluster names none

    def resources(self, gpu_type: str | None) -> dict[str, int]:
        """Return what a node has, by the key of a profile that asks for it.

        Memory is in MiB. GPUs are those of `gpu_type`, or all if that is None.
        """
        gpus = sum(self.gpus.values())
        if gpu_type is not None:
            gpus = self.gpus.get(gpu_type, 0)
        return {"cpus_per_rank": self.cpus, "gpus_per_rank": gpus, "memory": self.memory_mib}


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A partition of the cluster, as sinfo lists it."""

    name: str
    default: bool  # whether jobs that name no partition go there
    time_limit_seconds: int | None  # of a job; None where there is no limit
    nodes: Sequence[NodeGroup]  # one line of sinfo each


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """A key of a profile that a partition can't satisfy."""

    key: str  # of the section `slurm`
    problem: str  # `found …; allowed: …`


def query() -> list[Partition]:
    """Return the cluster's partitions, none where there is no Slurm or where it does not answer."""
    try:
        # Variables such as SINFO_PARTITION hide partitions.
        completed = run_command(COMMAND, timeout=TIMEOUT, variables=client_variables())
    except (OSError, HarnessError):
        return []
    return parse_sinfo(completed.stdout) if completed.returncode == 0 else []


def parse_sinfo(text: str) -> list[Partition]:
    """Return the partitions in sinfo's answer to COMMAND, each with all its groups of nodes.

    Lines of another form, such as warnings, are skipped.
    """
    partitions: dict[str, Partition] = {}
    for line in text.splitlines():
        columns = [column.strip() for column in line.split("|")]
        if len(columns) != 6 or not all(map(COUNT.fullmatch, columns[2:5])):
            continue
        # %G is "gres" in Slurm's words: generic resources, of which GPUs are one.
        marked_name, limit, count, cpus, memory, gres = columns
        name = marked_name.removesuffix("*")
        nodes = NodeGroup(
            count=int(count),
            cpus=int(cpus.rstrip("+")),
            memory_mib=int(memory.rstrip("+")),
            gpus={match["type"] or "": int(match["count"]) for match in GPU.finditer(gres)},
        )
        groups = [nodes]
        if name in partitions:
            groups = [*partitions[name].nodes, nodes]
        limit_seconds = None  # for `infinite` and `n/a`
        with suppress(ValueError):
            limit_seconds = time_limit(limit)
        partitions[name] = Partition(
            name=name,
            default=marked_name.endswith("*"),
            time_limit_seconds=limit_seconds,
            nodes=groups,
        )
    return list(partitions.values())


def find_mismatch(options: SlurmOptions, partitions: Sequence[Partition]) -> Mismatch | None:
    """Return the first key of a profile that the cluster can't satisfy, None if it can satisfy all.

    Of several partitions, as in `gpu,long`, one that fits is enough: Slurm takes any of them. If
    none fits, the mismatch is that of the first. A profile without a partition gets the default.
    """
    by_name = {partition.name: partition for partition in partitions}
    if options.partition:
        names = options.partition.split(",")
    else:
        names = [partition.name for partition in partitions if partition.default]
    if not names:
        hint = did_you_mean("", by_name)
        return Mismatch(
            key="partition", problem=f"found null, and the cluster has no default; {hint}"
        )
    for name in names:
        if name not in by_name:
            problem = f"found {name!r}; {did_you_mean(name, by_name)}"
            return Mismatch(key="partition", problem=problem)
    mismatches = []
    for name in names:
        partition = by_name[name]
        mismatch = (
            _check_time(options, partition)
            or _check_gpu_type(options, partition)
            or _check_nodes(options, partition)
        )
        if mismatch is None:
            return None
        mismatches.append(mismatch)
    return mismatches[0]


def _check_time(options: SlurmOptions, partition: Partition) -> Mismatch | None:
    """Check that the time limit of a job is at most that of the partition."""
    limit, seconds = partition.time_limit_seconds, options.time_limit_seconds
    if limit is None or seconds <= limit:
        return None
    problem = (
        f"found {options.time!r}, {seconds} s; allowed: at most {limit} s"
        f" in partition {partition.name}"
    )
    return Mismatch(key="time", problem=problem)


def _check_gpu_type(options: SlurmOptions, partition: Partition) -> Mismatch | None:
    """Check that the type of GPU exists in the partition."""
    types: set[str] = set()
    for group in partition.nodes:
        types.update(group.gpus)
    if options.gpu_type is None or options.gpu_type in types:
        return None
    hint = did_you_mean(options.gpu_type, types)
    problem = f"found {options.gpu_type!r}; {hint} (GPUs in partition {partition.name})"
    return Mismatch(key="gpu_type", problem=problem)


def _check_nodes(options: SlurmOptions, partition: Partition) -> Mismatch | None:
    """Check that enough nodes have the CPUs, the GPUs and the memory that the ranks of a node need.

    The keys narrow the nodes down one after the other, so that a node counts only if it has all.
    The mismatch is that of the key that leaves no node, with the most that the nodes before it
    have.
    """
    ranks = options.ranks_per_node
    needs = {
        "cpus_per_rank": ranks * options.cpus_per_rank,
        "gpus_per_rank": ranks * options.gpus_per_rank,
        "memory": options.memory_mib or 0,
    }
    fitting = list(partition.nodes)
    for key, needed in needs.items():
        available = [group.resources(options.gpu_type)[key] for group in fitting]
        fitting = [group for group in fitting if group.resources(options.gpu_type)[key] >= needed]
        if fitting:
            continue
        most = max(available, default=0)
        allowed = f"{most} for the {ranks} ranks of a node"
        if key == "memory":
            allowed = f"{most} MiB"
        problem = (
            f"found {getattr(options, key)!r}; allowed: at most {allowed}"
            f" in partition {partition.name}"
        )
        return Mismatch(key=key, problem=problem)
    count = sum(group.count for group in fitting)
    if options.nodes <= count:
        return None
    problem = (
        f"found {options.nodes}; allowed: at most {count}, which have what is asked for"
        f" in partition {partition.name}"
    )
    return Mismatch(key="nodes", problem=problem)
