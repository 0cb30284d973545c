"""Describes the environment that a rank would have, without training: `python -m` this module.

Instruction sets and threads are decided when torch is loaded, by variables that only a fresh
process has from its beginning. So the command that reproduces a trial does not describe itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict

from harness.core.errors import HarnessError, one_line
from harness.core.import_path import module_command
from harness.core.processes import run_command
from harness.records.decode import FileFormat, decode_text
from harness.records.environment import Environment, describe_environment

TIMEOUT = 300.0  # seconds; a network file system may take long to load torch
DESCRIPTION_FORMAT = FileFormat(name="environment")


def environment_of_ranks(variables: Mapping[str, str], threads: int) -> Environment:
    """Return the environment of a process with these variables and so many threads.

    Raises HarnessError if that process fails.
    """
    command = [*module_command(sys.executable, __name__), str(threads)]
    done: subprocess.CompletedProcess[str] = run_command(
        command,
        timeout=TIMEOUT,
        variables=dict(variables),
        remedy="look what keeps torch from loading",
    )
    if done.returncode != 0:
        raise HarnessError(f"the environment can't be described: {one_line(done.stderr[-300:])}")
    return decode_text(Environment, done.stdout, "environment", DESCRIPTION_FORMAT)


def main() -> None:
    """Print the environment of this process as JSON, with as many threads as the argument says."""
    import torch

    torch.set_num_threads(int(sys.argv[1]))
    print(json.dumps(asdict(describe_environment())))


if __name__ == "__main__":
    main()
