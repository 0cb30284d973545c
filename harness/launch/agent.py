"""torchrun, and what it alone knows of failed ranks: `python -m harness.launch.agent FAILURES
TORCHRUN_ARGUMENT…`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from harness.training.interruption import block_signal

if __name__ == "__main__":
    block_signal()  # ranks inherit it, and then can't miss the signal even before they do it themselves

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun

from harness.core.paths import write_atomically
from harness.core.processes import die_with_parent


def main() -> None:
    """Ends with torchrun's exit code; leaves each failed rank's exit code in FAILURES."""
    die_with_parent()
    failures, *arguments = sys.argv[1:]
    try:
        torchrun(arguments)
    except ChildFailedError as error:
        found = {
            str(rank): {"exitcode": failure.exitcode, "at": failure.timestamp, "pid": failure.pid}
            for rank, failure in error.failures.items()
        }
        write_atomically(Path(failures), json.dumps(found))
        sys.exit(1)


if __name__ == "__main__":
    main()
