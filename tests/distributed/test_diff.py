"""`harness diff` and `harness parity` with real ranks: where two runs part, and what rounding explains."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.parity import read_parity
from harness.core.paths import Results
from harness.reproduce.tracing import TracedTrial, Tracer, diff_traced
from harness.sweep.cell import Trial
from harness.sweep.cluster import Profile
from harness.sweep.sweep import load_sweep
from tests.support import tokens
from tests.support.commands import harness
from tests.support.running import line_sweep, local_profile

pytestmark = pytest.mark.distributed

MUTANT = f"{Path(__file__).parents[1] / 'support' / 'mutants.py'}:MutantLine"


def test_buckets_of_four_ranks_part_in_the_all_reduce(tmp_path: Path) -> None:
    axes = {"strategy": "ddp", "world_size": 4}
    buckets = axes | {"ddp.bucket_cap_mb": 0.0001}
    workloads = {"one bucket": {"axes": axes}, "small buckets": {"axes": buckets}}
    sweep = load_sweep(line_sweep(tmp_path, workloads, length={"steps": 4}))
    tracer = Tracer(tmp_path, Profile(slots=4, device="cpu"), 300.0)
    a, b = (
        TracedTrial(trial=Trial(cell=cell, seed=0), base_folder=sweep.base_folder)
        for cell in sweep.cells
    )
    diff = diff_traced(tracer, a, b)
    assert diff.tensors is not None
    divergence = diff.tensors.divergence
    assert divergence is not None
    assert divergence.earliest.mark.phase == "all-reduce"
    assert max(difference.largest_ulp or 0 for difference in diff.differences) > 0


def test_the_command_says_that_equal_cells_are_the_same(tmp_path: Path) -> None:
    axes = {"strategy": "ddp", "world_size": 2}
    workloads = {"a": {"axes": axes}, "b": {"axes": axes | {"num_workers": 2}}}
    path = line_sweep(tmp_path, workloads, length={"steps": 4})
    profile = local_profile(tmp_path)
    result = harness("diff", str(path), "--cluster", str(profile))
    assert result.code == 0, result.err
    assert "same bits: " in result.out
    result = harness("diff", str(path), "workload=a", "--cluster", str(profile))
    assert result.code == 2
    assert "found 1 cell; allowed: two" in result.err


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
