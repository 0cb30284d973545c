"""The ready sweeps reach the accuracy they promise, on real data, run as a user would run them."""

from __future__ import annotations

import os
from pathlib import Path
from statistics import fmean

import pytest
import torch

from harness.cli.main import main
from harness.core.paths import Results
from harness.records.files import read_record
from harness.records.record import Record
from harness.spec.sweep import load_sweep, ready_sweeps
from tests.support.running import local_profile
from tests.support.tree import TOP

pytestmark = pytest.mark.accuracy

# Half as expensive where the CPU multiplies in it, and the accuracy is the same.
HAS_BF16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
PRECISION = "bf16" if HAS_BF16 else "fp32"
DATA = Path(os.environ.get("HARNESS_DATA", TOP.parent / "shared" / "data"))


def run(tmp_path: Path, *arguments: str) -> list[Record]:
    """Run a sweep through the command line and return its trials' records.

    It has one thread, because other tests run beside it: two threads that wait for each other on
    shared cores take many times as long. The accuracy does not depend on it.
    """
    results = tmp_path / "results"
    options = [
        "--set",
        "num_threads=1",
        "--cluster",
        str(local_profile(tmp_path)),
        "--results",
        str(results),
    ]
    with pytest.raises(SystemExit) as exit:
        main(["run", *arguments, *options])
    assert not exit.value.code
    return [
        read_record(path) for path in Results(results).sweep_folder(arguments[0]).record_paths()
    ]


def final(records: list[Record], label: str) -> list[float]:
    """Return the target metric of a workload's trials after their last step."""
    summaries = [record.summary for record in records if record.trial.cell.workload.label == label]
    return [
        summary.final_metric
        for summary in summaries
        if summary and summary.final_metric is not None
    ]


@pytest.fixture
def data() -> Path:
    if not DATA.is_dir():
        pytest.skip(f"no real data in {DATA} (HARNESS_DATA names another folder)")
    return DATA


@pytest.mark.timeout(2400)
def test_the_mlp_reaches_a_mean_of_95_percent_on_mnist(tmp_path: Path, data: Path) -> None:
    records = run(
        tmp_path, "mnist", "--data", str(data / "mnist10k"), "--set", "exclude=[{workload: cnn}]"
    )
    assert len(records) == 3
    assert fmean(final(records, "mlp")) >= 0.95


@pytest.mark.timeout(2400)
def test_the_cnn_reaches_98_percent_on_mnist(tmp_path: Path, data: Path) -> None:
    only = ["--set", "exclude=[{workload: mlp}]", "--set", "seeds=0"]
    (accuracy,) = final(run(tmp_path, "mnist", "--data", str(data / "mnist10k"), *only), "cnn")
    assert accuracy >= 0.98


@pytest.mark.timeout(2400)
def test_a_distilbert_from_scratch_reaches_85_percent_on_tickets(
    tmp_path: Path, data: Path
) -> None:
    precision = ["--set", f"precision={PRECISION}"]
    (record,) = run(tmp_path, "tickets", "--data", str(data / "banking77"), *precision)
    assert record.rank0 is not None
    metrics = record.rank0.evaluations[-1].metrics
    assert metrics["accuracy"] >= 0.85
    assert metrics["macro_f1"] >= 0.85


@pytest.mark.parametrize("name", ready_sweeps())
def test_every_ready_sweep_has_its_name_and_a_description(name: str, data: Path) -> None:
    digits, texts = data / "mnist10k", data / "banking77"
    data_options = {
        "mnist": [str(digits)],
        "tickets": [str(texts)],
        "matrix": [f"mlp={digits}", f"cnn={digits}", f"distilbert={texts}"],
    }
    sweep = load_sweep(ready_sweeps()[name], data=data_options.get(name, []))
    assert sweep.name == name
    assert sweep.description


def test_the_matrix_has_48_cells_that_differ(data: Path) -> None:
    digits, texts = data / "mnist10k", data / "banking77"
    sweep = load_sweep(
        ready_sweeps()["matrix"], data=[f"mlp={digits}", f"cnn={digits}", f"distilbert={texts}"]
    )
    assert len({cell.id for cell in sweep.cells}) == 48
    assert sweep.excluded == []
