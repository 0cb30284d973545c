"""The local launcher: the ranks of each trial are fresh processes of this machine, started by
torchrun or forked.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core.paths import TrialFolder
from harness.core.processes import Process, start_session
from harness.launch import forkserver
from harness.records.record import Failure
from harness.records.running import read_failed_ranks
from harness.training.interruption import SIGNAL


@dataclass(frozen=True, kw_only=True)
class Torchrun:
    """Of the caller's environment, with `environment` on top. `fork` has ranks forked instead: see
    `forked`.
    """

    environment: Mapping[str, str]
    fork: bool = False

    def command(
        self, module: str, folder: TrialFolder, ranks: int, more: Sequence[str] = ()
    ) -> list[str]:
        if self.fork:
            forked = [
                sys.executable,
                "-m",
                "harness.launch.forked",
                str(folder.failures_path),
                str(ranks),
            ]
            return [*forked, module, str(folder.path), *more]
        return [
            sys.executable, "-m", "harness.launch.agent", str(folder.failures_path),
            "--standalone", f"--nproc-per-node={ranks}", "-m", module, str(folder.path), *more,
        ]  # fmt: skip

    def variables(self, threads: int) -> dict[str, str]:
        return {
            **os.environ,
            **self.environment,
            "OMP_NUM_THREADS": str(threads),
            "PYTHONUNBUFFERED": "1",
        }

    def start(self, arguments: Sequence[str], variables: Mapping[str, str], log: Path) -> Process:
        return (forkserver.start_worker if self.fork else start_session)(arguments, variables, log)

    def observed_failures(self, folder: TrialFolder, words: str) -> list[Failure]:
        """SIGTERM is how torchrun itself ends the others of a rank that has failed."""
        failed_ranks = read_failed_ranks(folder.failures_path)
        return [
            _ended(failed.exitcode, rank, failed.at)
            for rank, failed in failed_ranks.items()
            if -failed.exitcode != signal.SIGTERM
        ]


def _ended(code: int, rank: int, at: float) -> Failure:
    if code > 0:
        return Failure(kind="Exited", message=f"with code {code}", rank=rank, at=at)
    kind = (
        "Interrupted" if -code == SIGNAL else "Killed"
    )  # the signal came before the rank held it back
    return Failure(kind=kind, message=f"ended by {signal.Signals(-code).name}", rank=rank, at=at)
