"""The self-test passes on real ranks, and every known wrong way to measure fails it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from harness.core.paths import Results
from harness.launch import selftest
from harness.measure.selftest import check_record
from harness.measure.summary import summarize, unpack
from harness.records.across import in_memory_ranks
from harness.records.record import RankResult, Record
from harness.records.series import Series
from harness.spec import sweep as spec
from harness.spec.cluster import Profile
from harness.spec.validity import ValidityRules
from tests.support.running import RecordCollector

pytestmark = pytest.mark.distributed

# Short steps first, as they cost less. Where other programs wake sleepers up late by a millisecond,
# this is 1% of a short step's phases: then steps of the ready sweep's length. A wrong measurement is
# wrong at both.
STEP_SECONDS = (0.2, 0.5)
WORLD_SIZES = (1, 4)
# A hypervisor may give the machine's time to others for longer than the usual three attempts take.
PROFILE = Profile(device="cpu", validity=ValidityRules(reruns=10))


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Record]:
    """Run the self-test until all checks pass, and return the last records by world size."""
    for step_seconds in STEP_SECONDS:
        measured = _self_test(tmp_path_factory.mktemp("selftest"), step_seconds)
        if all(record.status == "done" and not _off(record) for record in measured):
            break
    failures = [record.failure or record.violations for record in measured]
    assert [record.status for record in measured] == ["done"] * len(WORLD_SIZES), failures
    return {record.trial.cell.axes.world_size: record for record in measured}


def _self_test(folder: Path, step_seconds: float) -> list[Record]:
    """Run the self-test with steps of this length."""
    content = yaml.safe_load(spec.ready_sweeps()["selftest"].read_text(encoding="utf-8"))
    content["workloads"]["timetable"]["options"] = {"step_seconds": step_seconds}
    path = folder / "selftest.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(spec, "ready_sweeps", lambda: {"selftest": path})
        return selftest.run(
            Results(folder / "results"), PROFILE, list(WORLD_SIZES), RecordCollector()
        )


def steps(record: Record) -> Any:
    """Seconds of every step at its slowest rank."""
    return np.stack([unpack(rank.step_seconds) for rank in record.ranks]).max(axis=0)


def window(record: Record) -> Any:
    assert record.summary is not None
    return steps(record)[-record.summary.window_steps :]


def data_wait(record: Record) -> float:
    """Seconds of a step."""
    assert record.summary is not None
    return record.summary.shares["data_wait"] * float(window(record).mean())


def _off(record: Record) -> set[str]:
    """The quantities that did not come back."""
    return {check.quantity for check in check_record(record) if not check.passed}


def batch(record: Record) -> int:
    return record.trial.cell.axes.batch_size


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_known_times_come_back_within_1_percent(
    records: dict[int, Record], world_size: int
) -> None:
    checks = check_record(records[world_size])
    assert len(checks) == (4 if world_size == 1 else 6)
    assert [check for check in checks if not check.passed] == []


THROUGHPUT: dict[str, Callable[[Record], float]] = {
    "the volume of the whole run over the mean step": lambda r: (
        len(steps(r)) * batch(r) / steps(r).mean()
    ),
    "ranks averaged instead of summed": lambda r: (
        batch(r) / r.trial.cell.axes.world_size / window(r).mean()
    ),
    "warm-up counted": lambda r: batch(r) / steps(r).mean(),
    "the fastest and the slowest step dropped": lambda r: (
        batch(r) / np.sort(window(r))[1:-1].mean()
    ),
    "the median step": lambda r: batch(r) / np.median(window(r)),
    "the mean of each step's rate": lambda r: float((batch(r) / window(r)).mean()),
    "one reading at an arbitrary step": lambda r: batch(r) / steps(r)[17],
    "waits for data left out": lambda r: batch(r) / (window(r).mean() - data_wait(r)),
}


@pytest.mark.parametrize("name", THROUGHPUT)
def test_a_wrong_way_to_compute_throughput_is_caught(records: dict[int, Record], name: str) -> None:
    record = records[4]
    assert record.summary is not None
    mutant = replace(record, summary=replace(record.summary, throughput=THROUGHPUT[name](record)))
    assert _off(mutant) - _off(record) == {"throughput (samples/s)"}


def _moved(record: Record, source: str, target: str) -> Record:
    """As if the clock had put one phase down to another."""

    def move(rank: RankResult) -> RankResult:
        phases = {name: unpack(series) for name, series in rank.step_phases.items()}
        phases[target] = phases[target] + phases.pop(source)
        phases[source] = np.zeros_like(phases[target])
        return replace(
            rank, step_phases={name: Series.pack(values) for name, values in phases.items()}
        )

    ranks = [move(rank) for rank in record.ranks]
    assert record.rank0 is not None
    return replace(
        record,
        ranks=in_memory_ranks(ranks),
        summary=summarize(ranks, record.rank0, batch(record), 0),
    )


@pytest.mark.parametrize(
    ("source", "target"),
    [("data_wait", "forward"), ("communication", "backward"), ("communication", "optimizer")],
)
def test_a_phase_put_down_to_another_is_caught(
    records: dict[int, Record], source: str, target: str
) -> None:
    assert any(
        source.replace("_", " ") in quantity
        for quantity in _off(_moved(records[4], source, target))
    )


def test_the_straggler_is_named(records: dict[int, Record]) -> None:
    summary = records[4].summary
    assert summary is not None
    assert summary.slowest is not None
    assert summary.slowest.rank == 0
    assert summary.slowest.host == records[4].ranks[0].host
