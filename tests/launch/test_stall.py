"""A process that is waited for makes progress if a program that it runs computes."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from harness.launch.stall import StallDetector

LOOP = "while :; do :; done"


@pytest.mark.parametrize(
    ("script", "progresses"),
    [(f"({LOOP}) & wait", True), ("sleep 60 & wait", False)],
    ids=["computes", "sleeps"],
)
def test_a_compiler_computes_for_whoever_waits_for_it(script: str, progresses: bool) -> None:
    process = subprocess.Popen(["sh", "-c", script], start_new_session=True)
    try:
        time.sleep(0.1)
        detector = StallDetector(process.pid)
        detector.seconds()
        deadline = time.monotonic() + (20 if progresses else 0.2)
        stalled_for = 1.0
        while stalled_for and time.monotonic() < deadline:
            time.sleep(0.05)
            stalled_for = detector.seconds()
        assert (stalled_for == 0) == progresses
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
