"""How a rank begins: it checks what it was given, joins the other ranks and loads the workload.

Most libraries read an environment variable once, when they are loaded. So launchers start the process
that loads torch with the variables that the cell assigns: the rank itself, or the forkserver that it is
forked from.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from harness.core.errors import NotApplied
from harness.core.paths import TrialFolder
from harness.core.validation import decode_value
from harness.records.assignment import Assignment, read_assignment
from harness.records.environment import Environment, describe_environment
from harness.sweep.axes import PREFIX, Variables, section_of
from harness.sweep.files import (
    check_code,
    check_files,
    describe_dynamic_files,
    files_by_setting,
)
from harness.training.execution import prepare_environment
from harness.training.ranks import Ranks, choose_device, process_group
from workloads.base import Workload
from workloads.catalog import load_class

COLLECTIVE_TIMEOUT = 600.0  # seconds that a rank waits for the others


@contextmanager
def joined(
    folder: TrialFolder, ranks: Ranks, timeout: float = COLLECTIVE_TIMEOUT
) -> Iterator[tuple[Assignment, Workload, Ranks]]:
    """Read `trial.json`, join the other ranks as it says for as long as the block lasts, load the workload.

    `timeout` is how many seconds a rank waits for the others in a collective. Raises NotApplied if
    the environment is not the one that the cell asks for, and what `load_workload` raises.
    """
    assignment = prepare_rank(folder)
    axes = assignment.trial.cell.axes
    may_use_gpu = assignment.device != "cpu" and torch.cuda.is_available()
    prepare_environment(axes, on_gpu=may_use_gpu)  # before a library that reads it begins
    device = choose_device(assignment.device, ranks, assignment.lane.gpus)
    needed = axes.strategy != "single"
    offloads = axes.fsdp_cpu_offload
    with process_group(ranks, device, needed=needed, timeout=timeout, offloads=offloads):
        workload = load_workload(assignment)
        yield with_batch_size_of(workload, assignment), workload, replace(ranks, device=device)


def prepare_rank(folder: TrialFolder) -> Assignment:
    """Read `trial.json`, and give this process the cores and the threads that it says.

    Raises NotApplied if the environment is not the one that the cell asks for.
    """
    assignment = read_assignment(folder.assignment_path)
    cell = assignment.trial.cell
    check_variables(cell.environment)
    if assignment.lane.cores:
        os.sched_setaffinity(0, assignment.lane.cores)  # threads that start later inherit it
    torch.set_num_threads(cell.axes.num_threads)
    return assignment


def load_workload(assignment: Assignment) -> Workload:
    """Return the cell's workload with its settings: a built-in one, or a class of the user's.

    Raises CodeChanged if its code is not that of the cell, and DataChanged if its files are not.
    """
    reference = assignment.trial.cell.workload
    base_folder = Path(assignment.base_folder)
    workload_class = load_class(reference.uses, base_folder)
    check_code(reference, base_folder)
    data_settings = section_of(reference.settings, "data")
    options = decode_value(workload_class.Options, reference.options, refuse_unknown=True)
    data = decode_value(workload_class.Data, data_settings, refuse_unknown=True)
    if Ranks.from_environment().local_rank == 0:  # files that were touched are read whole
        check_files(reference, files_by_setting(options, data))
    return workload_class(options, data)


def with_batch_size_of(workload: Workload, assignment: Assignment) -> Assignment:
    """Return the assignment with the workload's own batch size, where no setting decides it.

    Only of a cell that may be trained by any code (`Cell.with_any_code`): other cells have been
    planned by this code, and what runs them again may have set another batch size.
    """
    cell = assignment.trial.cell
    if cell.workload.code is not None or "batch_size" not in cell.workload.unset:
        return assignment
    axes = replace(cell.axes, batch_size=workload.batch_size)
    trial = replace(assignment.trial, cell=replace(cell, axes=axes))
    return replace(assignment, trial=trial)


def check_variables(assigned: Variables) -> None:
    """Raise NotApplied unless this process has the variables of its cell, and torch obeys them.

    Of torch's own, ATEN_CPU_CAPABILITY is checked: torch takes a value that it does not know, or that the
    CPU has not, for none, with a warning at most.
    """
    for name, value in assigned.items():
        found = os.environ.get(name)
        if found != value:
            problem = f"was not passed on: found {found or 'unset'}"
            raise NotApplied(f"{PREFIX}{name}={value or 'unset'} {problem}")
    value = assigned.get("ATEN_CPU_CAPABILITY")
    capability = torch.backends.cpu.get_cpu_capability()
    if value is not None and value.upper() != capability:
        raise NotApplied(
            f"{PREFIX}ATEN_CPU_CAPABILITY={value} had no effect: torch uses {capability}"
        )


def environment_of(assignment: Assignment) -> Environment:
    """Return this process's environment, with the parts that only the launcher knows."""
    cell = assignment.trial.cell
    return replace(
        describe_environment(assignment.packages, axes=cell.environment),
        code=assignment.code,
        repository=assignment.repository,
        installed=assignment.installed,
        dynamic_files=describe_dynamic_files(cell.workload, Path(assignment.base_folder)),
    )
