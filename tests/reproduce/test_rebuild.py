"""A trial is rebuilt from its record alone: the same cell, whatever moved; what changed is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.errors import BadInput
from harness.records.differences import differences, trial_fields
from harness.records.record import RunSettings
from harness.reproduce.rebuild import (
    public_environment,
    rebuild_cell,
    rebuild_profile,
    rebuild_sweep,
)
from harness.sweep.cell import Cell, Trial
from harness.sweep.sweep import Sweep
from tests.support import sweeps

SETTINGS = RunSettings(
    sweep_file="/gone/sweep.yaml", base_folder="/gone", checkpoint="none", timeout=60.0,
    launcher="slurm", device="cpu", forkserver=True, saves_at_intervals=True,
    environment={"MALLOC_CONF": "a", "OWN": "[redacted]"}, slurm={"cpus_per_rank": 2},
)  # fmt: skip
CSV = "text,label\n" + "".join(f"word{n % 7} other{n % 3},{n % 2}\n" for n in range(64))


def planned(folder: Path) -> Sweep:
    """A sweep whose data is a file in the folder `data` beside it."""
    (folder / "data").mkdir(parents=True)
    for name in ("train.csv", "test.csv"):
        (folder / "data" / name).write_text(CSV, encoding="utf-8")
    workloads = {
        "distilbert": {
            "options": {"dropout": 0.2, "padding": "fixed"},
            "data": {"source": "csv", "path": "data", "text": "text", "label": "label"},
        },
        "mlp": {"data": {"source": "digits"}},
    }
    return sweeps.load(folder, workloads, matrix={"precision": ["bf16"], "batch_size": [16]})


def differing(a: Cell, b: Cell) -> list[str]:
    fields = [trial_fields(Trial(cell=cell, seed=0)) for cell in (a, b)]
    return [entry.field for entry in differences(*fields)]


def test_the_same_cells_come_back_without_the_sweep_file(tmp_path: Path) -> None:
    sweep = planned(tmp_path)
    sweep.source.unlink()
    for cell in sweep.cells:
        rebuilt = rebuild_cell(cell, tmp_path, ())
        assert rebuilt == cell
        assert rebuilt.id == cell.id


def test_data_is_found_where_the_user_says(tmp_path: Path) -> None:
    sweep = planned(tmp_path / "old" / "experiments")
    text_cell = sweep.cells[0]
    clone = tmp_path / "new" / "experiments"
    clone.parent.mkdir()
    sweep.base_folder.rename(clone)
    with pytest.raises(BadInput, match=r"data\.path"):
        rebuild_cell(text_cell, tmp_path, ())
    named = rebuild_cell(text_cell, tmp_path, (str(clone / "data"),))
    assert named.id == text_cell.id


def test_a_changed_byte_of_the_data_is_named(tmp_path: Path) -> None:
    cell = planned(tmp_path).cells[0]
    file = tmp_path / "data" / "train.csv"
    file.write_text(CSV.replace("word3", "wort3", 1), encoding="utf-8")
    rebuilt = rebuild_cell(cell, tmp_path, ())
    assert differing(cell, rebuilt) == ["data.path"]
    assert rebuilt.id != cell.id


def test_a_changed_default_is_named_and_the_recorded_value_runs(tmp_path: Path) -> None:
    cell = planned(tmp_path).cells[1]
    # The default when it was recorded.
    settings = {**cell.workload.settings, "options.dropout": 0.7}
    recorded = replace(cell, workload=replace(cell.workload, settings=settings))
    rebuilt = rebuild_cell(recorded, tmp_path, ())
    assert differing(recorded, rebuilt) == ["options.dropout"]
    assert rebuilt.workload.options["dropout"] == 0.7
    # A setting that is gone is bad input.
    settings = {**cell.workload.settings, "options.former": 1}
    recorded = replace(cell, workload=replace(cell.workload, settings=settings))
    with pytest.raises(BadInput, match=r"options\.former: unknown key"):
        rebuild_cell(recorded, tmp_path, ())


def test_a_trial_of_a_cluster_runs_again_on_this_machine(tmp_path: Path) -> None:
    cell = planned(tmp_path).cells[1]
    profile = rebuild_profile(SETTINGS, 4)
    assert (profile.launcher, profile.device, profile.slots) == ("torchrun", "cpu", 4)
    assert profile.environment == public_environment(SETTINGS) == {"MALLOC_CONF": "a"}
    trials = [Trial(cell=cell, seed=7, repeat=2), Trial(cell=cell, seed=3)]
    sweep = rebuild_sweep(trials, SETTINGS, "demo", tmp_path)
    assert sweep.base_folder == tmp_path
    assert (list(sweep.seeds), sweep.repeats, sweep.timeout) == ([3, 7], 3, 60.0)
    assert {trial.id for trial in trials} <= {trial.id for trial in sweep.trials()}
