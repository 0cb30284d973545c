"""Parts of a sweep: `--only`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.errors import BadInput
from harness.core.paths import Results
from harness.launch.sweep import plan, refuse_changed_profile
from harness.records.differences import run_settings
from harness.records.store import read_recorded_sweep, select_recorded, write_spec
from harness.slurm.submit import prepare
from harness.sweep.cluster import load_profile
from harness.sweep.selected import select
from harness.sweep.sweep import Sweep, load_sweep
from tests.factories import make_record, write_trial
from tests.support.commands import harness
from tests.support.sweeps import load, write

MATRIX = {"precision": ["fp32", "bf16"], "options.dropout": [0.1, 0.2]}


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """A sweep of four cells and two seeds."""
    return load(tmp_path, matrix=MATRIX, seeds=[0, 1])


def test_cells_and_seeds_are_selected_trial_by_trial(sweep: Sweep) -> None:
    chosen = select(sweep, ["precision=bf16", "options.dropout!=0.1", "seed=1"])
    (trial,) = chosen.trials()
    assert (trial.cell.axes.precision, trial.cell.level("options.dropout")) == ("bf16", 0.2)
    assert trial.seed == 1
    chosen = select(sweep, ["precision=bf16,fp32", "options.dropout=0.2"])
    # The order of the blocks is that of the sweep: the second one runs backwards.
    ids = {trial.id for trial in chosen.trials()}
    assert [trial.id for trial in chosen.trials()] == [t.id for t in sweep.trials() if t.id in ids]
    left_out = {trial.id for trial in chosen.trials_left_out()}
    assert left_out == {trial.id for trial in sweep.trials()} - ids
    assert chosen.whole() == sweep
    more_repeats = replace(chosen, repeats=2)
    assert more_repeats.whole() == replace(sweep, repeats=2)
    assert len(more_repeats.trials()) == 8


@pytest.mark.parametrize("length", [None, -3])
def test_a_cell_is_named_by_its_id_or_its_beginning(sweep: Sweep, length: int | None) -> None:
    cell = sweep.cells[2]
    assert select(sweep, [f"cell={cell.id[:length]}"]).cells == [cell]
    assert select(sweep, [f"cell={cell.label},{sweep.cells[0].id}"]).cells == [
        sweep.cells[0],
        cell,
    ]


@pytest.mark.parametrize(
    "only",
    [
        ["options.hidden=[32, 16]", "deterministic=true", "lr=0.001"],
        ["lr=1e-3", "options.hidden=[32,16]", "deterministic=True"],
        ["options.hidden = [32, 16]", " lr = 1e-3", "deterministic!=false"],
    ],
)
def test_values_are_written_as_in_a_sweep_file_or_as_in_python(
    tmp_path: Path, only: list[str]
) -> None:
    matrix = {
        "deterministic": [False, True],
        "lr": [None, 0.001],
        "options.hidden": [[32, 16], [32], [1]],
    }
    (chosen,) = select(load(tmp_path, matrix=matrix), only).cells
    assert (chosen.axes.deterministic, chosen.axes.lr) == (True, 0.001)
    assert chosen.level("options.hidden") == (32, 16)


@pytest.mark.parametrize(
    ("only", "message"),
    [
        (["precision=fp16"], "found 'fp16'; did you mean 'bf16'? allowed: bf16, fp32"),
        (["precison=bf16"], "unknown key 'precison'; did you mean 'precision'?"),
        (["options.droput=0.1"], "unknown key 'options.droput'; did you mean 'options.dropout'?"),
        (["precision>bf16"], "found no term; allowed: KEY=V[,V] or KEY!=V[,V]"),
        (["seed=9"], "found '9'; allowed: 0, 1"),
        (["cell=cnn-01"], "found 'cnn-01'; "),
        (["seed=0", "seed=1"], "found no trial with all of this among 8"),
    ],
)
def test_selection_of_nothing_is_bad_input(sweep: Sweep, only: list[str], message: str) -> None:
    with pytest.raises(BadInput) as error:
        select(sweep, only)
    assert message in str(error.value)


def test_a_run_of_a_part_leaves_the_sweep_as_it_is(sweep: Sweep, tmp_path: Path) -> None:
    folder = Results(tmp_path / "results").sweep_folder("demo")
    first = sweep.trials()[0]
    write_trial(folder, make_record(first.cell, seed=first.seed))
    part = select(sweep, ["precision=bf16"])
    planned = plan(part, folder, "failed")
    assert {trial.cell.axes.precision for trial in planned.pending} == {"bf16"}
    assert [record.trial.id for record in planned.others] == [first.id]
    forced = plan(part, folder, "all")
    assert [record.trial.id for record in forced.others] == [first.id]
    write_spec(part, folder)
    content = json.loads(folder.spec_path.read_text(encoding="utf-8"))
    assert content["trials"] == [trial.id for trial in sweep.trials()]
    assert len(content["cells"]) == 4


def test_a_part_that_a_flag_leaves_does_not_replace_the_sweep(sweep: Sweep, tmp_path: Path) -> None:
    folder = Results(tmp_path / "results").sweep_folder("demo")
    write_spec(sweep, folder)
    whole = folder.spec_path.read_bytes()
    write_spec(load_sweep(sweep.source, ["precision=bf16"]), folder)
    assert folder.spec_path.read_bytes() == whole
    write_spec(load_sweep(sweep.source, ["precision=bf16,tf32"]), folder)
    assert len(json.loads(folder.spec_path.read_text(encoding="utf-8"))["cells"]) == 4
    assert folder.spec_path.read_bytes() != whole


def test_a_part_does_not_run_with_another_profile_than_the_rest(
    sweep: Sweep, tmp_path: Path
) -> None:
    folder = Results(tmp_path / "results").sweep_folder("demo")
    first = sweep.trials()[0]
    profile = load_profile("local")
    settings = run_settings(sweep, replace(profile, environment={"NCCL_ALGO": "Tree"}))
    write_trial(folder, replace(make_record(first.cell, seed=first.seed), settings=settings))
    part = select(sweep, ["precision=bf16"])
    with pytest.raises(BadInput, match="ran with another profile"):
        refuse_changed_profile(plan(part, folder, "all"), part, profile, folder)


def test_jobs_have_the_selected_trials_of_the_whole_sweep(sweep: Sweep, tmp_path: Path) -> None:
    folder = Results(tmp_path / "results").sweep_folder("demo")
    part = select(sweep, ["precision=bf16", "seed=1"])
    prepared = prepare(part, load_profile("slurm"), folder)
    submitted = [trial_id for job in prepared.submission.jobs() for trial_id in job.trial_ids]
    assert sorted(submitted) == sorted(trial.id for trial in part.trials())
    assert len(prepared.submission.sweep.trials()) == 8


def test_recorded_trials_of_earlier_commands_may_be_chosen(sweep: Sweep, tmp_path: Path) -> None:
    results = Results(tmp_path / "results")
    folder = results.sweep_folder("demo")
    for seed in (0, 7):
        write_trial(folder, make_record(sweep.cells[0], seed=seed))
    write_spec(sweep, folder)
    recorded = select_recorded(read_recorded_sweep(results, "demo"), ["seed=7"])
    assert [record.trial.id for record in recorded.records] == [f"{sweep.cells[0].id}-s7-r0"]
    assert [cell.id for cell in recorded.sweep.cells] == [sweep.cells[0].id]
    shown = harness("show", "demo", "--results", str(results.path), "--only", "seed=7")
    assert (shown.code, shown.err) == (0, "")
    assert "accuracy" in shown.out


def test_plan_shows_the_selected_cells(tmp_path: Path) -> None:
    path = str(write(tmp_path, matrix=MATRIX, seeds=[0, 1]))
    results = str(tmp_path / "results")
    options = ("--results", results, "--only", "precision=bf16", "--only", "seed=1")
    shown = harness("plan", path, *options)
    assert (shown.code, shown.err) == (0, "")
    assert "2 cells, seeds 1, 1 repeat: 2 trials" in shown.out
    content = json.loads(harness("plan", path, *options, "--json").out)
    assert len(content["cells"]) == len(content["trials"]) == 2
    refused = harness("plan", path, "--only", "precison=bf16")
    assert refused.code == 2
    assert refused.err.startswith("harness: --only 'precison=bf16': unknown key")


def test_folder_with_a_broken_file_is_written_anew(tmp_path: Path) -> None:
    sweep = load(tmp_path)
    results = Results(tmp_path / "results")
    folder = results.sweep_folder(sweep.name)
    folder.path.mkdir(parents=True)
    folder.spec_path.write_text("{", encoding="utf-8")
    write_spec(sweep, folder)
    assert read_recorded_sweep(results, sweep.name).sweep.trials() != []
