"""One process compiles a cell's code, all ranks take it, and train to the same bits."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.records.record import Record
from harness.training import compile_cache
from tests.support.running import line_sweep, run

pytestmark = [pytest.mark.distributed, pytest.mark.nightly, pytest.mark.timeout(900)]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_no_rank_compiles_a_graph_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """The second trial finds an empty cache, as on another node, and the code of the first."""
    monkeypatch.setenv(compile_cache.ROOT_VARIABLE, str(tmp_path / "node"))

    def train(cache: str) -> Record:
        """Train four steps with a cache of that kind."""
        axes = {"strategy": strategy, "world_size": 2, "execution": "compile", "cache": cache}
        sweep = line_sweep(tmp_path, {"line": {}}, length={"steps": 4}, axes=axes)
        (*_, record) = run(sweep, redo="all")
        assert record.failure is None, record.failure
        shutil.rmtree(tmp_path / "node")
        return record

    warm, first, second = [train(cache) for cache in ("warm", "once", "once")]
    compiled = [trial.ranks.across.compiled for trial in (warm, first, second)]
    counts = []
    for of_ranks in compiled:
        assert of_ranks is not None
        counts.append((of_ranks.cache_hits > 0, of_ranks.cache_misses > 0))
    assert counts == [(False, True), (True, False), (True, False)]
    digests = {trial.rank0.parameter_digest for trial in (warm, first, second) if trial.rank0}
    assert len(digests) == 1
    (path,) = (tmp_path / "results" / "runs" / "line" / "compiled").iterdir()
    assert path.suffix == ".zip"
