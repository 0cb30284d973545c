"""Runs the command line in this process."""

from __future__ import annotations

import contextlib
import io
import signal
from dataclasses import dataclass

from harness.cli import main as cli


@dataclass(frozen=True)
class CommandResult:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


def harness(*arguments: str) -> CommandResult:
    """Run `harness ARGUMENTS` and return how it ended.

    An error that is not a user's mistake is raised, with its traceback.
    """
    out, err = io.StringIO(), io.StringIO()
    previous_handler = signal.getsignal(signal.SIGTERM)  # main replaces it
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main(list(arguments))
    except SystemExit as exit:
        return CommandResult(int(exit.code or 0), out.getvalue(), err.getvalue())
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
    raise AssertionError("main always ends the process")
