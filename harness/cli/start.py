"""The program `harness`: whoever presses Ctrl-C while it loads what it needs gets a line and no traceback."""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Run the command line."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        # Raised in an import, an exception may be swallowed or turned into another one. Nothing has begun.
        signal.signal(signal.SIGINT, _end)
    from harness.cli.main import main as run_command_line

    run_command_line()


def _end(number: int, frame: object) -> None:
    """End this process at once."""
    os.write(2, b"harness: interrupted\n")
    os._exit(128 + number)
