"""Folders and modules of a user's that are called like ours hide nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from harness.core.paths import Results
from harness.records.files import read_record
from tests.support.running import NO_VALIDITY_LIMITS

pytestmark = pytest.mark.distributed

NOT_OURS = "raise RuntimeError('this is the user\\'s own')\n"
MODEL = """\
import helpers
from sibling import BATCH_SIZE
from workloads.mlp import MLP

class Mine(MLP):
    batch_size = BATCH_SIZE * helpers.FACTOR
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a folder with a sweep, and much beside it that is called like what we import."""
    for name in ("workloads", "clusters", "harness", "yaml", "torch"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(NOT_OURS, encoding="utf-8")
    (tmp_path / "msgspec.py").write_text(NOT_OURS, encoding="utf-8")
    (tmp_path / "helpers.py").write_text("FACTOR = 2\n", encoding="utf-8")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "sibling.py").write_text("BATCH_SIZE = 32\n", encoding="utf-8")
    (tmp_path / "models" / "mine.py").write_text(MODEL, encoding="utf-8")
    sweep = {
        "name": "mine",
        "workloads": {"mine": {"uses": "models/mine.py:Mine", "options": {"hidden": [8]}}},
        "matrix": {"strategy": "ddp", "num_workers": 1},
        "length": {"steps": 3},
        "warmup": 1,
    }
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep), encoding="utf-8")
    return tmp_path


@pytest.mark.nightly
@pytest.mark.parametrize("forkserver", [False, True])
def test_what_is_installed_is_found_whatever_lies_beside_the_sweep(
    project: Path, forkserver: bool
) -> None:
    command = Path(sys.executable).with_name("harness")
    profile = {
        "device": "cpu", "slots": 2, "forkserver": forkserver, "validity": NO_VALIDITY_LIMITS
    }  # fmt: skip
    (project / "local.yaml").write_text(yaml.safe_dump(profile), encoding="utf-8")
    dropped = ("PYTHONPATH", "MLFLOW_TRACKING_URI", "HARNESS_RESULTS")
    variables = {name: value for name, value in os.environ.items() if name not in dropped}
    done = subprocess.run(
        [str(command), "run", "sweep.yaml", "--cluster", "local.yaml"],
        cwd=project,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = Results(project / "results").sweep_folder("mine").record_paths()
    record = read_record(path)
    assert record.status == "done"
    assert record.trial.cell.axes.batch_size == 64
    assert record.ranks[0].loader_workers == 1
