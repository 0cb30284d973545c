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

    `--results DIR` may stand anywhere among them: it is handed to `harness` itself, before its command.
    An error that is not a user's mistake is raised, with its traceback.
    """
    words = list(arguments)
    if "--results" in words:
        place = words.index("--results")
        words = words[place : place + 2] + words[:place] + words[place + 2 :]
    out, err = io.StringIO(), io.StringIO()
    previous_handler = signal.getsignal(signal.SIGTERM)  # main replaces it
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main(words)
    except SystemExit as exit:
        return CommandResult(int(exit.code or 0), out.getvalue(), err.getvalue())
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
    raise AssertionError("main always ends the process")
