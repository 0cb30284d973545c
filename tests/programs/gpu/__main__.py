"""Tries what needs a GPU, each part in a process of its own, and leaves one folder with a page.

    python -m tests.programs.gpu --output build/gpu                        on a machine with a GPU
    python -m tests.programs.gpu --output build/gpu --device cpu --small     the same code, in two minutes

Nothing is downloaded or installed. What is missing is said first. The page, FOLDER/page.md, is
written anew after each part, so that a run that is cut off leaves what it had.

Exit codes: 0 all parts that could be tried have passed or missed a goal, 1 a part failed, 2 nothing
could be tried.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.programs.gpu.outcome import LOG, Outcome, judge, summary, write
from tests.programs.gpu.parts import FIRST, OPTIONAL, REQUIRED, Part, parts

TOP = Path(__file__).resolve().parents[3]
MINUTES = 10.0  # of all parts


def main(arguments: Sequence[str] | None = None) -> int:
    """Try all parts, write the page after each, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="as short as can be")
    options = parser.parse_args(arguments)
    missing = [name for name in (*REQUIRED, *OPTIONAL) if importlib.util.find_spec(name) is None]
    print(f"missing packages: {', '.join(missing) or 'none'}", flush=True)
    needed = [name for name in REQUIRED if name in missing]
    if needed:
        print(f"found no {', '.join(needed)}: no part can train without", file=sys.stderr)
        return 2
    chosen = parts(options.device, small=options.small)
    options.output.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60 * MINUTES
    outcomes: list[Outcome] = []
    for number, part in enumerate(chosen, start=1):
        outcome = try_part(part, options, missing, deadline)
        outcomes.append(outcome)
        write(options.output, outcomes, options.device, left=len(chosen) - number)
        row = f"{part.name:20}{outcome.status:12}{outcome.seconds:6.0f} s  {outcome.reason}"
        print(row.rstrip(), flush=True)
        if part.name == FIRST and outcome.status != "passed":
            print(outcome.reason, file=sys.stderr)
            return 2
    print(f"{summary(outcomes)}; {options.output / 'page.md'}")
    return int(any(outcome.status in ("failed", "timed out") for outcome in outcomes))


def try_part(
    part: Part, options: argparse.Namespace, missing: Sequence[str], deadline: float
) -> Outcome:
    """Run a part if it can be run, in a folder of its own, and return what became of it."""
    lacking = [name for name in part.needs if name in missing]
    left = deadline - time.monotonic()
    reason = ""
    if part.gpu_only and options.device != "cuda":
        reason = "needs a GPU"
    elif lacking:
        reason = f"needs {', '.join(lacking)}"
    elif left < 1:
        reason = f"the {MINUTES:g} minutes were over"
    if reason:
        return Outcome(part=part, status="skipped", reason=reason)
    folder = (options.output / part.name).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for name in folder.glob("*.json"):  # of an earlier run
        name.unlink()
    command = [sys.executable, "-m", part.module, str(folder), options.device]
    command += [part.task, json.dumps(part.keywords)]
    start = time.monotonic()
    exit_code = run(command, folder / LOG, min(part.seconds, left))
    is_real = options.device == "cuda" and not options.small
    return judge(part, folder, exit_code, time.monotonic() - start, is_real=is_real)


def run(command: Sequence[str], log: Path, seconds: float) -> int | None:
    """Run a command with its output in a log, and return its exit code, None if its time was up.

    The processes that it has started end with it, whichever way it ends.
    """
    # Container images set the variable; every process would compile torch's sources for itself.
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=TOP, env=environment, stdin=subprocess.DEVNULL, stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):  # the usual case: all have ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
