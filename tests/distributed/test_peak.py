"""The real command: what it measures is physically possible and consistent, and what it leaves can
be read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import matplotlib.image
import pytest

from harness.core.errors import HarnessError
from harness.core.paths import Results
from harness.hardware import machine as machines
from harness.hardware.machine import Machine, machine_key
from harness.hardware.measured_peaks import REQUEST_FORMAT, Request
from harness.launch import probe
from harness.launch.probe import measure
from harness.launch.torchrun import Torchrun
from harness.records.decode import decode_file
from harness.records.environment import describe_hardware
from harness.render.format import byte_size
from tests.support.commands import CommandResult, harness
from tests.support.running import processes_below

pytestmark = pytest.mark.distributed

CORES = len(os.sched_getaffinity(0))
MIB = 2**20


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
    monkeypatch.setattr(probe, "Torchrun", partial(Torchrun, fork=True))
    monkeypatch.setattr(probe, "usable_cores", lambda: [0])


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
    return harness(
        "machine",
        "peak",
        "--quick",
        "--ranks",
        "2",
        "--cluster",
        cpu,
        "--results",
        str(results.path),
    )


@pytest.fixture(scope="module")
def machine(results: Results, ended: CommandResult) -> Machine:
    assert ended.code == 0, ended.err
    return machines.read(results.peaks / f"{machine_key(describe_hardware(), 'cpu')}.json")


@pytest.mark.nightly
def test_leaves_a_record_and_a_plot_and_nothing_else(results: Results, machine: Machine) -> None:
    assert sorted(path.name for path in results.peaks.iterdir()) == [
        f"{machine.key}.json",
        f"{machine.key}.png",
    ]
    height, width, _ = matplotlib.image.imread(results.peaks / f"{machine.key}.png").shape
    assert width > 2 * height > 1000
    assert processes_below(results.path) == []


def test_says_what_it_found(results: Results, machine: Machine, ended: CommandResult) -> None:
    largest = max(one.bytes for one in machine.copies)
    assert largest >= 2**28
    for words in (
        "product, GFLOP/s",
        "copy, GB/s",
        "all-reduce, 2 ranks",
        "512 × 512",
        byte_size(largest),
    ):
        assert words in ended.out
    assert str(results.peaks / f"{machine.key}.json") in ended.out.replace("\n", "")


def test_products(machine: Machine) -> None:
    """A core does between a thousandth and a thousand times what one of today does."""
    assert {(one.dtype, one.threads) for one in machine.matmuls} == {
        (dtype, threads) for dtype in ("fp32", "bf16") for threads in {1, CORES}
    }
    for one in machine.matmuls:
        rate = one.work / one.timing.best
        assert rate < 1e13 * CORES
        # A smaller product takes microseconds: where other tests have a core, threads wait longer.
        assert rate > 1e7 or one.size < 128
    single_thread = {
        one.size: one for one in machine.matmuls if (one.dtype, one.threads) == ("fp32", 1)
    }
    assert single_thread[512].timing.best > single_thread[128].timing.best, (
        "64 times the work takes longer"
    )
    rates = [single_thread[size].work / single_thread[size].timing.best for size in (128, 512)]
    assert rates[1] > rates[0] / 20, "and is not done at a far lower rate"


def test_copies(machine: Machine) -> None:
    for threads in {1, CORES}:
        bandwidth = machine.bandwidth(threads)
        assert bandwidth is not None
        assert 1e7 < bandwidth < 1e13
    assert (
        machine.cache_bytes is None
        or max(one.bytes for one in machine.copies) >= 4 * machine.cache_bytes
    )


def test_all_reduces(machine: Machine) -> None:
    small, large = machine.all_reduces
    assert (small.bytes, large.bytes, small.ranks) == (4, MIB, 2)
    # Beside other programs, both mostly wait for a core, and a mebibyte takes no longer.
    assert 1e-7 < small.timing.best < 2 * large.timing.median, (
        "4 bytes take their latency, a mebibyte more"
    )
    assert large.work / large.timing.best < 1e12


def test_every_repeat_is_kept_and_long_enough(machine: Machine) -> None:
    timings = [one.timing for one in machine.matmuls] + [one.timing for one in machine.copies]
    for timing in timings:
        assert len(timing.seconds) == 3
        assert timing.calls * timing.best > 0.0199


def test_more_ranks_than_slots_are_refused(cpu: str, tmp_path: Path) -> None:
    ended = harness("peak", "--ranks", "3", "--cluster", cpu, "--results", str(tmp_path))
    assert ended.code == 2
    assert ended.err == "harness: --ranks: found 3; allowed: at most 2, the profile's `slots`\n"
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_fails_is_named_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.spec.cluster import Profile

    fork_ranks(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    results = Results(tmp_path)
    with pytest.raises(
        HarnessError,
        match=r"^rank 0 on .*: BadInput: device: found 0 GPUs; needed: .*; log: .*rank0\.log$",
    ):
        measure(
            results,
            Profile(device="cuda"),
            ranks=1,
            quick=True,
            on_progress=lambda now: None,
        )
    assert list(results.peaks.glob("*.json")) == []
    assert list(results.peaks.glob("running-*/logs/launch.log"))
    (request_path,) = results.peaks.glob("running-*/trial.json")
    request = decode_file(Request, request_path, REQUEST_FORMAT)
    assert request == Request(device="cuda", quick=True)
