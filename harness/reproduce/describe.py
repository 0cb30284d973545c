"""Describes the environment that a rank would have, without training: `python -m` this module.

Torch reads the variables for instruction sets and threads when it is loaded, so the environment is
described by a new process that starts with them, not by the command that reproduces a trial.
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
from harness.training.interruption import before_torch

TIMEOUT = 300.0  # seconds; a network file system may take long to load torch
DESCRIPTION_FORMAT = FileFormat(name="environment")


@dataclass(frozen=True, kw_only=True)
class DescriptionRequest:
    """The parts of the environment that the process has to describe."""

    threads: int  # intra-op
    packages: Sequence[str]  # distributions, in addition to the usual ones
    axes: Sequence[str]  # variables that the cell sets
    read: Sequence[str]  # variables that the workload's code reads


def environment_of_ranks(
    variables: Mapping[str, str],
    cell: Cell,
    packages: Sequence[str],
    stack: ReadyStack | None,
) -> Environment:
    """Return the environment of a rank of a cell, in a process with these variables.

    It runs under `stack`, if there is one. `packages` are distributions whose versions are needed
    in addition to the usual ones. Raises HarnessError if that process fails.
    """
    code = cell.workload.code
    request = DescriptionRequest(
        threads=cell.axes.num_threads,
        packages=list(packages),
        axes=list(cell.environment),
        read=list(code.variables) if code else [],
    )
    command = module_command(sys.executable, __name__)
    if stack is not None:
        command = stack.module_command(__name__)
    command.append(json.dumps(asdict(request)))
    done = run_command(
        command,
        timeout=TIMEOUT,
        variables=dict(variables),
        remedy="find out what keeps torch from loading",
    )
    if done.returncode != 0:
        raise HarnessError(f"the environment cannot be described: {one_line(done.stderr[-300:])}")
    return decode_text(Environment, done.stdout, "environment", DESCRIPTION_FORMAT)


def main() -> None:
    """Print the environment of this process as JSON, limited to what the argument asks for."""
    before_torch()
    import torch

    request = decode_text(DescriptionRequest, sys.argv[1], "argument", DESCRIPTION_FORMAT)
    torch.set_num_threads(request.threads)
    described = describe_environment(request.packages, axes=request.axes, read=request.read)
    print(json.dumps(asdict(described)))
    end_process(0)  # without unloading torch, which takes half a second


if __name__ == "__main__":
    main()
