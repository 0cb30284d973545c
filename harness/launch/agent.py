"""Runs torchrun and writes down which ranks failed, which torchrun alone knows.

`python -m harness.launch.agent FAILURES TORCHRUN_ARGUMENT…`
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from harness.core.processes import ending_descendants, parent_variables
from harness.training.interruption import before_torch

if __name__ == "__main__":
    # Ranks inherit that the signal waits, so it can't end them before they look for it themselves.
    before_torch()

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun

from harness.core.control_groups import oom_kills
from harness.launch.launcher import write_failed_ranks
from harness.records.running import FailedRank


def main() -> None:
    """End with torchrun's exit code; write how the failed ranks ended to FAILURES.

    Ranks end with this process, also by SIGKILL, and so does all that they have started.
    """
    failures_path, *arguments = sys.argv[1:]
    os.environ.update(parent_variables())
    kills_before = oom_kills()
    try:
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
