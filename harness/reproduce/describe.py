"""Describes the environment that a rank would have, without training: `python -m` this module.

Instruction sets and threads are decided when torch is loaded, by variables that only a fresh
process has from its beginning. So the command that reproduces a trial does not describe itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from harness.core.errors import HarnessError, one_line
from harness.core.import_path import module_command
from harness.core.processes import end_process, run_command
from harness.launch.stack import ReadyStack
from harness.records.decode import FileFormat, decode_text
from harness.records.environment import Environment, describe_environment
from harness.spec.cell import Cell
from harness.training.entry import before_torch

TIMEOUT = 300.0  # seconds; a network file system may take long to load torch
DESCRIPTION_FORMAT = FileFormat(name="environment")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the process is to describe."""

    threads: int  # intra-op
    packages: Sequence[str]  # distributions, beside the usual ones
    axes: Sequence[str]  # variables that the cell sets
    read: Sequence[str]  # variables that the workload's code reads


def environment_of_ranks(
    variables: Mapping[str, str],
    cell: Cell,
    packages: Sequence[str],
    stack: ReadyStack | None = None,
) -> Environment:
    """Return the environment of a rank of a cell, in a process with these variables.

    It runs under `stack`, if there is one. `packages` are distributions whose versions are wanted
    beside the usual ones. Raises HarnessError if that process fails.
    """
    code = cell.workload.code
    wanted = Wanted(
        threads=cell.axes.num_threads,
        packages=list(packages),
        axes=list(cell.environment),
        read=list(code.variables) if code else [],
    )
    command = module_command(sys.executable, __name__)
    if stack is not None:
        command = stack.module_command(__name__)
    command.append(json.dumps(asdict(wanted)))
    done = run_command(
        command,
        timeout=TIMEOUT,
        variables=dict(variables),
        remedy="look what keeps torch from loading",
    )
    if done.returncode != 0:
        raise HarnessError(f"the environment can't be described: {one_line(done.stderr[-300:])}")
    return decode_text(Environment, done.stdout, "environment", DESCRIPTION_FORMAT)


def main() -> None:
    """Print the environment of this process as JSON, as far as the argument asks for it."""
    before_torch()
    import torch

    wanted = decode_text(Wanted, sys.argv[1], "argument", DESCRIPTION_FORMAT)
    torch.set_num_threads(wanted.threads)
    described = describe_environment(wanted.packages, axes=wanted.axes, read=wanted.read)
    print(json.dumps(asdict(described)))
    end_process(0)  # at once: to clear all that torch has loaded takes half a second


if __name__ == "__main__":
    main()
