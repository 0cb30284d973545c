"""Runs torchrun and writes down which ranks failed, which torchrun alone knows.

`python -m harness.launch.agent FAILURES WORLD_SIZE RANK_COMMAND…`
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from harness.core.processes import ending_descendants, parent_variables
from harness.training.progress import before_torch

if __name__ == "__main__":
    # Ranks inherit that the signal waits, so it can't end them before they look for it themselves.
    before_torch()

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousInfo,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.run import main as torchrun

from harness.core.paths import write_atomically
from harness.core.ports import LOOPBACK, listen
from harness.records.assignment import FailedRank

RENDEZVOUS = "loopback"


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


def main() -> None:
    """End with torchrun's exit code; write how the failed ranks ended to FAILURES.

    Ranks end with this process, also by SIGKILL, and so does all that they have started.
    """
    failures_path, world_size, *rank_command = sys.argv[1:]
    os.environ.update(parent_variables())
    # An operation of the store may take 600 s.
    rendezvous_handler_registry.register(
        RENDEZVOUS,
        lambda parameters: LoopbackRendezvous(LOOPBACK, 0, 0, 1, parameters.run_id, 600),
    )
    options = [f"--rdzv-backend={RENDEZVOUS}", f"--rdzv-endpoint={LOOPBACK}:0"]
    # torchrun's own way to run a module would import from the working directory first. Without
    # a folder for logs it makes a temporary one, which stays behind where ranks are killed.
    options += [f"--nproc-per-node={world_size}", "--no-python", f"--log-dir={os.devnull}"]
    try:
        with ending_descendants():
            torchrun([*options, *rank_command])
    except ChildFailedError as error:
        failed_ranks = {}
        for rank, failure in error.failures.items():
            failed = FailedRank(exitcode=failure.exitcode, at=failure.timestamp)
            failed_ranks[rank] = asdict(failed)
        write_atomically(Path(failures_path), json.dumps(failed_ranks), durable=False)
        sys.exit(1)


if __name__ == "__main__":
    main()
