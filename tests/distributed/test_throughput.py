"""Throughput that is right: steps of a known length give the known global samples/s at any world size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.running import by_label, line_sweep, run

pytestmark = [pytest.mark.distributed, pytest.mark.alone]

STEP = 0.25  # seconds from step to step, kept by the workload itself against a timetable
BATCH = 32


def test_known_step_time_gives_the_true_throughput_within_1_percent(tmp_path: Path) -> None:
    options = {"step_seconds": STEP, "samples": 1024}  # one epoch: an evaluation would eat into the timetable
    variants: dict[str, dict[str, Any]] = {
        "1": {"options": options},
        "2": {"options": options, "axes": {"strategy": "ddp", "world_size": 2}},
        "4": {"options": options, "axes": {"strategy": "ddp", "world_size": 4}},
    }
    records = by_label(run(line_sweep(tmp_path, variants, length={"steps": 26}, warmup=6), slots=4))
    for label, record in records.items():
        assert record.summary is not None, f"{label} ranks: {record.failure}"
        assert record.summary.window_steps == 20
        assert record.summary.throughput == pytest.approx(BATCH / STEP, rel=0.01), f"{label} ranks"
        assert record.summary.step_p50 == pytest.approx(STEP, rel=0.1)  # one late step makes the next one short
