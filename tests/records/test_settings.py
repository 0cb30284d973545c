"""What a record says of its profile, and that a changed profile is noticed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from harness.core.paths import Results
from harness.records.settings import profile_change, run_settings
from harness.records.store import write_spec
from harness.sweep.cluster import Profile, SlurmOptions
from harness.sweep.sweep import Sweep
from tests.factories import make_record, write_trial
from tests.support.commands import CommandResult, harness
from tests.support.sweeps import load, write


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
    assert settings.profile["environment"] == {
        "NCCL_ALGO": "Ring",
        "MY_FLAG": "[redacted]",
        "NCCL_TOKEN": "[redacted]",
    }


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({}, {}, None),
        ({"MY_FLAG": "a"}, {"MY_FLAG": "a"}, None),
        ({"MY_TOKEN": "a"}, {"MY_TOKEN": "b"}, None),
        ({}, {"MY_TOKEN": "b"}, None),
        ({"MY_FLAG": "a"}, {"MY_FLAG": "b"}, None),  # both are withheld
        ({}, {"MY_FLAG": "b"}, "environment.MY_FLAG: found [redacted], recorded none"),
        ({}, {"NCCL_ALGO": "Ring"}, "environment.NCCL_ALGO: found Ring, recorded none"),
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


def test_secrets_in_lines_of_setup_are_not_recorded(sweep: Sweep) -> None:
    options = SlurmOptions(setup=("module load cuda/12.8", "export HF_TOKEN=hunter2"))
    settings = run_settings(sweep, Profile(launcher="slurm", slurm=options))
    assert settings.profile["slurm"]["setup"] == [
        "module load cuda/12.8",
        "[redacted]",
    ]
