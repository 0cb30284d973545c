"""The Python interface on records that never ran."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

import harness
from harness import api
from harness.analysis import baseline
from harness.analysis.result import COURSE, IDENTITY, ORIGIN
from harness.api import SweepData
from harness.core.paths import Results
from harness.launch.runner import Runner
from harness.records.numbers import NUMBERS
from harness.records.store import write_spec
from harness.sweep.axes import AXES
from harness.sweep.sweep import Sweep
from tests.api.test_running import UndeliveredRun
from tests.factories import make_record, with_ranks, write_trial
from tests.support.commands import harness as command
from tests.support.sweeps import load


def test_all_public_names_exist() -> None:
    assert {name for name in harness.__all__ if getattr(harness, name) is None} == set()
    assert set(harness.__all__) <= set(dir(harness))
    with pytest.raises(AttributeError, match="'harness' has no attribute 'laod'"):
        _ = harness.laod


def test_trials_have_typed_columns(demo: Sweep) -> None:
    trials = harness.load("demo").trials
    assert trials.trial.to_list() == [trial.id for trial in demo.trials()]
    assert trials.seed.dtype == "int64"
    assert trials.deterministic.dtype == "bool"
    assert trials.started.dt.tz is not None
    assert trials.started[0].timestamp() == 1_700_000_000.0
    assert pd.isna(trials.max_grad_norm).all()
    assert (trials.duration_s > 5).all()
    assert not trials.columns.duplicated().any()


def test_no_axis_has_the_name_of_another_column() -> None:
    fixed = [*IDENTITY, *COURSE, *ORIGIN]
    names = [*fixed, *AXES, *NUMBERS]
    assert len(set(names)) == len(names)


def test_a_sweep_is_loaded_by_name_folder_or_file(demo: Sweep, tmp_path: Path) -> None:
    for name in ("demo", Path("results/runs/demo"), tmp_path / "results" / "runs" / "demo"):
        assert harness.load(name).name == "demo"
    assert harness.load(tmp_path / "sweep.yaml").name == "demo"
    assert harness.load("demo", tmp_path / "results").name == "demo"


def test_a_folder_of_the_same_name_hides_no_sweep(
    demo: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither that of other results, in whose folder one works, nor a copy."""
    monkeypatch.setattr(api, "RunView", UndeliveredRun)
    delivered = nullcontext(SimpleNamespace(trouble=None))
    monkeypatch.setattr(api, "Follower", lambda *_: delivered)
    monkeypatch.setattr(Runner, "run", lambda *_, **__: iter(()))
    results = tmp_path / "others"
    folder = Results(results).sweep_folder("demo")
    (trial, *_) = demo.trials()
    write_trial(folder, make_record(trial.cell, seed=trial.seed))
    write_spec(demo, folder)
    copy = tmp_path / "copies" / "demo"
    shutil.copytree(tmp_path / "results" / "runs" / "demo", copy)
    for working_directory in (tmp_path / "results" / "runs", copy.parent):
        monkeypatch.chdir(working_directory)
        assert len(harness.load("demo", results).records) == 1
        data = harness.run(tmp_path / "sweep.yaml", results=results, progress=False)
        assert data.results.path == results
        assert len(data.records) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_effect": 5}, "min_effect: found 5; allowed: a fraction of at least 0 and below 1"),
        ({"accuracy_margin": -1}, "accuracy_margin: found -1; allowed: at least 0"),
        ({"accuracy_margin": math.nan}, "accuracy_margin: found nan; allowed: at least 0"),
    ],
)
def test_mistakes_in_arguments_are_refused(
    demo: Sweep, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(harness.BadInput, match=f"compare: {message}"):
        harness.compare("demo", by="precision", **arguments)


def test_a_single_cell_and_a_path_are_taken_as_they_are(demo: Sweep, tmp_path: Path) -> None:
    assert len(harness.load("demo", only=["precision=bf16"]).records) == 3
    assert len(harness.plan(tmp_path / "sweep.yaml", only=["precision=bf16"]).trials) == 3
    folder = Path("results/runs/demo")
    assert harness.compare(folder, folder).b == [str(folder)]


def test_a_baseline_is_that_of_a_loaded_sweep(demo: Sweep) -> None:
    baseline.save(Results(Path("results")), harness.load("demo").side.cells)
    by_name = harness.compare("baseline", "demo")
    assert len(by_name.verdicts) == 4
    loaded = harness.compare("baseline", harness.load("demo"))
    pd.testing.assert_frame_equal(loaded.table, by_name.table)


def test_all_documented_columns_are_there(tmp_path: Path) -> None:
    """Also where no trial failed, none was evaluated and nothing is compared."""
    sweep = load(tmp_path, length={"steps": 20}, warmup=2)
    results = Results(tmp_path / "results")
    record = make_record(sweep.cells[0])
    assert record.rank0 is not None
    record = replace(record, rank0=replace(record.rank0, evaluations=()))
    write_trial(results.sweep_folder("demo"), record)
    write_spec(sweep, results.sweep_folder("demo"))
    data = harness.load("demo", results.path)
    fixed = [*IDENTITY, *COURSE, *ORIGIN]
    assert set(fixed) <= set(data.trials.columns)
    assert data.trials[["status", "failure"]].isna().to_numpy().tolist() == [[False, True]]
    documented = re.findall(r"^ +\| (`.*?) \|", SweepData.cells.__doc__ or "", re.MULTILINE)
    assert [*data.cells.columns] == re.findall(r"`(\w+)`", ", ".join(documented))
    assert data.cells.verdict.isna().all()
    assert [*data.evaluations.columns] == ["trial", "cell", "seed", "step", "epoch", "seconds"]


def test_errors_can_be_caught(demo: Sweep) -> None:
    with pytest.raises(harness.BadInput, match="nightly: no records of such a sweep"):
        harness.load("nightly")
    with pytest.raises(harness.BadInput, match="no records of such a sweep"):
        harness.load("a" * 300)  # too long for a file
    with pytest.raises(harness.HarnessError, match="found 2 sides with `by`"):
        harness.compare("demo", "demo", by="precision")
    with pytest.raises(harness.HarnessError, match="no such sweep file or ready sweep"):
        harness.plan("nightly")
    with pytest.raises(harness.HarnessError, match="launcher: found 'slurm'; allowed: torchrun"):
        harness.run("quickstart", cluster="slurm")


def test_steps_are_those_of_every_rank_and_of_failed_trials_too(tmp_path: Path) -> None:
    axes = {"strategy": "ddp", "world_size": 2}
    sweep = load(tmp_path, matrix=axes, seeds=[0, 1, 2], length={"steps": 20}, warmup=2)
    results = Results(tmp_path / "results")
    folder = results.sweep_folder("demo")
    done = make_record(sweep.cells[0], seed=0)
    write_trial(folder, done)
    failed = make_record(sweep.cells[0], seed=1, status="failed")
    partial = replace(failed.ranks[0], step_seconds=done.ranks[0].step_seconds)
    write_trial(folder, with_ranks(failed, [partial, failed.ranks[1]]))
    write_spec(sweep, folder)
    data = harness.load("demo", results.path)
    assert repr(data) == "demo: 2 trials of 1 cell, 1 done, 1 failed"
    steps = data.steps
    assert steps.groupby(["seed", "rank"]).size().to_dict() == {(0, 0): 20, (0, 1): 20, (1, 0): 20}
    assert not steps[steps.seed == 1].measured.any()
    assert steps[steps.seed == 1].loss.isna().all()
    window = steps[steps.measured & (steps["rank"] == 0)]
    assert window.step.to_list() == list(range(3, 21))
    seconds = steps[steps.measured].groupby("step").seconds.max()  # of the slower rank
    assert seconds.median() * 1000 == pytest.approx(done.numbers["step_time_p50_ms"])
    assert data.trials.failure[1] == "rank 0 on node1: ValueError: no such thing"
    assert data.trials.torch.isna().to_list() == [False, True]


def test_loaded_sweeps_are_compared_across_results_folders(demo: Sweep, tmp_path: Path) -> None:
    slower = Results(tmp_path / "slower")
    folder = slower.sweep_folder("demo")
    for trial in demo.trials():
        write_trial(folder, make_record(trial.cell, seed=trial.seed, step_seconds=0.016))
    write_spec(demo, folder)
    verdicts = harness.compare("demo", harness.load("demo", slower.path))
    speeds = verdicts.table[verdicts.table.metric == "samples/s"]
    assert speeds.verdict.to_list() == ["slower", "slower"]
    assert speeds.value.round(2).to_list() == [0.62, 0.5]
    assert verdicts.exit_code == 1
    assert "precision" not in repr(verdicts)


def test_a_plan_knows_what_its_trials_took(demo: Sweep, tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    plan = harness.plan(path, settings={"seeds": [0, 1]}, only=["precision=bf16"])
    assert [trial.seed for trial in plan.trials] == [0, 1]
    assert plan.seconds == pytest.approx(2 * 5.16, abs=0.01)
    assert plan.cells.precision.to_list() == ["bf16"]
    assert plan.cells.trial_s.notna().all()
    settings = {"options.hidden": [[64], [128, 64]]}
    varied = harness.plan("quickstart", settings=settings, only=["workload=mlp"])
    assert varied.cells["options.hidden"].value_counts()[(128, 64)] == 3


def test_a_sweep_without_trials_has_empty_frames(tmp_path: Path) -> None:
    sweep = load(tmp_path)
    results = Results(tmp_path / "results")
    write_spec(sweep, results.sweep_folder("demo"))
    data = harness.load("demo", results.path)
    assert repr(data) == "demo: 0 trials of 1 cell, none recorded"
    assert len(data.trials) == len(data.steps) == len(data.evaluations) == 0
    assert data.cells.trials.to_list() == [0]


def files_below(folder: Path) -> dict[Path, bytes]:
    """Return what each file in a folder contains."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_a_command_does_not_need_cannot_stop_it(demo: Sweep) -> None:
    """Peaks, parity and baselines that can't be read cost their own figures alone."""
    results = Results(Path("results"))
    peaks = results.peaks / "other-machine.json"
    baselines = results.baselines / "other-machine" / "demo.jsonl"
    for path in (peaks, baselines, results.sweep_folder("demo").parity_path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("damaged")
    for arguments in (["show", "demo"], ["report", "demo"]):
        ended = command(*arguments)
        assert (ended.code, ended.err) == (0, "")


@pytest.mark.parametrize(
    ("ending", "read"),
    [
        ("csv", pd.read_csv),
        ("json", lambda path: pd.read_json(path, orient="records", precise_float=True)),
        ("parquet", pd.read_parquet),
    ],
)
def test_every_format_has_the_trials_of_the_data_frame(
    demo: Sweep, tmp_path: Path, ending: str, read: Callable[[Path], pd.DataFrame]
) -> None:
    trials = harness.load("demo").trials
    path = tmp_path / f"trials.{ending}"
    written = command("show", "demo", "--output", str(path))
    assert (written.code, written.out) == (0, f"{path}\n")
    table = read(path)
    assert list(table.columns) == list(trials.columns)
    assert table.trial.to_list() == trials.trial.to_list()
    rates = table.throughput_samples_per_s.to_list()
    assert rates == pytest.approx(trials.throughput_samples_per_s.to_list(), rel=1e-14)


def test_a_name_that_says_no_format_is_bad_input(demo: Sweep) -> None:
    refused = command("show", "demo", "--output", "trials.xls")
    assert (refused.code, refused.out) == (2, "")
    assert "--output: found trials.xls; allowed: a name that ends in .csv, .json," in refused.err
    assert not Path("trials.xls").exists()


def test_reading_a_sweep_writes_nothing(demo: Sweep) -> None:
    before = files_below(Path("results"))
    for arguments in (["show", "demo"], ["show", "demo", "--wide"], ["status", "demo"]):
        assert command(*arguments).code == 0
    assert files_below(Path("results")) == before
