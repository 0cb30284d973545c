"""The real command: what it measures is physically possible and consistent, and what it leaves can
be read.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from harness.core.errors import HarnessError
from harness.core.paths import Results
from harness.hardware import machine as machines
from harness.hardware.machine import machine_key
from harness.hardware.measured_peaks import ALL_REDUCE_BYTES
from harness.launch import tasks
from harness.launch.tasks import measure_peaks
from harness.launch.torchrun import Torchrun
from harness.records.environment import describe_hardware
from harness.sweep.cluster import Profile
from tests.support.commands import harness
from tests.support.running import processes_below

pytestmark = pytest.mark.distributed


@pytest.mark.nightly
def test_what_is_measured(results: Results, tmp_path: Path) -> None:
    """A core does between a thousandth and a thousand times what one of today does."""
    profile = tmp_path / "cpu.yaml"
    profile.write_text("{device: cpu, slots: 2}", encoding="utf-8")
    where = ("--cluster", str(profile), "--results", str(results.path))
    ended = harness("peak", "--ranks", "2", *where)
    assert ended.code == 0, ended.err
    (path,) = results.peaks.iterdir()
    assert path.name == f"{machine_key(describe_hardware(), 'cpu')}.json"
    machine = machines.read(path)
    for timing in machine.timings:
        assert 1 < timing.work / min(timing.seconds) < 1e13 * len(os.sched_getaffinity(0))
    products = {timing.dtype for timing in machine.timings if timing.call == "matmul"}
    assert products == {"fp32", "bf16"}
    reduced = [timing for timing in machine.timings if timing.call == "all-reduce"]
    assert [timing.size for timing in reduced] == list(ALL_REDUCE_BYTES)
    assert {timing.ranks for timing in reduced} == {2}
    assert processes_below(results.path) == []


def test_a_rank_that_fails_is_named_with_its_log(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks are forked from the forkserver of other tests, which is one for a thread."""
    monkeypatch.setattr(tasks, "Torchrun", partial(Torchrun, fork=True))
    monkeypatch.setattr(tasks, "usable_cores", lambda: [0])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(
        HarnessError,
        match=r"^rank 0 on .*: BadInput: device: found 0 GPUs; needed: .*; log: .*rank0\.log$",
    ) as failure:
        measure_peaks(results, Profile(device="cuda", slots=1), ranks=1)
    assert list(results.peaks.glob("*.json")) == []
    assert Path(str(failure.value).rpartition("log: ")[2]).exists()
