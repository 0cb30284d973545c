"""The phases of a step are measured under every strategy, and add up to the step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.records.record import Record
from tests.support.running import by_label, line_sweep, run

pytestmark = pytest.mark.distributed

VARIANTS: dict[str, dict[str, Any]] = {
    "single": {},
    "ddp": {"axes": {"strategy": "ddp", "world_size": 2, "grad_accum_steps": 2}},
    "fsdp2": {"axes": {"strategy": "fsdp2", "world_size": 2}},
}
# On the CPU, nothing is moved to a device.
PHASES_OF_ONE_RANK = {"data_wait", "forward", "backward", "optimizer"}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    return by_label(
        run(line_sweep(tmp_path_factory.mktemp("phases"), VARIANTS, length={"steps": 40}))
    )


@pytest.mark.parametrize("label", VARIANTS)
def test_phases_add_up_to_steps(records: dict[str, Record], label: str) -> None:
    record = records[label]
    assert record.failure is None, record.failure
    expected = set(PHASES_OF_ONE_RANK)
    if label != "single":
        expected.add("communication")
    for rank in record.ranks:
        assert rank.step_seconds is not None
        assert set(rank.step_phases) == expected
        phases = {name: series.astype(np.float64) for name, series in rank.step_phases.items()}
        known = np.isfinite(phases["data_wait"])  # else of a segment whose phases were not timed
        assert known.any()
        together = np.sum(list(phases.values()), axis=0)[known]
        np.testing.assert_allclose(together, rank.step_seconds[known], rtol=1e-5)
        assert all((seconds[known] > 0).all() for seconds in phases.values())


@pytest.mark.parametrize("label", VARIANTS)
def test_what_comes_before_and_after_training_has_phases_of_its_own(
    records: dict[str, Record], label: str
) -> None:
    phases = records[label].phases
    assert {
        "startup",
        "data",
        "build",
        "loader",
        "warmup",
        "train",
        "evaluate",
        "digest",
    } <= set(phases)
    duration = records[label].ended - records[label].started
    # Each phase is that of the rank that took longest, so the sum may be a little more.
    assert 0 < sum(phases.values()) < duration * 1.05
