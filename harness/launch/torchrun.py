"""The local launcher: one fresh process group for each trial, through torchrun."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.paths import TrialFolder


def command(folder: TrialFolder, world_size: int) -> list[str]:
    """What starts the ranks of the trial in `folder`."""
    return [*module_command("harness.worker", folder, world_size), "--write-logs"]


def module_command(module: str, folder: TrialFolder, world_size: int) -> list[str]:
    """What starts `module` at every rank, with `folder` as its argument."""
    return [
        sys.executable, "-m", "harness.launch.agent", str(folder.failures),
        "--standalone", f"--nproc-per-node={world_size}", "-m", module, str(folder.path),
    ]  # fmt: skip


def environment(outer: Mapping[str, str], own: Mapping[str, str], threads: int) -> dict[str, str]:
    """The variables of the ranks: ours, the profile's, and the threads that the cell asks for."""
    return {**outer, **own, "OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}


def start(arguments: Sequence[str], variables: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start the ranks in a session of their own, with torchrun's words in `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            arguments,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
