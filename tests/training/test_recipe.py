"""The ready sweep `finetune`, from a folder as transformers saves it, in this process."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from harness.core.errors import BadInput
from harness.core.paths import TrialFolder
from harness.records.assignment import Assignment, write_assignment
from harness.records.record import RankResult
from harness.sweep.sweep import Sweep, load_sweep, ready_sweeps
from harness.training import worker
from harness.training.state import TrainingState
from tests.support.distilbert import save_small_model
from tests.support.training import SINGLE_RANK
from workloads.tickets import tickets

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes:UserWarning"),
]

TICKETS = tickets(240, seed=3)


@pytest.fixture
def pretrained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the name, in the working directory, of a folder with a small model and its tokenizer."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "small-bert"
    save_small_model(folder, [text for text, _ in TICKETS])
    with (tmp_path / "texts.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *TICKETS])
    return Path(folder.name)


def load(pretrained: Path, *sets: str) -> Sweep:
    """Return the ready sweep with small batches, on the data of the test."""
    sets = (f"options.pretrained={pretrained}", "batch_size=16", "num_threads=1", *sets)
    return load_sweep(ready_sweeps()["finetune"], sets, ["texts.csv"])


def test_the_recipe_fine_tunes_a_local_folder(pretrained: Path, tmp_path: Path) -> None:
    (cell,) = load(pretrained, "options.size=null").cells
    assert (cell.axes.precision, cell.axes.num_workers) == ("bf16", 4)
    trial = load(pretrained, "options.size=null").trials()[0]
    assignment = Assignment(trial=trial, base_folder="", checkpoint="best", device="cpu")
    folder = TrialFolder(tmp_path / "trial")
    write_assignment(folder.assignment_path, assignment)
    entered = RankResult(rank=0, host="node1", entered_at=0.0)
    result = worker.train(folder, SINGLE_RANK, entered, TrainingState())
    report = result.rank0
    assert report is not None
    assert report.target.name == "macro_f1"
    steps = [evaluation.step for evaluation in report.evaluations]
    assert steps == [report.steps_per_epoch * epoch for epoch in (1, 2, 3)]
    assert all(evaluation.validation for evaluation in report.evaluations)
    assert report.stop is not None


def test_a_folder_that_is_not_there_is_named(pretrained: Path) -> None:
    with pytest.raises(
        BadInput,
        match="elsewhere: found No such file or directory; allowed: a folder with complete",
    ):
        load(Path("../elsewhere"), "options.size=null")
