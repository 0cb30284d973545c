"""The command line, run in this process."""

from __future__ import annotations

import contextlib
import io
import signal
from dataclasses import dataclass

from harness.cli import main as cli


@dataclass(frozen=True)
class CommandResult:
    """What a command left on the terminal, and its exit code."""

    code: int
    out: str
    err: str


def harness(*arguments: str) -> CommandResult:
    """Run `harness ARGUMENTS`; an error that is no user's mistake comes through with its traceback."""
    out, err = io.StringIO(), io.StringIO()
    before = signal.getsignal(signal.SIGTERM)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main(list(arguments))
    except SystemExit as ended:
        return CommandResult(int(ended.code or 0), out.getvalue(), err.getvalue())
    finally:
        signal.signal(signal.SIGTERM, before)
    raise AssertionError("main always ends the process")
