"""Runs torchrun and writes down which ranks failed, which torchrun alone knows.

`python -m harness.launch.agent FAILURES TORCHRUN_ARGUMENT…`
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from harness.core.processes import die_with_parent, ending_descendants, parent_variables
from harness.training.interruption import block_signal

if __name__ == "__main__":
    die_with_parent()  # first, as importing torch takes seconds
    # Before torch is imported: ranks inherit the mask, so a signal cannot end them before they
    # block it themselves.
    block_signal()

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun

from harness.core.oom import oom_kills
from harness.core.paths import write_atomically


def main() -> None:
    """End with torchrun's exit code; write each failed rank's exit code to FAILURES.

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
            failed_ranks[str(rank)] = {
                "exitcode": failure.exitcode,
                "at": failure.timestamp,  # seconds since the epoch
                "pid": failure.pid,
                "out_of_memory": failure.exitcode == -signal.SIGKILL and is_out_of_memory,
            }
        write_atomically(Path(failures_path), json.dumps(failed_ranks))
        sys.exit(1)


if __name__ == "__main__":
    main()
