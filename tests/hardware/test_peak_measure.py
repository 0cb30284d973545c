"""How repeats are timed, how far beyond the caches a copy goes, and how the figures are shown."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness.hardware import measured_peaks as peak
from harness.hardware.machine import TimedAllReduce, Timing
from harness.hardware.measured_peaks import (
    MIN_REPEATS,
    cache_bytes,
    far_larger_than_cache,
    product,
    repeat,
    runner,
)
from harness.render.format import byte_size, rate
from harness.render.peak import peaks_table
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
def test_a_product_is_one(dtype: torch.dtype) -> None:
    result = product(32, dtype, torch.device("cpu"))()
    assert isinstance(result, torch.Tensor)
    assert result.abs().sum() > 0


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


def test_the_table_has_a_row_for_each_call() -> None:
    reduced = TimedAllReduce(bytes=4, ranks=4, timing=Timing(calls=9, seconds=[2e-5, 4e-5, 3e-5]))
    table = peaks_table(make_machine(all_reduces=[reduced]))
    rows = [list(map(str, row)) for row in table.rows]
    assert rows[1] == ["product 512 × 512 fp32", "100 GFLOP/s", "95.2 GFLOP/s", "90.9 GFLOP/s"]
    assert rows[3][:2] == ["copy 256 MiB", "10 GB/s"]
    assert rows[4] == ["all-reduce 4 B, 4 ranks, bus", "300 kB/s", "200 kB/s", "150 kB/s"]


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
