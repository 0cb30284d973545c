"""A Slurm that only writes down what it is asked: for what needs no node."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SBATCH = """#!/bin/sh
n=$(($(cat "$0.count" 2>/dev/null || echo 0) + 1))
[ "$n" -gt "${SBATCH_MOST:-1000}" ] && { echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2; exit 1; }
echo $n >"$0.count"
cp "$1" "$0.$n"
echo "Submitted batch job $n"
"""


@dataclass(frozen=True)
class Recorded:
    """Programs in `folder`, which is on the PATH."""

    folder: Path

    def scripts(self) -> list[str]:
        """What sbatch was given, call by call."""
        given = sorted(self.folder.glob("sbatch.[0-9]*"), key=lambda path: int(path.suffix[1:]))
        return [path.read_text(encoding="utf-8") for path in given]

    def queue(self, text: str) -> None:
        """What squeue answers from now on."""
        (self.folder / "queue").write_text(text, encoding="utf-8")

    def asked(self, program: str) -> list[str]:
        """The arguments of every call of squeue or scancel."""
        log = self.folder / f"{program}.log"
        return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


def recorded_slurm(folder: Path, set_variable: Callable[[str, str], None]) -> Recorded:
    """Put the programs before all others."""
    folder.mkdir()
    programs = {
        "sbatch": SBATCH,
        "srun": "#!/bin/sh\nexit 1\n",
        "sinfo": "#!/bin/sh\nexit 1\n",
        "squeue": '#!/bin/sh\necho "$*" >>"$0.log"; cat "${0%/*}/queue"\n',
        "scancel": '#!/bin/sh\necho "$*" >>"$0.log"\n',
    }
    for name, text in programs.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    found = Recorded(folder)
    found.queue("")
    set_variable("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return found
