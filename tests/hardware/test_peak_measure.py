"""How repeats are timed, how far beyond the caches a copy goes, and how the figures are shown."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from harness.hardware import measured_peaks as peak
from harness.hardware.machine import Copy, TimedAllReduce, Timing
from harness.hardware.measured_peaks import (
    MIN_REPEATS,
    cache_bytes,
    far_larger_than_cache,
    products,
    repeat,
    runner,
)
from harness.records.environment import Gpu, Hardware
from harness.render.console import as_rich
from harness.render.format import byte_size, rate
from harness.render.peak import tables
from tests.factories import make_machine

MIB = 2**20


class Fake:
    """Calls that take as long as said; `slow` numbers runs that were interrupted for a second."""

    def __init__(self, seconds: float, slow: tuple[int, ...] = ()) -> None:
        self.seconds, self.slow = seconds, slow
        self.runs: list[int] = []

    def __call__(self, calls: int) -> float:
        self.runs.append(calls)
        return calls * self.seconds + (1.0 if len(self.runs) in self.slow else 0.0)


class TestRepeat:
    def test_short_calls_are_gathered_until_they_take_long_enough(self) -> None:
        run = Fake(1e-6)
        timing = repeat(run, repeats=6, min_seconds=0.05)
        assert timing.seconds == pytest.approx([1e-6] * 6)
        assert timing.calls * 1e-6 >= 0.05
        assert run.runs[-6:] == [timing.calls] * 6
        assert len(run.runs) < 20

    def test_a_long_call_is_made_once_a_repeat(self) -> None:
        run = Fake(0.1)
        assert repeat(run, repeats=6, min_seconds=0.05) == Timing(calls=1, seconds=[0.1] * 6)
        assert run.runs[0] == 1, "the first is a warm-up"

    def test_interruptions_do_not_make_repeats_short(self) -> None:
        for slow in [*((number,) for number in range(1, 12)), (2, 3), (2, 3, 5), (2, 3, 4, 5)]:
            timing = repeat(Fake(1e-6, slow), repeats=6, min_seconds=0.05)
            assert min(timing.seconds) * timing.calls > 0.0499

    def test_what_takes_very_long_is_repeated_less_often(self) -> None:
        assert len(repeat(Fake(2.0), repeats=6, min_seconds=0.05).seconds) == MIN_REPEATS

    def test_the_host_is_timed_by_calls(self) -> None:
        made: list[int] = []
        assert runner(lambda: made.append(1), torch.device("cpu"))(5) > 0
        assert len(made) == 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_of_every_layout_are_products(dtype: torch.dtype) -> None:
    calls = products(32, dtype, torch.device("cpu"))
    results = {layout: call() for layout, call in calls.items()}
    assert set(results) == {"nn", "nt", "tn"}
    assert all(
        isinstance(result, torch.Tensor) and result.abs().sum() > 0 for result in results.values()
    )


class TestCaches:
    def test_last_level_of_all_sockets(self, tmp_path: Path) -> None:
        for cpu in range(4):
            shared = f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}"
            for index, (level, size, who) in enumerate(
                [(1, 32, str(cpu)), (2, 512, str(cpu)), (3, 32768, shared)]
            ):
                folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
                folder.mkdir(parents=True)
                for name, value in (
                    ("level", level),
                    ("size", f"{size}K"),
                    ("shared_cpu_list", who),
                ):
                    (folder / name).write_text(f"{value}\n", encoding="utf-8")
        assert cache_bytes(tmp_path) == 2 * 32 * MIB

    def test_where_nothing_is_told_it_is_unknown(self, tmp_path: Path) -> None:
        assert cache_bytes(tmp_path) is None
        (tmp_path / "cpu0" / "cache" / "index0").mkdir(parents=True)
        assert cache_bytes(tmp_path) is None

    @pytest.mark.parametrize(("cache", "array"), [(None, 256), (1 * MIB, 256), (64 * MIB, 512)])
    def test_the_array_is_far_larger(
        self, cache: int | None, array: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(peak, "cache_bytes", lambda: cache)
        assert far_larger_than_cache(torch.device("cpu")) == array * MIB


class TestView:
    def test_tables_of_a_cpu_and_of_gpus(self) -> None:
        reduces = [
            TimedAllReduce(bytes=4, ranks=4, timing=Timing(calls=9, seconds=[2e-5, 4e-5, 3e-5]))
        ]
        machine = make_machine(all_reduces=reduces)
        shown = printed(machine)
        assert "100 (95.2, 90.9)" in shown
        assert "16 (14.5, 13.3)" in shown
        assert "30.0" in shown
        assert "20.0–40.0" in shown
        gpus = [Gpu(name="NVIDIA L4")] * 2
        matmuls = [replace(matmul, threads=None) for matmul in machine.matmuls[:2]]
        copies = [
            Copy(direction=path, bytes=MIB, threads=None, timing=Timing(calls=1, seconds=[1e-3]))
            for path in ("memory", "to-device", "from-device")
        ]
        machine = make_machine(
            device="cuda",
            hardware=Hardware(cpu="", usable_cores=1, gpus=gpus),
            matmuls=matmuls,
            copies=copies,
            cache_bytes=None,
        )
        assert all(
            label in printed(machine)
            for label in ("host to GPU", "GPU to host", "memory copy", "fp32")
        )


@pytest.mark.parametrize(
    ("value", "text"),
    [(4, "4 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (2**26, "64 MiB"), (2**30, "1 GiB")],
)
def test_sizes(value: int, text: str) -> None:
    assert byte_size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (208e9, "208 GFLOP/s"),
        (3.35e12, "3.35 TFLOP/s"),
        (12.0, "12 FLOP/s"),
        (9.9e15, "9.9 PFLOP/s"),
    ],
)
def test_rates(value: float, text: str) -> None:
    assert rate(value, "FLOP") == text


def printed(machine: object) -> str:
    console = Console(file=io.StringIO(), width=200)
    for table in tables(machine):  # type: ignore[arg-type]
        console.print(as_rich(table))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text
