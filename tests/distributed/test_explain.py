"""`harness explain` on causes that were planted: each is the first of its list."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.gate import explain
from harness.measure.step_parts import COMPILED, COPIES, DATA_WAIT, SYNCHRONIZATION
from tests.support.commands import harness
from tests.support.running import processes_below
from tests.support.stacks import make_environment

pytestmark = pytest.mark.distributed

PLANTED = Path(__file__).parents[1] / "support" / "planted.py"
SLOWER_PACKAGE = 0.003  # seconds a step
TWO_RANKS = {"strategy": "ddp", "world_size": 2}


def explained(
    folder: Path,
    *arguments: str,
    budget: str = "30s",
    options: Mapping[str, Any] | None = None,
    **keys: Any,
) -> dict[str, Any]:
    """Return what `harness explain` says of a sweep of the planted workload."""
    shutil.copy(PLANTED, folder / "planted.py")
    workload = {
        "uses": "planted.py:Planted",
        "data": {"source": "digits"},
        "options": options or {},
    }
    content = {
        "name": "planted",
        "workloads": {"planted": workload},
        "length": {"steps": 100},
        **keys,
    }
    sweep = folder / "sweep.yaml"
    sweep.write_text(yaml.safe_dump(content), encoding="utf-8")
    ended = harness("explain", *arguments, str(sweep), "--budget", budget, "--json")
    assert ended.code == 0, ended.err
    explanation: dict[str, Any] = json.loads(ended.out)
    return explanation


def planted(folder: Path, plant: str, axes: dict[str, Any], budget: str = "30s") -> dict[str, Any]:
    """Return what is said of a cell with a planted cause next to one without."""
    return explained(
        folder,
        "options.plant=nothing",
        f"options.plant={plant}",
        budget=budget,
        matrix={"options.plant": ["nothing", plant]},
        axes=axes,
    )


@pytest.mark.nightly
def test_an_explanation_adds_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "FEWEST_PAIRS", 2)
    explanation = planted(tmp_path, "operator", {}, budget="1s")
    parts = {part["name"]: part for part in explanation["parts"]}
    cumsum = parts["aten::cumsum"]
    assert (cumsum["a_calls"], round(cumsum["b_calls"])) == (0, 1)
    assert cumsum["cause"] == "0 → 1 calls a step, of 512×512"
    together = math.fsum(part["difference"] for part in [*parts.values(), explanation["left_over"]])
    assert together == pytest.approx(explanation["whole"]["difference"])
    assert explanation["pairs"] == 2
    assert processes_below(tmp_path) == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("plant", "axes", "first"),
    [
        ("copy", {}, COPIES),
        ("operator", {}, "aten::cumsum"),
        ("synchronization", {}, SYNCHRONIZATION),
        ("loader", {}, DATA_WAIT),
        ("graph break", {"execution": "compile"}, COMPILED),
        ("all-reduce", TWO_RANKS, "all_reduce"),
    ],
)
def test_a_planted_cause_is_first(
    tmp_path: Path, plant: str, axes: dict[str, Any], first: str
) -> None:
    explanation = planted(tmp_path, plant, axes, budget="55s")
    part = explanation["parts"][0]
    assert part["name"] == first, explanation["parts"][:3]
    if plant != "graph break":  # a tenth of a millisecond, which is not certain in so few pairs
        assert part["low"] > 0
    if plant != "loader":
        assert part["b_calls"] > part["a_calls"]


@pytest.mark.nightly
def test_smaller_buckets_are_first(tmp_path: Path) -> None:
    explanation = explained(
        tmp_path,
        "bucket_cap_mb=0.5",
        "bucket_cap_mb=0.01",
        options={"hidden": [256] * 6},
        axes=TWO_RANKS,
        matrix={"bucket_cap_mb": [0.5, 0.01]},
    )
    part = explanation["parts"][0]
    assert part["name"] == "all_reduce", explanation["parts"][:3]
    assert part["b_calls"] > part["a_calls"]
    assert part["cause"].startswith("3 → 7 calls a step")
    assert "of the same" in part["cause"]


@pytest.mark.nightly
def test_a_slower_package_of_a_stack_is_first(tmp_path: Path) -> None:
    make_environment(tmp_path / "old")
    make_environment(tmp_path / "new", "2.0", seconds=SLOWER_PACKAGE)
    explanation = explained(
        tmp_path,
        "old",
        "new",
        "--stacks",
        budget="55s",
        options={"plant": "package"},
        stacks={"old": {"python": "old/bin/python"}, "new": {"python": "new/bin/python"}},
        axes={"stack": "old"},
    )
    assert (explanation["a_name"], explanation["b_name"]) == ("stack old", "stack new")
    part = explanation["parts"][0]
    assert part["name"] == "Python in forward", explanation["parts"][:3]
    assert part["low"] <= SLOWER_PACKAGE <= part["high"]
    assert part["low"] > 0
