"""Folders and modules of a user's that are called like ours hide nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.paths import Results
from harness.records.files import read_record
from tests.support.running import local_profile
from tests.support.sweeps import write

pytestmark = pytest.mark.distributed

NOT_OURS = "raise RuntimeError('this is the user\\'s own')\n"
MODEL = """\
import helpers
from sibling import BATCH_SIZE
from workloads.mlp import MLP

class Mine(MLP):
    batch_size = BATCH_SIZE * helpers.FACTOR
"""


@pytest.mark.nightly
@pytest.mark.parametrize("forkserver", [False, True])
def test_what_is_installed_is_found_whatever_lies_beside_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forkserver: bool
) -> None:
    for name in ("workloads", "clusters", "harness", "yaml", "torch"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(NOT_OURS, encoding="utf-8")
    (tmp_path / "msgspec.py").write_text(NOT_OURS, encoding="utf-8")
    (tmp_path / "helpers.py").write_text("FACTOR = 2\n", encoding="utf-8")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "sibling.py").write_text("BATCH_SIZE = 32\n", encoding="utf-8")
    (tmp_path / "models" / "mine.py").write_text(MODEL, encoding="utf-8")
    sweep = write(
        tmp_path,
        {"mine": {"uses": "models/mine.py:Mine", "options": {"hidden": [8]}}},
        name="mine",
        matrix={"strategy": "ddp", "num_workers": 1},
        length={"steps": 3},
        warmup=1,
    )
    profile = local_profile(tmp_path, slots=2, forkserver=forkserver)
    for name in ("PYTHONPATH", "MLFLOW_TRACKING_URI", "HARNESS_RESULTS"):
        monkeypatch.delenv(name, raising=False)
    command = [Path(sys.executable).with_name("harness"), "run", sweep.name]
    command += ["--cluster", profile.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = Results(tmp_path / "results").sweep_folder("mine").record_paths()
    record = read_record(path)
    assert record.status == "done"
    assert record.trial.cell.axes.batch_size == 64
    assert record.ranks[0].loader_workers == 1
