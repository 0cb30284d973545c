"""Starts the ranks of an arm: forked, or under a stack, as fresh processes.

Arms of two trees are forked from one forkserver, so both have the same memory layout of their
libraries. Arms of two stacks can't be. With a forkserver for each stack, one arm could keep a better
layout for the whole measurement. So every pair of such arms loads its libraries again.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL

from harness.core.errors import BadInput
from harness.core.paths import TrialFolder
from harness.core.ports import free_port
from harness.core.processes import Process, parent_variables, signal_group, start_session
from harness.core.worktree import Tree
from harness.launch.abandoned import mark_variables
from harness.launch.forkserver import (
    END_TIMEOUT,
    TORCH,
    ForkRequest,
    ForkServer,
    Setup,
    kill_all,
    shared_server,
)
from harness.launch.launcher import rank_variables
from harness.launch.stack import ReadyStack, bound_command, harness_path
from harness.records.assignment import Assignment, write_assignment
from harness.spec.cell import Trial
from harness.spec.cluster import Profile


@dataclass(frozen=True, kw_only=True)
class StackTree(Tree):
    """The working files, run under a stack, with the harness of this process."""

    stack: ReadyStack

    @staticmethod
    def of(stack: ReadyStack, base: Path) -> StackTree:
        """Return the files at `base`, run under a stack."""
        return StackTree(name=f"stack {stack.name}", top=base, path=base, stack=stack)

    @property
    def python_path(self) -> str:
        """Return the PYTHONPATH of the stack's ranks."""
        return self.stack.python_path


def present_stack(name: str, packages: Mapping[str, str]) -> ReadyStack:
    """Return the interpreter of this process as a stack; `packages` are those that it has."""
    return ReadyStack(
        name=name,
        python=sys.executable,
        prefix=(),
        python_path=harness_path(),
        executable=sys.executable,
        packages=packages,
    )


def rank_requests(
    trial: Trial,
    tree: Tree,
    folder: TrialFolder,
    base: Path,
    profile: Profile,
    *,
    module: str,
    arguments: Sequence[str] = (),
    variables: Mapping[str, str],
    cores: Sequence[Sequence[int]] = (),
) -> list[ForkRequest]:
    """Write a trial's assignment into `folder`, and return a fork request for each of its ranks.

    The ranks run `module` with the folder and `arguments`, import from their own tree, with which
    their PYTHONPATH begins, and have their own port for their process group. `base` is the folder of
    the working tree that the trial's paths are relative to; `cores` are those of each rank. Raises
    BadInput for a cell of a stack whose tree has none.
    """
    if trial.cell.axes.stack is not None and not isinstance(tree, StackTree):
        raise BadInput(
            f"{trial.cell.label}: found a cell of the stack {trial.cell.axes.stack}; allowed: cells"
            " without a stack, or stacks as what is compared (--against-stack, --stacks)"
        )
    assignment = Assignment(
        trial=trial,
        base_folder=str(tree.counterpart(base)),
        device=profile.device,
        interpreter=tree.stack.executable if isinstance(tree, StackTree) else None,
    )
    write_assignment(folder.assignment_path, assignment)
    folder.log_folder.mkdir(exist_ok=True)
    common = {
        **variables,
        "PYTHONPATH": tree.python_path,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    requests = []
    world_size = trial.cell.axes.world_size
    for rank in range(world_size):
        request = ForkRequest(
            module=module,
            arguments=[str(folder.path), *arguments],
            variables={**common, **rank_variables(rank, world_size)},
            folder=str(tree.path),
            log=str(folder.launch_log),
            cores=cores[rank] if cores else (),
            packages=tree.own_packages,
        )
        requests.append(request)
    return requests


def server_of(
    trees: Iterable[Tree], variables: Mapping[str, str], profile: Profile
) -> ForkServer | None:
    """Return the forkserver of ranks with these variables, None if the trees have stacks."""
    if any(isinstance(tree, StackTree) for tree in trees):
        return None
    # Drivers and libraries of GPUs may start threads when they are loaded.
    return shared_server(variables, Setup(preload=TORCH, refuse_threads=not profile.gpus))


def start_ranks(
    server: ForkServer | None, requests: Sequence[tuple[Tree, ForkRequest]], stack: ExitStack
) -> list[Process]:
    """Start the ranks of trees in the order of the requests; closing `stack` kills them.

    They are forked from `server`; without one, each is a fresh process under its tree's stack, which
    leads a process group and ends when this process ends.
    """
    if server is not None:
        forked = server.fork([request for _, request in requests])
        stack.callback(kill_all, forked)
        return list(forked)
    processes: list[Process] = []
    for tree, request in requests:
        assert isinstance(tree, StackTree)
        command = [*tree.stack.module_command(request.module), *request.arguments]
        bound = bound_command(command, request.cores)
        variables = {**tree.stack.variables(request.variables), **parent_variables()}
        variables.update(mark_variables(request.log))
        process = start_session(bound, variables, Path(request.log), Path(request.folder))
        stack.callback(_end_fresh, process)
        processes.append(process)
    return processes


def _end_fresh(process: Process) -> None:
    """Kill the process group of a process, a stopped one included, and wait."""
    signal_group(process.pid, SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_TIMEOUT)
