"""`harness audit` on two settings of the test workload: one keeps all bits, one does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import harness
from tests.support.running import line_sweep

pytestmark = pytest.mark.distributed


def test_two_settings_and_a_cost(tmp_path: Path) -> None:
    path = line_sweep(
        tmp_path,
        {"line": {"options": {"dropout": 0.2}}},
        axes={"strategy": "ddp", "world_size": 2},
        include=[{"deterministic": True}, {"world_size": 1}],
        length={"steps": 4},
        evaluate={"steps": 4},
    )
    ended = harness("audit", str(path), "--budget", "0.5", "--json")
    assert (ended.code, ended.err) == (0, "")
    content = json.loads(ended.out)
    (reference,) = content["parity"]["references"]
    assert reference["control"] is None  # run again, it computes the same bits
    same, other = content["parity"]["cells"]
    assert (same["answer"], same["turned"]) == ("bitwise", {"deterministic": [False, True]})
    assert (other["answer"], other["turned"]) == ("neither", {"world_size": [2, 1]})
    assert "RNG" in other["causes"]  # each rank has a dropout of its own
    (tax,) = content["taxes"]
    assert tax["setting"] == "deterministic"
    assert tax["measured"]["same_bits"]
    assert tax["measured"]["pairs"] >= 1
