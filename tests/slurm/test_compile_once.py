"""Tasks on two nodes of a real Slurm take the code that one process has compiled for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.paths import Results
from harness.training.compile_cache import ROOT_VARIABLE
from tests.slurm.sweeps import read_records, slurm_profile
from tests.support.commands import harness
from tests.support.running import line_sweep

pytestmark = [
    pytest.mark.slurm, pytest.mark.distributed, pytest.mark.nightly, pytest.mark.timeout(1200)
]  # fmt: skip


@pytest.mark.usefixtures("slurm")
def test_no_node_compiles_a_graph_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their cache is new, so they find nothing there that another test has compiled."""
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path / "node"))
    axes = {"strategy": "ddp", "world_size": 2, "execution": "compile", "cache": "once"}
    sweep = line_sweep(tmp_path, {"line": {}}, length={"steps": 4}, axes=axes, seeds=[0, 1])
    results = Results(tmp_path / "results")
    folder = ["--results", str(results.path)]
    submitted = harness("submit", str(sweep), "--cluster", str(slurm_profile(tmp_path)), *folder)
    assert (submitted.code, submitted.err) == (0, ""), submitted.out
    assert harness("status", "line", "--watch", *folder).code == 0
    records = read_records(results.path)
    assert len(records) == 2
    for record in records.values():
        assert record.failure is None, record.failure
        assert {rank.host for rank in record.ranks} == {"n1", "n2"}
        for rank in record.ranks:
            assert rank.compiled is not None
            assert rank.compiled.cache_hits > 0
            assert rank.compiled.cache_misses == 0
    (file,) = (results.runs / "line" / "compiled").iterdir()
    assert file.suffix == ".zip"
