"""Readings of this machine's own host."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from harness.measure.host import (
    core_seconds,
    core_shares,
    foreign_process,
    host_gauges,
    load_of_others,
)
from tests.support.running import wait_until


def compute(seconds: float) -> None:
    """Use a core for so many seconds of CPU time."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def test_cpu_time_is_that_of_this_process_and_of_its_workers() -> None:
    before = core_seconds()
    compute(0.3)
    worker = multiprocessing.get_context("fork").Process(target=compute, args=(0.3,))
    worker.start()
    wait_until(lambda: core_seconds()["process"] - before["process"] >= 0.59)
    worker.join()
    after = core_seconds()
    assert after["process"] - before["process"] >= 0.59, "also of one that has ended"
    assert after["busy"] <= after["total"]
    assert after["waited"] >= before["waited"] >= 0


def test_cores_of_a_lane_are_counted_apart() -> None:
    everywhere, lane = core_seconds(), core_seconds([0])
    assert everywhere["host"] == everywhere["busy"]
    assert lane["host"] < lane["busy"] + 1


def test_shares() -> None:
    spent = {"wall": 2.0, "total": 8.0, "busy": 4.0, "stolen": 1.0, "host": 3.0, "process": 1.5}
    shares = {"cpu_use": 0.5, "cpu_steal": 0.125, "host_cpu": 1.5, "process_cpu": 0.75}
    assert core_shares(spent) == shares
    assert core_shares({**spent, "waited": 0.5}) == {**shares, "cpu_wait": 0.25}
    assert core_shares({}) == {}


def test_gauges_are_plausible() -> None:
    before = host_gauges()["resident_bytes"]
    array = np.ones(64 * 2**20, dtype=np.uint8)
    gauges = host_gauges()
    assert array.nbytes <= gauges["resident_bytes"] - before + 2**20 < 1.5 * array.nbytes
    assert 0 <= gauges["load_per_core"] < 1000
    assert gauges.get("cpu_frequency_hz", 1e9) > 1e8


def test_tells_strangers_from_ranks_and_their_children_by_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert foreign_process(os.getpid()) is None
        assert foreign_process(child.pid) is None
        monkeypatch.setattr(psutil.Process, "parents", lambda _: [])
        name = psutil.Process(child.pid).name()
        assert foreign_process(child.pid) == f"pid {child.pid} {name}"
    assert foreign_process(child.pid) == f"pid {child.pid}"  # it has ended


@pytest.mark.parametrize(
    ("loadavg", "load"),
    [
        ("12.00 9.00 5.00 14/320 4711\n", 12.0),
        ("12.00 9.00 5.00 1/320 4711\n", 0.0),  # what caused it has ended
        ("0.20 0.10 0.05 9/320 4711\n", 0.2),  # a burst
        ("unreadable", None),
    ],
)
def test_load_of_others_is_that_of_the_last_minute_and_of_now(
    monkeypatch: pytest.MonkeyPatch, loadavg: str, load: float | None
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: loadavg)
    assert load_of_others() == load
