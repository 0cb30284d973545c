"""Launchers: what starts the ranks of a trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from harness.core.paths import TrialFolder
from harness.core.processes import Process
from harness.records.record import Failure


def rank_variables(rank: int, world_size: int) -> dict[str, str]:
    """Return the variables that torchrun sets for a rank of a job on this node alone."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
    }


class Launcher(Protocol):
    """Builds commands purely, and starts them."""

    def command(
        self, module: str, folder: TrialFolder, ranks: int, more: Sequence[str] = ()
    ) -> list[str]:
        """What starts `module` at every rank, with `folder` and `more` as its arguments."""

    def variables(self, threads: int) -> dict[str, str]:
        """The environment of that command: `threads` are each rank's."""

    def start(self, arguments: Sequence[str], variables: Mapping[str, str], log: Path) -> Process:
        """Run such a command, with its output added to `log`, at the head of a process group."""

    def observed_failures(self, folder: TrialFolder, words: str) -> list[Failure]:
        """What the launcher alone knows of ranks that have ended: those that were killed, the first
        one first.

        `words` are what the command wrote.
        """
