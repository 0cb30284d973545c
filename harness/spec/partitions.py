"""What the cluster says of its partitions, and whether a profile fits them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.core.errors import did_you_mean
from harness.spec.slurm import SlurmOptions, time_limit

# Partition (a default one with *), limit, nodes, CPUs, MiB and GPUs of a node: man sinfo, --format. --exact keeps nodes
# that differ apart.
COMMAND = ["sinfo", "--all", "--noheader", "--exact", "--format=%P|%l|%D|%c|%m|%G"]
PATIENCE = 5.0  # seconds that Slurm has to answer
GPU = re.compile(r"gpu:(?:(?P<type>[^:(,]+):)?(?P<count>\d+)")


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """Nodes of a partition that are alike."""

    count: int
    cpus: int
    memory_mib: int
    gpus: Mapping[str, int]  # of each node, by type; "" where the cluster names none

    def resources(self, gpu_type: str | None) -> dict[str, int]:
        """What a node has of that which a profile's key asks for."""
        gpus = sum(self.gpus.values()) if gpu_type is None else self.gpus.get(gpu_type, 0)
        return {"cpus_per_rank": self.cpus, "gpus_per_rank": gpus, "memory": self.memory_mib}


@dataclass(frozen=True, kw_only=True)
class Partition:
    name: str
    default: bool
    time_limit_seconds: int | None  # the limit of a job; None: there is none
    nodes: Sequence[NodeGroup]


def query() -> list[Partition]:
    """The cluster's partitions; none where there is no Slurm or it does not answer."""
    try:
        done = subprocess.run(
            COMMAND, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return parse_sinfo(done.stdout) if done.returncode == 0 else []


def parse_sinfo(text: str) -> list[Partition]:
    """What sinfo answered; lines of another form, such as warnings, are passed over."""
    found: dict[str, Partition] = {}
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|")]
        if len(parts) != 6 or not parts[2].isdigit():
            continue
        name, limit, count, cpus, memory, gres = parts
        nodes = NodeGroup(
            count=int(count),
            cpus=int(cpus.rstrip("+")),
            memory_mib=int(memory.rstrip("+")),
            gpus={match["type"] or "": int(match["count"]) for match in GPU.finditer(gres)},
        )
        name, default = name.removesuffix("*"), name.endswith("*")
        seconds = time_limit(limit) if limit[:1].isdigit() else None
        before = found[name].nodes if name in found else ()
        found[name] = Partition(
            name=name, default=default, time_limit_seconds=seconds, nodes=[*before, nodes]
        )
    return list(found.values())


def find_mismatch(asked: SlurmOptions, partitions: Sequence[Partition]) -> tuple[str, str] | None:
    """The first key that the cluster can't satisfy, with what was found and what is allowed; None if all is well.

    Of several partitions, as in `gpu,long`, one is enough.
    """
    known = {partition.name: partition for partition in partitions}
    names = (
        asked.partition.split(",")
        if asked.partition
        else [one.name for one in partitions if one.default]
    )
    if not names:
        return "partition", f"found null, and the cluster has no default; {did_you_mean('', known)}"
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        return "partition", f"found {unknown!r}; {did_you_mean(unknown, known)}"
    found = [next(_misfits(asked, known[name]), None) for name in names]
    return found[0] if all(found) else None


def can_exclude_nodes(nodes: Sequence[str], asked: SlurmOptions) -> bool:
    """Whether a job like this can leave these nodes out, as far as the cluster says."""
    known = query()
    return not known or find_mismatch(replace(asked, nodes=asked.nodes + len(nodes)), known) is None


def _misfits(asked: SlurmOptions, partition: Partition) -> Iterator[tuple[str, str]]:
    where = f"partition {partition.name}"
    if (
        partition.time_limit_seconds is not None
        and asked.time_limit_seconds > partition.time_limit_seconds
    ):
        yield (
            "time",
            f"found {asked.time!r}, {asked.time_limit_seconds} s; allowed: at most {partition.time_limit_seconds} s in {where}",
        )
    types = {name for one in partition.nodes for name in one.gpus}
    if asked.gpu_type is not None and asked.gpu_type not in types:
        yield (
            "gpu_type",
            f"found {asked.gpu_type!r}; {did_you_mean(asked.gpu_type, types)} (GPUs in {where})",
        )
    fitting, ranks = list(partition.nodes), asked.ranks_per_node
    needs = {
        "cpus_per_rank": ranks * asked.cpus_per_rank,
        "gpus_per_rank": ranks * asked.gpus_per_rank,
        "memory": asked.memory_mib or 0,
    }
    for key, needed in needs.items():
        most = max((one.resources(asked.gpu_type)[key] for one in fitting), default=0)
        fitting = [one for one in fitting if one.resources(asked.gpu_type)[key] >= needed]
        if not fitting:
            allowed = (
                f"{most} MiB" if key == "memory" else f"{most} for the {ranks} ranks of a node"
            )
            yield key, f"found {getattr(asked, key)!r}; allowed: at most {allowed} in {where}"
            return
    count = sum(one.count for one in fitting)
    if asked.nodes > count:
        yield (
            "nodes",
            f"found {asked.nodes}; allowed: at most {count}, which have what is asked for in {where}",
        )
