"""The real command: what it measures is physically possible and consistent, and what it leaves can
be read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from harness.core.errors import HarnessError
from harness.core.paths import Results
from harness.hardware import machine as machines
from harness.hardware.machine import Machine, machine_key
from harness.hardware.measured_peaks import ALL_REDUCE_BYTES
from harness.launch import tasks
from harness.launch.tasks import measure_peaks
from harness.launch.torchrun import Torchrun
from harness.records.environment import describe_hardware
from tests.support.commands import CommandResult, harness
from tests.support.running import processes_below

pytestmark = pytest.mark.distributed

CORES = len(os.sched_getaffinity(0))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return Results(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A profile of two ranks on the CPU."""
    path = tmp_path_factory.mktemp("profiles") / "cpu.yaml"
    path.write_text("{device: cpu, slots: 2}", encoding="utf-8")
    return str(path)


def fork_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork ranks from the forkserver of other tests: torchrun loads torch for itself and each rank.

    That server is one for a thread, and ranks set how many they measure with.
    """
    monkeypatch.setattr(tasks, "Torchrun", partial(Torchrun, fork=True))
    monkeypatch.setattr(tasks, "usable_cores", lambda: [0])


@pytest.fixture(
    scope="module", params=["forked", pytest.param("torchrun", marks=pytest.mark.nightly)]
)
def launcher(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have ranks forked, or start them as the command does."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        if request.param == "forked":
            fork_ranks(monkeypatch)
        yield


@pytest.fixture(scope="module")
def ended(results: Results, cpu: str, launcher: None) -> CommandResult:
    return harness("peak", "--ranks", "2", "--cluster", cpu, "--results", str(results.path))


@pytest.fixture(scope="module")
def machine(results: Results, ended: CommandResult) -> Machine:
    assert ended.code == 0, ended.err
    return machines.read(results.peaks / f"{machine_key(describe_hardware(), 'cpu')}.json")


@pytest.mark.nightly
def test_leaves_a_record_and_nothing_else(results: Results, machine: Machine) -> None:
    assert [path.name for path in results.peaks.iterdir()] == [f"{machine.key}.json"]
    assert processes_below(results.path) == []


@pytest.mark.nightly
def test_what_is_measured(machine: Machine) -> None:
    """A core does between a thousandth and a thousand times what one of today does."""
    for timing in machine.timings:
        assert 1 < timing.work / min(timing.seconds) < 1e13 * CORES
    products = {timing.dtype for timing in machine.timings if timing.call == "matmul"}
    assert products == {"fp32", "bf16"}
    reduced = [timing for timing in machine.timings if timing.call == "all-reduce"]
    assert [timing.size for timing in reduced] == list(ALL_REDUCE_BYTES)
    assert {timing.ranks for timing in reduced} == {2}


def test_a_rank_that_fails_is_named_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.sweep.cluster import Profile

    fork_ranks(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    results = Results(tmp_path)
    with pytest.raises(
        HarnessError,
        match=r"^rank 0 on .*: BadInput: device: found 0 GPUs; needed: .*; log: .*rank0\.log$",
    ) as failure:
        measure_peaks(results, Profile(device="cuda", slots=1), ranks=1)
    assert list(results.peaks.glob("*.json")) == []
    assert Path(str(failure.value).rpartition("log: ")[2]).exists()
