"""Processes that end when they should."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

PR_SET_PDEATHSIG = 1
PATIENCE = 5.0  # seconds between asking a process to end and ending it


def die_with_parent() -> None:
    """Have the kernel end this process when its parent ends, however that ends. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads its own session, and all that it started there; waits until it is gone."""
    for ending in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, ending)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            continue
