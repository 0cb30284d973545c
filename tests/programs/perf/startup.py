"""How long the command line takes to start, beside Python itself: `python -m tests.programs.perf.startup`."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROUNDS = 20
HARNESS = str(Path(sys.executable).with_name("harness"))
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "harness --help": [HARNESS, "--help"],
    "harness plan quickstart": [HARNESS, "plan", "quickstart"],
}


def milliseconds(command: Sequence[str], folder: str) -> float:
    began = time.perf_counter()
    subprocess.run(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True
    )
    return (time.perf_counter() - began) * 1e3


def main() -> None:
    """Interleaved, so that drift of the machine falls on all of them alike."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        for command in COMMANDS.values():
            milliseconds(command, folder)
        for _ in range(ROUNDS):
            for name, command in COMMANDS.items():
                times[name].append(milliseconds(command, folder))
    print(
        f"medians of {ROUNDS} interleaved runs, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    for name, found in times.items():
        print(
            f"{name:24} {statistics.median(found):6.0f} ms   (least {min(found):.0f}, most {max(found):.0f})"
        )


if __name__ == "__main__":
    main()
