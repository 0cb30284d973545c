"""`harness parity` as a command: real ranks, its exit code, its JSON and the file it leaves."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.parity import read_parity
from harness.core.paths import Results
from tests.support import tokens
from tests.support.commands import harness
from tests.support.running import line_sweep

pytestmark = pytest.mark.distributed


def test_two_ranks_compute_what_one_does_but_for_the_order_of_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = line_sweep(
        tmp_path,
        {"line": {"axes": {"batch_size": 32}}},
        include=[{"strategy": "single"}, {"strategy": "ddp", "world_size": 2}],
        length={"steps": 12},
        evaluate={"steps": 5},
    )
    results = Results(tmp_path / "results")
    ended = harness(
        "parity", str(path), "--at-least", "rounding", "--json", "--results", str(results.path)
    )
    assert ended.code == 0, ended.err
    (cell,) = json.loads(ended.out)["cells"]
    assert cell["rung"] == "rounding"
    assert cell["first_difference"]["phase"] == "all-reduce"
    assert cell["differing"] == ["strategy", "world_size"]
    assert cell["worst"]["step"] <= 12
    parity = read_parity(results.sweep_folder("line"))
    assert parity is not None
    assert (parity.references[0].control, parity.references[0].fp64_problem) == (None, None)
    assert parity.cells[0].cell.id == cell["cell"]["id"]
    assert not list(tmp_path.glob("harness-parity-*"))


def test_rounding_does_not_explain_a_loss_over_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    entries: dict[str, dict[str, Any]] = {}
    for name in ("Unweighted", "Weighted"):
        entries[name] = {"uses": f"{tokens.__file__}:{name}"}
    cells = [{"strategy": "single"}, {"strategy": "single", "grad_accum_steps": 4}]
    path = line_sweep(tmp_path, entries, include=cells, length={"steps": 4})
    ended = harness("parity", str(path), "--results", str(tmp_path / "results"))
    assert ended.code == 3, ended.err
    unweighted, weighted = [
        line for line in ended.out.splitlines() if line.startswith("grad_accum_steps=4")
    ]
    assert "rounding" not in unweighted
    assert "rounding" in weighted
