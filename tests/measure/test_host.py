"""Readings of this machine's own host."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from harness.measure.host import CoreUse, CoreUseTotals, Counters, ThisHost, load_of_others
from tests.support.running import wait_until


def test_sees_that_a_process_is_busy() -> None:
    host = ThisHost()
    before, until = host.counters(), time.process_time() + 0.5
    while time.process_time() < until:
        pass
    busy = (host.counters() - before).shares()
    assert 0.02 < busy["process_cpu"] <= 1.1 * torch.get_num_threads() + 1
    least = 0.5 / ((host.counters() - before).wall * (os.cpu_count() or 1))
    assert 0.8 * least < busy["cpu_use"] <= 1.001
    before = host.counters()
    time.sleep(0.3)
    assert (host.counters() - before).shares()["process_cpu"] < 0.2


def test_sees_memory_grow() -> None:
    host = ThisHost()
    before = host.gauges()["resident_bytes"]
    array = np.ones(64 * 2**20, dtype=np.uint8)
    grown = host.gauges()["resident_bytes"] - before
    assert array.nbytes <= grown + 2**20
    assert grown < 1.5 * array.nbytes


def test_reads_the_frequency_where_the_kernel_measures_it(tmp_path: Path) -> None:
    host = ThisHost()
    assert ("cpu_frequency_hz" in host.gauges()) == bool(host.frequencies)
    host.frequencies = [tmp_path / "a", tmp_path / "b"]
    for path, kilohertz in zip(host.frequencies, (2_000_000, 3_000_000), strict=True):
        path.write_text(f"{kilohertz}\n", encoding="ascii")
    assert host.gauges()["cpu_frequency_hz"] == 2.5e9


def test_load_is_plausible() -> None:
    assert 0 <= ThisHost().gauges()["load_per_core"] < 1000


def test_follows_the_kernels_counters(tmp_path: Path) -> None:
    #            user nice system idle iowait irq softirq steal guest guest_nice, in ticks
    ticks_before, ticks_after = (
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (300, 50, 100, 400, 100, 10, 20, 20, 300, 0),
    )
    hertz, host = os.sysconf("SC_CLK_TCK"), ThisHost(tmp_path)
    readings = []
    for ticks in (ticks_before, ticks_after):
        (tmp_path / "stat").write_text(f"cpu  {' '.join(map(str, ticks))}\n", encoding="ascii")
        readings.append(host.counters())
    host.close()
    spent = readings[1] - readings[0]
    assert (spent.total, spent.busy, spent.stolen) == pytest.approx(
        (1000 / hertz, 480 / hertz, 20 / hertz)
    )


def test_resident_memory_and_steal_are_the_kernels_own() -> None:
    host, process = ThisHost(), psutil.Process()
    assert host.gauges()["resident_bytes"] == pytest.approx(process.memory_info().rss, rel=0.05)
    assert host.counters().stolen == pytest.approx(psutil.cpu_times().steal, abs=1.0)
    assert len(host.file_descriptors) == 2
    host.close()
    assert host.file_descriptors == {}


def test_shares_of_no_time_are_unknown() -> None:
    assert Counters().shares() == {}


def test_tells_strangers_from_other_ranks_and_their_children_by_the_command_line() -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    parent = [sys.executable, "-c", f"import subprocess; subprocess.run({sleep!r})"]
    with subprocess.Popen(parent) as other:
        try:
            below = psutil.Process(other.pid)
            wait_until(
                lambda: (
                    below.cmdline() == parent
                    and [process.cmdline() for process in below.children()] == [sleep]
                )
            )
            (child,) = below.children()
            host = ThisHost()
            host.command = parent  # as though we were a rank beside it
            assert (host.foreign_process(other.pid), host.foreign_process(child.pid)) == (
                None,
                None,
            )
            host.command = ["python", "-m", "harness.training.worker", "another/trial"]
            assert host.foreign_process(other.pid) == f"pid {other.pid} {below.name()}"
        finally:
            child.kill()
    assert ThisHost().foreign_process(os.getpid()) is None
    assert ThisHost().foreign_process(other.pid) == f"pid {other.pid}"  # it has ended


class TestCoreUse:
    def test_is_that_of_threads_and_children(self, tmp_path: Path) -> None:
        hertz = os.sysconf("SC_CLK_TCK")
        for thread, waited in ((11, 2_000_000_000), (12, 500_000_000)):
            folder = tmp_path / "self" / "task" / str(thread)
            folder.mkdir(parents=True)
            (folder / "schedstat").write_text(f"7 {waited} 3\n", encoding="ascii")
            (folder / "children").write_text("20 21 " if thread == 11 else "", encoding="ascii")
        (tmp_path / "self" / "task" / "13").mkdir()  # it has ended meanwhile
        (tmp_path / "21").mkdir()  # and so has process 20
        fields = " ".join(str(number) for number in range(4, 14))
        stat = f"21 (a) b) S {fields} {hertz} {2 * hertz} 0 0"
        (tmp_path / "21" / "stat").write_text(stat, encoding="ascii")
        (tmp_path / "stat").write_text(f"cpu {4 * hertz} 0 0 0 0 0 0 0\n", encoding="ascii")
        use = ThisHost(tmp_path).core_use()
        assert use.host == 4.0
        assert use.waited == {11: 2.0, 12: 0.5}
        assert use.cpu == {os.getpid(): pytest.approx(time.process_time(), abs=1), 21: 3.0}

    def test_lets_go_of_threads_that_have_ended(self) -> None:
        """Each has files that stay open, so that many threads are read in little time."""
        host, until = ThisHost(), threading.Event()
        thread = threading.Thread(target=until.wait)
        thread.start()
        files = [f"self/task/{thread.native_id}/{name}" for name in ("schedstat", "children")]
        assert thread.native_id in host.core_use().waited
        assert set(files) <= set(host.file_descriptors)
        until.set()
        thread.join()
        wait_until(lambda: thread.native_id not in host.core_use().waited)
        host.core_use()  # in which a thread that ended during the last reading is not listed
        assert not set(files) & set(host.file_descriptors)
        host.close()

    def test_of_a_lane_leaves_out_what_runs_on_the_cores_of_others(self, tmp_path: Path) -> None:
        (tmp_path / "self" / "task").mkdir(parents=True)
        hertz = os.sysconf("SC_CLK_TCK")
        lines = [f"cpu  {9 * hertz} 0 0 0 0 0 0 0"]
        for core, seconds in enumerate((1, 2, 6)):
            lines.append(f"cpu{core} {seconds * hertz} 0 0 50 0 0 0 0")
        (tmp_path / "stat").write_text("\n".join([*lines, "intr 5", ""]), encoding="ascii")
        assert ThisHost(tmp_path, cores=[0, 1]).core_use().host == 3.0

    def test_counts_the_thread_that_waited_longest_and_the_cpu_of_all(self) -> None:
        totals = CoreUseTotals()
        assert totals.shares() == {}
        before = CoreUse(wall=10.0, host=3.0, waited={1: 1.0, 2: 5.0}, cpu={7: 1.0, 8: 2.0})
        after = CoreUse(wall=12.0, host=6.0, waited={1: 2.0, 2: 5.5, 3: 0.1}, cpu={7: 2.0, 9: 0.5})
        totals.add(before, after)
        assert totals.shares() == {"host_cpu": 1.5, "trial_cpu": 0.75, "cpu_wait": 0.5}
        totals.add(before, after)
        assert totals.shares() == {"host_cpu": 1.5, "trial_cpu": 0.75, "cpu_wait": 0.5}

    def test_is_left_out_where_the_kernel_does_not_count(self) -> None:
        totals = CoreUseTotals()
        totals.add(CoreUse(0.0, 0.0, {}, {7: 0.0}), CoreUse(1.0, 2.0, {}, {7: 0.5}))
        assert totals.shares() == {"host_cpu": 2.0, "trial_cpu": 0.5}

    def test_sees_that_others_have_the_cores(self) -> None:
        busy = ["sh", "-c", "while :; do :; done"]
        others = [subprocess.Popen(busy) for _ in range(2 * (os.cpu_count() or 1))]
        try:
            host, totals = ThisHost(), CoreUseTotals()
            before, until = host.core_use(), time.process_time() + 0.1
            while time.process_time() < until:
                pass
            totals.add(before, host.core_use())
        finally:
            for other in others:
                other.kill()
                other.wait()
        assert totals.shares()["cpu_wait"] > 0.2


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
    tmp_path: Path, loadavg: str, load: float | None
) -> None:
    (tmp_path / "loadavg").write_text(loadavg, encoding="ascii")
    assert load_of_others(tmp_path) == load


def test_load_is_unknown_where_the_kernel_does_not_say(tmp_path: Path) -> None:
    assert load_of_others(tmp_path) is None
