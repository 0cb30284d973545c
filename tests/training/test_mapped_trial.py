"""Trials on data that stays in its files, from the sweep to what a rank leaves."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from harness.core.errors import DataChanged, NotApplied
from harness.core.paths import TrialFolder
from harness.records.assignment import Assignment, write_assignment
from harness.records.record import RankResult
from harness.spec import sweep as spec
from harness.training import worker
from harness.training.state import TrainingState
from harness.training.train import Trainer
from tests.support.training import SINGLE_RANK, make_assignment, make_trainer
from tests.workloads.test_mapped import COUNTS, FORMATS
from workloads.base import Splits
from workloads.mapped import map_npy
from workloads.mlp import MLP
from workloads.options import MLPOptions
from workloads.sources import Digits, Mapped


def run(folder: Path, data: dict[str, Any], **axes: Any) -> RankResult:
    """Train a small MLP for two epochs in this process."""
    folder.mkdir(exist_ok=True)
    path = folder / "sweep.yaml"
    document = {
        "name": "mapped",
        "workloads": {"mlp": {"data": data, "options": {"hidden": [4]}}},
        "axes": {"batch_size": 8, **axes},
        "length": {"epochs": 2},
    }
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    sweep = spec.load_sweep(path)
    trial_folder = TrialFolder(folder / f"trial-{len(list(folder.iterdir()))}")
    trial_folder.path.mkdir()
    assignment = Assignment(
        trial=sweep.trials()[0], base_folder=str(sweep.base_folder), device="cpu"
    )
    write_assignment(trial_folder.assignment_path, assignment)
    entered = RankResult(rank=0, host="node1", pid=1, entered_at=0.0)
    return worker.train(trial_folder, SINGLE_RANK, entered, TrainingState())


def test_data_that_changes_while_a_trial_trains_fails_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for split in COUNTS:
        FORMATS["npy"](tmp_path, split)
    labels = tmp_path / "train-labels.npy"

    class Disturbed(Trainer):
        def run(self, until: int | None = None) -> None:
            super().run(until)
            np.save(labels, 1 - np.load(labels))

    monkeypatch.setattr(worker, "Trainer", Disturbed)
    with pytest.raises(
        DataChanged, match=r"^data\.path: .*: found SHA-256 \w{12}; allowed: \w{12}"
    ):
        run(tmp_path / "runs", {"source": "mapped", "path": str(tmp_path)})


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.parametrize(("form", "order"), [("npy", "keyed"), ("shards", "shards")])
def test_loader_workers_change_nothing(tmp_path: Path, form: str, order: str) -> None:
    for split in COUNTS:
        FORMATS[form](tmp_path, split)
    data = {"source": "mapped", "path": str(tmp_path)}
    alone, helped = (run(tmp_path / "runs", data, num_workers=workers) for workers in (0, 2))
    assert alone.rank0 is not None
    assert helped.rank0 is not None
    assert alone.loader_workers == 0
    assert helped.loader_workers > 0
    assert alone.rank0.parameter_digest == helped.rank0.parameter_digest
    assert alone.order_sums == helped.order_sums
    assert alone.rank0.sample_order == order
    page_cache = alone.rank0.page_cache
    assert page_cache is not None
    files = list(tmp_path.glob("t*-*"))
    assert (page_cache.files, page_cache.bytes) == (
        len(files),
        sum(path.stat().st_size for path in files),
    )


@pytest.mark.parametrize("form", ["npy", "arrow", "shards"])
def test_what_is_in_memory_of_files_is_no_state_of_the_training(tmp_path: Path, form: str) -> None:
    """Otherwise a trial would not go on after an interruption, and all of a file would be digested."""
    for split in COUNTS:
        FORMATS[form](tmp_path, split)
    workload = MLP(MLPOptions(hidden=(4,)), Mapped(path=tmp_path, window=1))
    trainer = make_trainer(make_assignment(steps=8, batch_size=8), workload, tmp_path / "trial")
    trainer.run()
    assert trainer.parts.workload_state.missing_from_checkpoints() is None
    samples = trainer.parts.splits.train
    copy = pickle.loads(pickle.dumps(samples))
    assert torch.equal(copy.batch([3, 30])[0], samples.batch([3, 30])[0])


def test_the_rows_of_a_mapped_file_are_not_pickled(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.zeros((1000, 100)))
    assert len(pickle.dumps(map_npy(tmp_path / "rows.npy"))) < 1000


def test_the_page_cache_of_files_that_no_setting_names_is_not_asked_for(tmp_path: Path) -> None:
    """Nobody could drop them from it; a cold cell would be compared with a warm one."""
    for split in COUNTS:
        FORMATS["npy"](tmp_path, split)
    mapped = MLP(MLPOptions(hidden=(4,)), Mapped(path=tmp_path, window=1))

    class Hidden(MLP):
        def splits(self) -> Splits:
            return mapped.splits()

    assignment = make_assignment(steps=1, batch_size=8, page_cache="warm")
    with pytest.raises(
        NotApplied, match=r"page_cache=warm had no effect: found no file in the sett"
    ):
        make_trainer(assignment, Hidden(MLPOptions(hidden=(4,)), Digits()), tmp_path / "trial")


def test_the_page_cache_of_samples_in_memory_is_not_asked_for(tmp_path: Path) -> None:
    with pytest.raises(NotApplied, match=r"^page_cache=cold had no effect: TensorSamples are in"):
        run(tmp_path, {"source": "digits"}, page_cache="cold")
