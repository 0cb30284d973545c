"""The first second of a command, in which it loads what it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_ctrl_c_while_a_command_loads_is_a_line(tmp_path: Path) -> None:
    """A program imports typer first: this one presses Ctrl-C while it is imported, and would go on."""
    (tmp_path / "typer.py").write_text(
        "import os, signal\n"
        "try:\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "except KeyboardInterrupt as error:\n"
        "    raise ImportError('no typer') from error\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli", "plan", "quickstart"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "harness: interrupted\n")
