"""`harness audit` turns two settings of the test workload, and measures what one of them costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import harness
from tests.support.running import line_sweep

pytestmark = pytest.mark.distributed


@pytest.mark.nightly
def test_two_settings_and_a_cost(tmp_path: Path) -> None:
    path = line_sweep(
        tmp_path,
        {"line": {"options": {"dropout": 0.2}}},
        axes={"strategy": "ddp", "world_size": 2},
        include=[{"num_workers": 1}, {"deterministic": True}],
        length={"steps": 4},
        evaluate={"steps": 4},
    )
    ended = harness("audit", str(path), "--budget", "0.5s", "--json")
    assert (ended.code, ended.err) == (0, "")
    content = json.loads(ended.out)
    (reference,) = content["parity"]["references"]
    assert reference["control"] is None  # run again, it computes the same bits
    workers, deterministic = content["parity"]["cells"]
    assert (workers["answer"], workers["turned"]) == ("bitwise", {"num_workers": [0, 1]})
    assert deterministic["turned"] == {"deterministic": [False, True]}
    # Some CPUs take another path through a product for it.
    assert deterministic["answer"] in ("bitwise", "within tolerance")
    (tax,) = content["taxes"]
    assert tax["setting"] == "deterministic"
    assert tax["measured"]["pairs"] >= 1
