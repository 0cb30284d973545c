"""The ready sweeps reach the accuracy they promise, on real data, run as a user would run them."""

from __future__ import annotations

import csv
import os
import random
from pathlib import Path
from statistics import fmean

import pytest
import torch

from harness.analysis.result import trial_row
from harness.core.paths import Results
from harness.records.files import read_record
from harness.records.record import Record
from harness.sweep.sweep import load_sweep, ready_sweeps
from tests.support.commands import harness
from tests.support.running import local_profile
from tests.support.tree import TOP
from workloads.distilbert_settings import read_rows

pytestmark = pytest.mark.accuracy

# Half as expensive where the CPU multiplies in it, and the accuracy is the same.
HAS_BF16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
PRECISION = "bf16" if HAS_BF16 else "fp32"
DATA = Path(os.environ.get("HARNESS_DATA", TOP.parent / "shared" / "data"))

TICKETS = """
workloads:
  distilbert:
    data: {source: csv, text: text, label: category}
    # A recipe for short training: small batches, no dropout.
    options: {sequence: 24, dropout: 0, lr: 0.0012, weight_decay: 0.1}
    axes: {batch_size: 32}
length: {epochs: 7}
checkpoint: best
"""


def run(tmp_path: Path, *arguments: str) -> list[Record]:
    """Run a sweep through the command line and return its trials' records.

    It has one thread, because other tests run beside it: two threads that wait for each other on
    shared cores take many times as long. The accuracy does not depend on it.
    """
    results = Results(tmp_path / "results")
    profile = local_profile(tmp_path)
    options = ["--set=num_threads=1", f"--cluster={profile}", "--results", str(results.path)]
    ended = harness("run", *arguments, *options)
    assert ended.code == 0, ended.err
    paths = results.sweep_folder(Path(arguments[0]).stem).record_paths()
    return [read_record(path) for path in paths]


def final(records: list[Record]) -> list[float]:
    """Return the target metrics of trials after their last step."""
    metrics = [trial_row(record).metric for record in records]
    return [metric for metric in metrics if metric is not None]


@pytest.fixture
def data() -> Path:
    if not DATA.is_dir():
        pytest.skip(f"no real data in {DATA} (HARNESS_DATA names another folder)")
    return DATA


@pytest.mark.nightly
@pytest.mark.timeout(2400)
def test_the_mlp_reaches_a_mean_of_95_percent_on_mnist(tmp_path: Path, data: Path) -> None:
    only = ["--set=exclude=[{workload: cnn}]", "--set=seeds=0,1", "--set=evaluate.epochs=8"]
    accuracies = final(run(tmp_path, "mnist", f"--data={data / 'mnist10k'}", *only))
    assert len(accuracies) == 2
    assert fmean(accuracies) >= 0.95


@pytest.mark.nightly
@pytest.mark.timeout(2400)
def test_the_cnn_reaches_98_percent_on_mnist(tmp_path: Path, data: Path) -> None:
    only = ["--set=exclude=[{workload: mlp}]", "--set=seeds=[0]", f"--set=precision={PRECISION}"]
    only += ["--set=length.epochs=7", "--set=evaluate.epochs=7"]  # once, at the end
    (accuracy,) = final(run(tmp_path, "mnist", f"--data={data / 'mnist10k'}", *only))
    assert accuracy >= 0.98


@pytest.mark.nightly
@pytest.mark.timeout(2400)
def test_a_distilbert_from_scratch_reaches_85_percent_on_tickets(
    tmp_path: Path, data: Path
) -> None:
    """On some classes of the data, and no longer than it takes: a validation set says when to stop.

    Fewer classes take fewer samples, and as many of each.
    """
    texts = write_subset(data / "banking77", tmp_path / "texts", classes=12)
    sweep = tmp_path / "tickets.yaml"
    sweep.write_text(TICKETS, encoding="utf-8")
    changes = [f"precision={PRECISION}", "data.validation=0.1", "evaluate.epochs=1"]
    changes.append("stop={goal: 0.88}")
    sets = [f"--set={change}" for change in changes]
    (record,) = run(tmp_path, str(sweep), f"--data={texts}", *sets)
    assert record.rank0 is not None
    final = record.rank0.evaluations[-1]
    assert final.metrics["accuracy"] >= 0.85
    assert final.metrics["macro_f1"] >= 0.85


def write_subset(source: Path, folder: Path, classes: int) -> Path:
    """Write the texts of some classes, drawn by a seed, and return their folder."""
    splits = {
        name: read_rows(source / name, "text", "category") for name in ("train.csv", "test.csv")
    }
    labels = sorted({label for _, label in splits["train.csv"]})
    drawn = set(random.Random(0).sample(labels, classes))
    folder.mkdir()
    for name, rows in splits.items():
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("text", "category"))
            writer.writerows(row for row in rows if row[1] in drawn)
    return folder


@pytest.mark.parametrize("name", ready_sweeps())
def test_every_ready_sweep_is_read(name: str, data: Path) -> None:
    digits, texts = data / "mnist10k", data / "banking77"
    data_options = {
        "mnist": [str(digits)],
        "tickets": [str(texts)],
        "finetune": [str(texts)],
        "matrix": [f"mlp={digits}", f"cnn={digits}", f"distilbert={texts}"],
    }
    columns = ["workloads.distilbert.data.label=category"] if name == "finetune" else []
    sweep = load_sweep(ready_sweeps()[name], columns, data_options.get(name, []))
    assert sweep.name == name
    if name == "matrix":
        assert len({cell.id for cell in sweep.cells}) == 48
        assert sweep.excluded == []
