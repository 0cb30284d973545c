"""Starts the ranks of an arm under a stack, as fresh processes.

Arms of two trees are forked from one forkserver, so both have the same memory layout of their
libraries. Arms of two stacks can't be. With a forkserver for each stack, one arm could keep a better
layout for the whole measurement. So every pair of such arms loads its libraries again.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL

from harness.core.processes import Process, parent_variables, signal_group, start_session
from harness.core.worktree import Tree
from harness.launch.abandoned import mark_variables
from harness.launch.forkserver import ForkRequest
from harness.launch.stack import ReadyStack, bound_command, harness_path

END_TIMEOUT = 60.0  # seconds that the kernel may take to end a process that was killed


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


def start_fresh(requests: Sequence[ForkRequest], tree: StackTree) -> list[Process]:
    """Start a process for each request, under the tree's stack.

    Each leads a process group, and ends when this process ends.
    """
    processes: list[Process] = []
    for request in requests:
        command = [*tree.stack.module_command(request.module), *request.arguments]
        bound = bound_command(command, request.cores)
        variables = {**tree.stack.variables(request.variables), **parent_variables()}
        variables.update(mark_variables(request.log))
        processes.append(start_session(bound, variables, Path(request.log), Path(request.folder)))
    return processes


def end_fresh(processes: Sequence[Process]) -> None:
    """Kill the process groups of these processes, stopped ones included, and wait."""
    for process in processes:
        signal_group(process.pid, SIGKILL)
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_TIMEOUT)
