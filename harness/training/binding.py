"""Binds a rank to cores as the axis `binding` says, and proves that it has stayed on them.

The values are those of `torchrun --numa-binding`, which can bind ranks of one launcher to cores near
their GPUs. Here each rank binds itself, whatever has started it, on a machine without GPUs too: there
the ranks of a machine are spread evenly over its NUMA nodes, in their order. Only cores that the rank
may use count, such as those of its lane. Threads and loader workers inherit them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

import torch

from harness.core.cores import usable_cores
from harness.core.errors import NotApplied
from harness.core.slurm_environment import has_separate_cores, tasks_per_node
from harness.core.topology import Topology, format_cores, memory_by_node
from harness.records.assignment import Assignment
from harness.records.record import CoreBinding
from harness.training.ranks import THREADS, Ranks, bind_to_cores, visible_gpus


def bind_rank(assignment: Assignment, ranks: Ranks, device: torch.device) -> None:
    """Bind this process to the cores that its cell asks for; raises NotApplied if that fails."""
    binding = assignment.trial.cell.axes.binding
    if binding == "none":
        return
    cores = rank_cores(assignment, ranks, device, Topology())
    try:
        bind_to_cores(sorted(cores))
    except OSError as error:
        raise NotApplied(
            f"binding={binding} had no effect: cores {format_cores(cores)}: {error.strerror}"
        ) from None
    check_threads(binding, cores)


def account_binding(
    assignment: Assignment, ranks: Ranks, device: torch.device
) -> CoreBinding | None:
    """Return where this rank runs, None if its cell asks for no binding.

    Raises NotApplied if it runs elsewhere than it was bound to.
    """
    binding = assignment.trial.cell.axes.binding
    if binding == "none":
        return None
    topology = Topology()
    cores = rank_cores(assignment, ranks, device, topology)
    check_threads(binding, cores)
    memory = {str(node): size for node, size in sorted(memory_by_node().items())}
    numa_nodes = list(topology.nodes(cores))
    return CoreBinding(cores=sorted(cores), numa_nodes=numa_nodes, memory=memory)


def check_threads(binding: str, cores: Collection[int]) -> None:
    """Raise NotApplied unless this thread may use these cores, and no thread any other one."""
    threads = [os.sched_getaffinity(0)]
    for thread in THREADS.iterdir():
        with suppress(ProcessLookupError):  # it has just ended
            threads.append(os.sched_getaffinity(int(thread.name)))
    for used in threads:
        if not used <= set(cores) or threads[0] != set(cores):
            raise NotApplied(
                f"binding={binding} had no effect: it asks for cores {format_cores(cores)}, and the"
                f" rank runs on {format_cores(used)}"
            )


def rank_cores(
    assignment: Assignment, ranks: Ranks, device: torch.device, topology: Topology
) -> set[int]:
    """Return the cores that this rank's cell asks for; raises NotApplied.

    Ranks of a machine share the cores of their lane, but those that Slurm has given separate cores,
    which are not divided again.
    """
    allowed = assignment.lane.cores or usable_cores()
    local_rank, count = ranks.local_rank, ranks.local_world_size or ranks.world_size
    if ranks.may_be_bound:
        count = tasks_per_node() or count
        if has_separate_cores():
            local_rank, count = 0, 1
    if device.type == "cuda":
        gpus = [device.index] * count  # as far as a rank knows that sees no other GPU
        visible = visible_gpus(assignment.lane.gpus)
        if count > 1 and len(visible) >= count:
            gpus = list(visible[:count])
        nodes_of_ranks = []
        for gpu in gpus:
            # Torch's stubs lack some of the properties.
            properties: Any = torch.cuda.get_device_properties(gpu)
            bus, pci_device = properties.pci_bus_id, properties.pci_device_id
            address = f"{properties.pci_domain_id:04x}:{bus:02x}:{pci_device:02x}.0"
            nodes_of_ranks.append(topology.node_of_pci_device(address))
    else:
        nodes = list(topology.nodes(allowed))
        nodes_of_ranks = [nodes[rank * len(nodes) // count] for rank in range(count)]
    binding = assignment.trial.cell.axes.binding
    return cores_of_rank(binding, allowed, nodes_of_ranks, local_rank, topology)


def cores_of_rank(
    binding: str,
    allowed: Collection[int],
    nodes_of_ranks: Sequence[int],
    local_rank: int,
    topology: Topology,
) -> set[int]:
    """Return the cores of one of the ranks that share the cores `allowed`.

    `nodes_of_ranks` are the NUMA nodes of all of them. Raises NotApplied if its node has no such
    core, or too few for `exclusive`.
    """
    nodes = topology.nodes(allowed)
    node = nodes_of_ranks[local_rank]
    if node not in nodes:
        raise NotApplied(
            f"binding={binding} had no effect: the rank's device is on NUMA node {node}, and the rank"
            f" may use cores {format_cores(allowed)}, none of which is there"
        )
    cores = nodes[node]
    if binding == "socket":
        socket = topology.socket(min(cores))
        of_socket = [
            of_node for of_node in nodes.values() if topology.socket(min(of_node)) == socket
        ]
        return set().union(*of_socket)
    neighbors = [rank for rank, other in enumerate(nodes_of_ranks) if other == node]
    position = neighbors.index(local_rank)
    if binding == "exclusive":
        physical_cores = _grouped(cores, topology.physical_core)
        if len(physical_cores) < len(neighbors):
            raise NotApplied(
                f"binding=exclusive had no effect: NUMA node {node} has {len(physical_cores)} physical"
                f" cores that may be used, for {len(neighbors)} ranks"
            )
        return set().union(*_share(physical_cores, position, len(neighbors)))
    if binding == "core-complex":
        complexes = sorted(_grouped(cores, topology.core_complex), key=lambda group: -len(group))
        return complexes[position % len(complexes)]
    return cores


def _grouped(cores: Collection[int], key: Callable[[int], int]) -> list[set[int]]:
    """Return cores in groups of those with the same key, the lowest key first."""
    ordered = sorted(cores, key=key)
    return [set(group) for _, group in groupby(ordered, key)]


def _share(groups: Sequence[set[int]], position: int, count: int) -> Sequence[set[int]]:
    """Return one of `count` shares of groups; the first shares have one more if need be."""
    size, rest = divmod(len(groups), count)
    start = position * size + min(position, rest)
    return groups[start : start + size + (position < rest)]
