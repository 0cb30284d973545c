"""What a record says of its profile, and that a changed profile is noticed."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml

from harness.core.paths import Results, SweepFolder
from harness.records.settings import profile_change, run_settings
from harness.records.store import comparison_key, write_spec
from harness.spec.cluster import Profile
from harness.spec.slurm import SlurmOptions
from harness.spec.sweep import Sweep
from tests.factories import make_record, write_trial
from tests.support.commands import CommandResult, harness
from tests.support.sweeps import load, write

KEY = b"a key of this folder"


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return load(tmp_path)


def change(
    sweep: Sweep, before: Profile, now: Profile, key: bytes | None = KEY, new_key: bytes = KEY
) -> str | None:
    return profile_change(run_settings(sweep, before, key), run_settings(sweep, now, new_key))


def profile(**environment: str) -> Profile:
    return Profile(environment=environment)


def test_withheld_value_leaves_a_tag_and_nothing_else(sweep: Sweep) -> None:
    settings = run_settings(sweep, profile(MY_FLAG="hunter2", MY_TOKEN="hunter2"), KEY)
    assert "hunter2" not in json.dumps(asdict(settings), default=str)
    environment = settings.profile["environment"]
    assert environment["MY_FLAG"].startswith("[redacted ")
    assert environment["MY_TOKEN"] == "[redacted]"


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({}, {}, None),
        ({"MY_FLAG": "a"}, {"MY_FLAG": "a"}, None),
        ({"MY_TOKEN": "a"}, {"MY_TOKEN": "b"}, None),
        ({}, {"MY_TOKEN": "b"}, None),
        (
            {"MY_FLAG": "a"},
            {"MY_FLAG": "b"},
            "environment.MY_FLAG: found another value, recorded another value",
        ),
        ({}, {"NCCL_ALGO": "Ring"}, "environment.NCCL_ALGO: found 'Ring', recorded none"),
        (
            {"NCCL_ALGO": "Tree"},
            {"NCCL_ALGO": "Ring"},
            "environment.NCCL_ALGO: found 'Ring', recorded 'Tree'",
        ),
    ],
)
def test_change_of_a_variable_is_named(
    sweep: Sweep, before: dict[str, str], now: dict[str, str], expected: str | None
) -> None:
    assert change(sweep, profile(**before), profile(**now)) == expected


def test_values_that_cannot_be_compared_are_no_change(sweep: Sweep) -> None:
    """The folder was copied without its key, or the record was written without one."""
    flags = profile(MY_FLAG="a"), profile(MY_FLAG="b")
    assert change(sweep, *flags, key=None) is None
    assert change(sweep, *flags, new_key=b"another key") is None


def test_change_of_cores_is_named(sweep: Sweep) -> None:
    before = Profile(launcher="slurm", slurm=SlurmOptions(cpus_per_rank=2))
    now = Profile(launcher="slurm", slurm=SlurmOptions(cpus_per_rank=4))
    assert change(sweep, before, now) == "slurm.cpus_per_rank: found 4, recorded 2"
    assert change(sweep, before, before) is None


def run(folder: Path, flag: str, *options: str) -> CommandResult:
    """Run the sweep, all of whose trials are done, with a profile that sets MY_FLAG."""
    content = {"device": "cpu", "environment": {"MY_FLAG": flag}}
    (folder / "mine.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    paths = ["--cluster", str(folder / "mine.yaml"), "--results", str(folder / "results")]
    return harness("run", str(write(folder)), *paths, *options)


def test_run_refuses_to_add_to_trials_of_another_profile(tmp_path: Path, sweep: Sweep) -> None:
    folder = Results(tmp_path / "results").sweep_folder("demo")
    write_spec(sweep, folder)
    key = comparison_key(folder)
    assert key is not None
    assert folder.key_path.stat().st_mode & 0o077 == 0
    settings = run_settings(sweep, profile(MY_FLAG="a"), key)
    record = make_record(sweep.cells[0])
    write_trial(folder, replace(record, settings=settings))
    same = run(tmp_path, "a")
    assert same.code == 0, same.err
    assert "1 already there" in same.out
    refused = run(tmp_path, "b")
    assert refused.code == 2
    assert "1 of its trials ran with another profile: environment.MY_FLAG: " in refused.err
    assert refused.err.count("\n") == 1


def test_key_stays_as_it_is(tmp_path: Path, sweep: Sweep) -> None:
    folder = SweepFolder(tmp_path / "runs" / "demo")
    assert comparison_key(folder) is None
    write_spec(sweep, folder)
    key = comparison_key(folder)
    write_spec(sweep, folder)
    assert comparison_key(folder) == key


def test_secrets_in_lines_of_setup_are_not_recorded(sweep: Sweep) -> None:
    options = SlurmOptions(setup=("module load cuda/12.8", "export HF_TOKEN=hunter2"))
    settings = run_settings(sweep, Profile(launcher="slurm", slurm=options))
    assert settings.profile["slurm"]["setup"] == [
        "module load cuda/12.8",
        "export HF_TOKEN=[redacted]",
    ]
