"""What the numbers of a trial come to, by hand on small rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from harness.api import whole_seconds
from harness.measure.numbers import straggler_notes, trial_numbers
from harness.measure.window import Window, measured_window
from harness.records.numbers import RATE, in_order
from harness.records.record import Failure, Interruption, RankResult, Record, Telemetry
from tests.factories import make_cell, make_record, with_ranks

RECORD = make_record(make_cell(strategy="ddp", world_size=2, steps=40))


def rank(
    number: int, phases: Mapping[str, Sequence[float]], resumed_at: tuple[int, ...] = ()
) -> RankResult:
    rows = {name: np.asarray(seconds, dtype=np.float64) for name, seconds in phases.items()}
    return replace(
        RECORD.ranks[number],
        host=f"node{number}",
        loss=np.zeros(len(rows["forward"]), dtype=np.float32),
        step_seconds=np.sum(list(rows.values()), axis=0),
        step_phases=rows,
        interruptions=[
            Interruption(step=step, at=0.0, signal="SIGUSR2", lost_seconds=1.0)
            for step in resumed_at
        ],
    )


def measured(*ranks: RankResult, warmup: int = 0) -> tuple[dict[str, float], Window]:
    """Return the numbers of a trial with these ranks, and its window."""
    cell = replace(RECORD.trial.cell, warmup=warmup)
    record = replace(RECORD, trial=replace(RECORD.trial, cell=cell))
    window = measured_window(ranks, cell)
    return trial_numbers(record, ranks, window), window


def test_ranks_share_a_batch_and_the_slowest_decides() -> None:
    ranks = [
        rank(0, {"forward": [1.0] * 40, "communication": [3.0] * 40}),
        rank(1, {"forward": [3.0] * 40, "communication": [1.0] * 40}),
    ]
    numbers, window = measured(*ranks)
    assert numbers[RATE] == pytest.approx(64 / 4)
    assert numbers["step_time_p50_ms"] == pytest.approx(4000)
    assert (numbers["forward_share"], numbers["communication_share"]) == (0.5, 0.5)
    assert numbers["skew"] == 0.5
    assert straggler_notes(ranks, window) == [
        "straggler: the other ranks wait 50% of their time for rank 1 on node1"
    ]
    assert (window.mask.sum(), window.settled) == (40, True)


def test_who_is_slowest_is_unknown_where_communication_is() -> None:
    for ranks in (
        [rank(0, {"forward": [1.0] * 40}), rank(1, {"forward": [3.0] * 40})],
        [rank(0, {"forward": [1.0] * 40, "communication": [3.0] * 40})],
    ):
        numbers, window = measured(*ranks)
        assert "skew" not in numbers
        assert straggler_notes(ranks, window) == []


def test_steps_that_a_loader_has_fetched_for_in_a_pause_are_not_measured() -> None:
    """Every tenth step is evaluated after, and the next two steps find their batches ready."""
    seconds = [0.5 if step % 10 < 2 else 1.0 for step in range(40)]
    refilled = [step for step in range(40) if step % 10 < 2]
    numbers, window = measured(replace(rank(0, {"forward": seconds}), refilled_steps=refilled))
    assert numbers[RATE] == pytest.approx(64)
    assert window.mask.sum() == 32


def test_where_phases_are_sampled_throughput_is_of_the_other_steps() -> None:
    """To time phases makes a step slower, here by half."""
    seconds = np.where(np.arange(40) % 10 == 0, 1.5, 1.0)
    phases = np.where(seconds > 1, 1.5, np.nan).tolist()
    sampled = replace(rank(0, {"forward": phases}), step_seconds=seconds)
    numbers, window = measured(sampled, warmup=5)
    assert numbers[RATE] == pytest.approx(64)
    assert window.mask.sum() == 36 - 5
    assert (numbers["forward_share"], numbers["phase_steps"]) == (1.0, 3)
    mostly = replace(rank(0, {"forward": [1.0] * 36 + [np.nan] * 4}), step_seconds=np.ones(40))
    numbers, window = measured(mostly)
    assert (window.mask.sum(), numbers["phase_steps"]) == (40, 36)


def test_warm_up_is_in_no_number() -> None:
    phases = {"forward": [5.0] * 10 + [1.0] * 30, "optimizer": [0.0] * 10 + [1.0] * 30}
    numbers, window = measured(rank(0, phases))
    assert np.flatnonzero(window.mask).tolist() == list(range(10, 40))
    assert numbers[RATE] == pytest.approx(32)
    assert (numbers["forward_share"], numbers["optimizer_share"]) == (0.5, 0.5)


@pytest.mark.parametrize("at", [[], [70], [40, 47, 120]], ids=str)
def test_interruptions_do_not_bias_throughput(at: list[int]) -> None:
    rng = np.random.default_rng(0)
    seconds = np.exp(rng.normal(0, 0.03, 200))
    for start in [0, *at]:
        seconds[start : start + 15] *= 3  # compiling, and caches that are cold
    assert seconds.mean() > 1.1
    numbers, _ = measured(rank(0, {"forward": seconds.tolist()}, tuple(at)), warmup=5)
    assert numbers[RATE] == pytest.approx(64, rel=0.02)


@pytest.mark.parametrize("slower", [0.0, 0.3])
def test_all_steps_of_a_script_after_its_warmup_are_measured(slower: float) -> None:
    """Whether the step in which it evaluates is among them does not depend on noise."""
    cell = RECORD.trial.cell
    script = replace(cell.workload, uses="train.py", arguments=[])
    cell = replace(cell, workload=script, warmup=10)
    record = replace(RECORD, trial=replace(RECORD.trial, cell=cell))
    seconds = [1.0 + slower] * 60 + [50.0] + [1.0] * 59
    ranks = [rank(0, {"forward": seconds})]
    window = measured_window(ranks, cell)
    assert np.flatnonzero(window.mask).tolist() == list(range(10, 120))
    assert window.settled is not bool(slower)
    numbers = trial_numbers(record, ranks, window)
    assert numbers["throughput_steps_per_s"] == pytest.approx(110 / sum(seconds[10:]))
    assert RATE not in numbers
    ranks = [replace(ranks[0], samples_per_step=8.0)]  # as it counts or reports them
    assert trial_numbers(record, ranks, window)[RATE] == pytest.approx(880 / sum(seconds[10:]))


def telemetry(power: float, foreign: float, **shares: float) -> Telemetry:
    readings = {"gpu_power_w": [power, power], "gpu_foreign_processes": [0, foreign]}
    readings["gpu_sm_clock_mhz"] = [1500, np.nan]
    arrays = {name: np.array(values) for name, values in readings.items()}
    return Telemetry(readings=arrays, shares={"cpu_steal": 0.5, "host_cpu": 1.0, **shares})


def test_tokens_are_those_of_all_samples() -> None:
    record = make_record()
    assert record.rank0 is not None
    rank0 = replace(record.rank0, tokens_per_sample=32.0)
    numbers = with_ranks(record, record.ranks, rank0=rank0).numbers
    assert numbers["throughput_tokens_per_s"] == pytest.approx(32 * record.numbers[RATE])
    assert "throughput_tokens_per_s" not in record.numbers


def test_telemetry_is_that_of_all_ranks() -> None:
    record = make_record()
    first = replace(record.ranks[0], telemetry=telemetry(300, 2))
    second = replace(first, telemetry=telemetry(200, 1))
    numbers = with_ranks(record, [first, second]).numbers
    assert (numbers["gpu_power_w"], numbers["cpu_steal"]) == (250, 0.5)
    assert numbers["gpu_sm_clock_mhz"] == numbers["gpu_sm_clock_highest_mhz"] == 1500
    assert numbers["gpu_foreign_processes"] == 2
    assert numbers["joules_per_sample"] == pytest.approx(500 / numbers[RATE])
    assert not {"gpu_utilization", "host_cpu"} & set(numbers)
    unknown = replace(second, telemetry=Telemetry())
    numbers = with_ranks(record, [first, unknown]).numbers
    assert not {"joules_per_sample", "gpu_power_w", "cpu_steal"} & set(numbers)


def undisturbed() -> Record:
    """Return the record of a trial of 100 s, of which it trained 70."""
    record = make_record()
    phases = {"train": 70.0, "evaluate": 6.0}
    rank = replace(record.ranks[0], phases=phases, entered_at=1024.0)
    return with_ranks(record, [rank], started=1000.0, ended=1100.0)


def test_attempts_count_and_the_pauses_between_them_do_not() -> None:
    """Stopped after 40 s, and continued when the user came back 900 s later."""
    numbers = undisturbed().numbers
    assert (numbers["wall_s"], round(numbers["ettr"], 6)) == (100.0, 0.7)
    stopped = Failure(kind="Interrupted", message="stopped", began_at=60.0, at=100.0)
    record = with_ranks(undisturbed(), previous_failures=(stopped,))
    assert (record.numbers["wall_s"], round(record.numbers["ettr"], 6)) == (140.0, 0.5)
    # Measured again from its beginning.
    invalid = Failure(kind="Invalid", message="contention", at=990.0, began_at=900.0)
    assert with_ranks(undisturbed(), previous_failures=(stopped, invalid)).numbers == numbers


def test_a_trial_that_was_interrupted_is_as_long_as_its_phases() -> None:
    record = undisturbed()
    assert whole_seconds(record) == 100.0
    saved = Interruption(step=5, at=962.0, signal="SIGUSR2", lost_seconds=38.0)
    resumed = with_ranks(record, [replace(record.ranks[0], interruptions=[saved])])
    assert whole_seconds(replace(resumed, started=1090.0)) == pytest.approx(100.0)
    assert resumed.numbers["harness.interruptions_lost_s"] == 38.0


def test_numbers_of_a_newer_harness_come_last() -> None:
    assert in_order(["zeal", "final_loss", "wall_s"])[-1] == "zeal"
