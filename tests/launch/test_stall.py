"""A process that is waited for makes progress while it computes."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from harness.launch.stall import StallDetector


@pytest.mark.parametrize(
    ("script", "progresses"),
    [("while :; do :; done", True), ("sleep 60 & wait", False)],
    ids=["computes", "sleeps"],
)
def test_a_process_that_uses_no_cpu_time_is_stalled(script: str, progresses: bool) -> None:
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
