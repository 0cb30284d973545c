from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path

import pytest

import harness
from harness.core.variables import WITHHELD
from harness.records import environment
from harness.records.environment import Code, relevant_variables


def test_only_variables_that_bear_on_a_measurement_are_kept() -> None:
    given = {
        "OMP_NUM_THREADS": "4",
        "NCCL_DEBUG": "INFO",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "PYTHONHASHSEED": "0",
        "HARNESS_TOKEN": "hunter2",
        "SLURM_JWT": "hunter2",
        "TORCH_HOME": "/x",
        "HOME": "/home/me",
        "USER": "me",
        "PATH": "/bin",
        "MY_CUDA": "no",
        "AWS_SECRET_ACCESS_KEY": "hunter2",
    }
    kept = relevant_variables(given)
    assert set(given) - set(kept) == {"HOME", "USER", "PATH", "MY_CUDA", "AWS_SECRET_ACCESS_KEY"}
    assert kept["OMP_NUM_THREADS"] == "4"
    assert kept["TORCH_HOME"] == "/x"
    assert kept["SLURM_JWT"] == WITHHELD
    assert list(kept) == sorted(kept)
    assert "hunter2" not in json.dumps(kept)


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the harness seems to run from."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").write_text("", encoding="utf-8")
    environment.training_digest()  # it is remembered, and stays that of the harness that runs
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    return tmp_path


def test_code_is_described_by_commit_and_whether_it_was_changed(checkout: Path) -> None:
    git(checkout, "init", "-q")
    git(checkout, "add", ".")
    git(checkout, "commit", "-q", "-m", "first")
    commit = git(checkout, "rev-parse", "HEAD")
    clean = environment.describe_code()
    assert clean == Code(
        version=harness.__version__,
        training=environment.training_digest(),
        commit=commit,
        dirty=False,
    )
    (checkout / "notes.txt").write_text("untracked", encoding="utf-8")
    assert environment.describe_code() == clean
    (checkout / "harness" / "__init__.py").write_text("changed = True\n", encoding="utf-8")
    assert environment.describe_code() == replace(clean, dirty=True)


def test_code_in_no_checkout_and_before_the_first_commit_has_none(checkout: Path) -> None:
    assert environment.describe_code() == Code(
        version=harness.__version__, training=environment.training_digest()
    )
    git(checkout, "init", "-q")
    assert environment.describe_code().commit is None


def test_description_is_json_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_TOKEN", "hunter2")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    described = environment.describe_environment()
    assert "hunter2" not in json.dumps(asdict(described), allow_nan=False)
    assert described.variables["OMP_NUM_THREADS"] == "3"
    assert described.software.packages["torch"]
    assert described.settings is not None
    assert described.settings.threads >= 1
    assert described.hardware.usable_cores >= 1


def test_versions_of_packages_are_those_that_python_reports() -> None:
    versions = environment.describe_packages(["psutil", "no-such-package"])
    assert {"torch", "numpy", "psutil"} <= versions.keys()
    assert versions == {name: metadata.version(name) for name in versions}
    assert "no-such-package" not in versions
