"""A fake Slurm whose programs only write down their arguments, for tests that need no node."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# Counts its calls in sbatch.count, and keeps the script of each as sbatch.1, sbatch.2, ..., and its
# variables as sbatch.env.
SBATCH = """#!/bin/sh
n=$(($(cat "$0.count" 2>/dev/null || echo 0) + 1))
[ "$n" -gt "${MAX_SBATCH_CALLS:-1000}" ] && { echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2; exit 1; }
echo $n >"$0.count"
cp "$1" "$0.$n"
env >"$0.env"
echo "Submitted batch job $n"
"""
PROGRAMS = {
    "sbatch": SBATCH,
    "srun": "#!/bin/sh\nexit 1\n",
    "sinfo": "#!/bin/sh\nexit 1\n",
    "squeue": '#!/bin/sh\necho "$*" >>"$0.log"; cat "${0%/*}/queue"\n',
    "scancel": '#!/bin/sh\necho "$*" >>"$0.log"; env >"$0.env"\n',
}


@dataclass(frozen=True)
class FakeSlurm:
    """The programs in `folder`, which is the first on the PATH."""

    folder: Path

    def batch_scripts(self) -> list[str]:
        """Return the script of every call of sbatch, in order."""
        paths = sorted(self.folder.glob("sbatch.[0-9]*"), key=lambda path: int(path.suffix[1:]))
        return [path.read_text(encoding="utf-8") for path in paths]

    def set_queue(self, text: str) -> None:
        """Set what squeue prints from now on."""
        (self.folder / "queue").write_text(text, encoding="utf-8")

    def variables(self, program: str) -> dict[str, str]:
        """Return the variables of the last call of sbatch or scancel."""
        lines = (self.folder / f"{program}.env").read_text(encoding="utf-8").splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def calls(self, program: str) -> list[str]:
        """Return the arguments of every call of squeue or scancel."""
        log = self.folder / f"{program}.log"
        return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


def install_fake_slurm(folder: Path, set_variable: Callable[[str, str], None]) -> FakeSlurm:
    """Write the programs into a new folder and put it first on the PATH, with an empty queue."""
    folder.mkdir()
    for name, text in PROGRAMS.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    slurm = FakeSlurm(folder)
    slurm.set_queue("")
    set_variable("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return slurm
