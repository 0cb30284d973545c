"""Runs torchrun and writes down which ranks failed, which torchrun alone knows.

`python -m harness.launch.agent FAILURES TORCHRUN_ARGUMENT…`
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from harness.core.processes import ending_descendants, parent_variables
from harness.training.progress import before_torch

if __name__ == "__main__":
    # Ranks inherit that the signal waits, so it can't end them before they look for it themselves.
    before_torch()

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.run import main as torchrun

from harness.core.ports import LOOPBACK, listen
from harness.core.processes import oom_kills
from harness.launch.launcher import RENDEZVOUS, write_failed_ranks
from harness.records.assignment import FailedRank

TIMEOUT = 600  # seconds that an operation of the store may take


class LoopbackRendezvous(StaticTCPRendezvous):
    """How torchrun finds itself, as there is no other node: through a store on loopback alone.

    Torchrun's own listens on all interfaces, and whoever reaches a store may read and write it.
    """

    def get_backend(self) -> str:
        """Return the name that this is registered by."""
        return RENDEZVOUS

    def next_rendezvous(self) -> RendezvousInfo:
        """Return the store, which the ranks use as well."""
        listening = listen(LOOPBACK, 0)
        port = listening.getsockname()[1]
        # Kept, because the store ends with the object.
        self._store = TCPStore(
            LOOPBACK,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=self.timeout,
            master_listen_fd=listening.detach(),
        )
        addresses = RendezvousStoreInfo(LOOPBACK, port)
        return RendezvousInfo(PrefixStore(self.run_id, self._store), 0, 1, addresses)


def make_rendezvous(parameters: RendezvousParameters) -> RendezvousHandler:
    """Return the rendezvous of a torchrun that has this node alone."""
    return LoopbackRendezvous(LOOPBACK, 0, 0, 1, parameters.run_id, TIMEOUT)


def main() -> None:
    """End with torchrun's exit code; write how the failed ranks ended to FAILURES.

    Ranks end with this process, also by SIGKILL, and so does all that they have started.
    """
    failures_path, *arguments = sys.argv[1:]
    os.environ.update(parent_variables())
    kills_before = oom_kills()
    try:
        rendezvous_handler_registry.register(RENDEZVOUS, make_rendezvous)
        with ending_descendants():
            torchrun(arguments)
    except ChildFailedError as error:
        is_out_of_memory = oom_kills() > kills_before
        failed_ranks = {}
        for rank, failure in error.failures.items():
            failed_ranks[rank] = FailedRank(
                exitcode=failure.exitcode,
                at=failure.timestamp,
                out_of_memory=failure.exitcode == -signal.SIGKILL and is_out_of_memory,
            )
        write_failed_ranks(Path(failures_path), failed_ranks)
        sys.exit(1)


if __name__ == "__main__":
    main()
