"""The ready sweeps reach what they promise, on real data, as a user would run them."""

from __future__ import annotations

import os
from pathlib import Path
from statistics import fmean

import pytest

from harness.cli.main import main
from harness.core.paths import Results
from harness.records.record import Record, read_record
from harness.spec.sweep import load_sweep, ready_sweeps
from tests.support.running import local_profile
from tests.support.tree import TOP

pytestmark = pytest.mark.accuracy

DATA = Path(os.environ.get("HARNESS_DATA", TOP.parent / "shared" / "data"))


def run(tmp_path: Path, *arguments: str) -> list[Record]:
    """The records of a sweep's trials, run through the command line.

    With one thread, as other tests run beside: two threads that wait for each other on shared cores take many times as
    long. The accuracy to be reached stays.
    """
    results = tmp_path / "results"
    given = [
        "--set",
        "num_threads=1",
        "--cluster",
        str(local_profile(tmp_path)),
        "--results",
        str(results),
    ]
    with pytest.raises(SystemExit) as ended:
        main(["run", *arguments, *given])
    assert not ended.value.code
    return [
        read_record(path) for path in Results(results).sweep_folder(arguments[0]).record_paths()
    ]


def final(records: list[Record], label: str) -> list[float]:
    """The target metric of a workload's trials after their last step."""
    mine = [one.summary for one in records if one.trial.cell.workload.label == label]
    return [
        summary.final_metric for summary in mine if summary and summary.final_metric is not None
    ]


@pytest.fixture
def data() -> Path:
    if not DATA.is_dir():
        pytest.skip(f"no real data in {DATA} (HARNESS_DATA names another folder)")
    return DATA


@pytest.mark.timeout(2400)
def test_mnist_the_mlp_reaches_95_percent_in_the_mean_of_three_seeds(
    tmp_path: Path, data: Path
) -> None:
    records = run(
        tmp_path, "mnist", "--data", str(data / "mnist10k"), "--set", "exclude=[{workload: cnn}]"
    )
    assert len(records) == 3
    assert fmean(final(records, "mlp")) >= 0.95


@pytest.mark.timeout(2400)
def test_mnist_the_cnn_reaches_98_percent(tmp_path: Path, data: Path) -> None:
    only = ["--set", "exclude=[{workload: mlp}]", "--set", "seeds=0"]
    (found,) = final(run(tmp_path, "mnist", "--data", str(data / "mnist10k"), *only), "cnn")
    assert found >= 0.98


@pytest.mark.timeout(2400)
def test_tickets_a_distilbert_from_scratch_reaches_85_percent(tmp_path: Path, data: Path) -> None:
    (found,) = run(tmp_path, "tickets", "--data", str(data / "banking77"))
    assert found.rank0 is not None
    metrics = found.rank0.evaluations[-1].metrics
    assert metrics["accuracy"] >= 0.85
    assert metrics["macro_f1"] >= 0.85


@pytest.mark.parametrize("name", ready_sweeps())
def test_every_ready_sweep_says_what_it_is_for(name: str, data: Path) -> None:
    digits, texts = data / "mnist10k", data / "banking77"
    lies = {
        "mnist": [str(digits)],
        "tickets": [str(texts)],
        "matrix": [f"mlp={digits}", f"cnn={digits}", f"distilbert={texts}"],
    }
    sweep = load_sweep(ready_sweeps()[name], data=lies.get(name, []))
    assert sweep.name == name
    assert sweep.description


def test_the_matrix_has_48_cells_that_differ(data: Path) -> None:
    digits, texts = data / "mnist10k", data / "banking77"
    sweep = load_sweep(
        ready_sweeps()["matrix"], data=[f"mlp={digits}", f"cnn={digits}", f"distilbert={texts}"]
    )
    assert len({cell.id for cell in sweep.cells}) == 48
    assert sweep.excluded == []
