"""Every field that may explain another result is compared, the likeliest cause first.

A changed profile is noticed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.core.paths import Results
from harness.records.differences import (
    differences,
    environment_fields,
    profile_change,
    record_fields,
    run_settings,
    trial_fields,
)
from harness.records.environment import Hardware, Software
from harness.records.record import Record
from harness.records.store import write_spec
from harness.sweep.cell import Length
from harness.sweep.cluster import Profile, SlurmOptions
from harness.sweep.sweep import Sweep
from tests.factories import ENVIRONMENT, make_record, write_trial
from tests.support.commands import CommandResult, harness
from tests.support.sweeps import load, write

SOFTWARE = Software(python="3.11.7", torch="2.13.0", packages={"numpy": "2.1.0"})
BASE = replace(ENVIRONMENT, software=SOFTWARE, installed="a" * 64)


def test_what_differs_at_every_trial_is_no_difference() -> None:
    job = {"SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "x", "TORCHINDUCTOR_CACHE_DIR": "/tmp/1"}
    other = replace(BASE, variables={**BASE.variables, **job})
    assert differences(environment_fields(BASE), environment_fields(other)) == []


def with_cell(record: Record, **changes: Any) -> Record:
    cell = replace(record.trial.cell, **changes)
    return replace(record, trial=replace(record.trial, cell=cell))


def test_what_a_trial_was_to_compute_is_compared() -> None:
    record = make_record()
    cell = record.trial.cell
    ran = {"spiral.py": "a" * 64, "layers.py": "b" * 64}
    edited = {"spiral.py": "c" * 64, "layers.py": "b" * 64}
    identity = {
        **cell.workload.identity,
        "files": {"data.path": "d" * 64},
        "settings": {**cell.workload.identity["settings"], "options.dropout": 0.5},
    }
    a = with_cell(record, workload=replace(cell.workload, code=ran))
    b = with_cell(
        record,
        workload=replace(cell.workload, code=edited, identity=identity),
        axes=replace(cell.axes, precision="bf16"),
        length=Length(epochs=1),
    )
    b = replace(b, trial=replace(b.trial, seed=3))
    assert [
        difference.field for difference in differences(trial_fields(a.trial), trial_fields(b.trial))
    ] == [
        "seed",
        "code.files.spiral.py",
        "data.path",
        "options.dropout",
        "length",
        "axes.precision",
    ]
    assert differences(record_fields(a), record_fields(a)) == []
    code = differences(record_fields(a), record_fields(b))[1]
    assert str(code) == f"code.files.spiral.py: {'a' * 12} and {'c' * 12}"


def test_likely_causes_come_before_what_seldom_matters() -> None:
    other = replace(
        BASE,
        software=replace(SOFTWARE, python="3.12.1", torch="2.12.0", packages={"numpy": "2.2.0"}),
        hardware=Hardware(cpu="Other", usable_cores=2),
        variables={"OMP_NUM_THREADS": "1", "MKL_CBWR": "AVX2"},
    )
    assert [
        difference.field
        for difference in differences(environment_fields(BASE), environment_fields(other))
    ] == [
        "software.torch",
        "variables.MKL_CBWR",
        "hardware.cpu",
        "software.packages.numpy",
        "software.python",
    ]


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return load(tmp_path)


def change(sweep: Sweep, before: Profile, now: Profile) -> str | None:
    return profile_change(run_settings(sweep, before), run_settings(sweep, now))


def profile(**environment: str) -> Profile:
    return Profile(environment=environment)


def test_values_are_withheld_by_the_names_of_their_variables(sweep: Sweep) -> None:
    variables = profile(NCCL_ALGO="Ring", MY_FLAG="hunter2", NCCL_TOKEN="hunter2")
    settings = run_settings(sweep, variables)
    assert settings.environment == {"NCCL_ALGO": "Ring", "MY_FLAG": "[redacted]"}


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({}, {}, None),
        ({"MY_TOKEN": "a"}, {"MY_TOKEN": "b"}, None),
        ({"MY_FLAG": "a"}, {"MY_FLAG": "b"}, None),  # both are withheld
        ({}, {"MY_FLAG": "b"}, "environment.MY_FLAG: found [redacted], recorded none"),
        (
            {"NCCL_ALGO": "Tree"},
            {"NCCL_ALGO": "Ring"},
            "environment.NCCL_ALGO: found Ring, recorded Tree",
        ),
    ],
)
def test_change_of_a_variable_is_named(
    sweep: Sweep, before: dict[str, str], now: dict[str, str], expected: str | None
) -> None:
    assert change(sweep, profile(**before), profile(**now)) == expected


def test_change_of_cores_is_named(sweep: Sweep) -> None:
    before = Profile(launcher="slurm", slurm=SlurmOptions(cpus_per_rank=2))
    now = Profile(launcher="slurm", slurm=SlurmOptions(cpus_per_rank=4))
    assert change(sweep, before, now) == "slurm.cpus_per_rank: found 4, recorded 2"
    assert change(sweep, before, before) is None


def run(folder: Path, flag: str, *options: str) -> CommandResult:
    """Run the sweep, all of whose trials are done, with a profile that sets NCCL_ALGO."""
    content = {"device": "cpu", "environment": {"NCCL_ALGO": flag}}
    (folder / "mine.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    paths = ["--cluster", str(folder / "mine.yaml"), "--results", str(folder / "results")]
    return harness("run", str(write(folder)), *paths, *options)


def test_run_refuses_to_add_to_trials_of_another_profile(tmp_path: Path, sweep: Sweep) -> None:
    folder = Results(tmp_path / "results").sweep_folder("demo")
    write_spec(sweep, folder)
    settings = run_settings(sweep, profile(NCCL_ALGO="a"))
    record = make_record(sweep.cells[0])
    write_trial(folder, replace(record, settings=settings))
    same = run(tmp_path, "a")
    assert same.code == 0, same.err
    assert "1 already there" in same.out
    refused = run(tmp_path, "b")
    assert refused.code == 2
    assert " ran with another profile: environment.NCCL_ALGO: " in refused.err
    assert refused.err.count("\n") == 1
