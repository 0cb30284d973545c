"""What ranks are started with: variables that are axes, interpreters, and a folder with names like ours."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from harness.core.paths import Results
from harness.records.files import read_record
from tests.support.running import line_sweep, local_profile, run
from tests.support.stacks import PACKAGE, container, make_environment
from tests.support.sweeps import write

pytestmark = [pytest.mark.distributed, pytest.mark.nightly]

CAPABILITY = "env.ATEN_CPU_CAPABILITY"
BEST = torch.backends.cpu.get_cpu_capability()
NOT_OURS = "raise RuntimeError('this is the user\\'s own')\n"
MODEL = """\
import helpers
from sibling import BATCH_SIZE
from workloads.mlp import MLP

class Mine(MLP):
    batch_size = BATCH_SIZE * helpers.FACTOR
"""


@pytest.mark.skipif(BEST not in ("AVX2", "AVX512"), reason="torch has one set of kernels here")
def test_each_value_is_seen_and_takes_effect(tmp_path: Path) -> None:
    values = ["default", BEST.lower()]
    sweep = line_sweep(tmp_path, {"line": {}}, length={"steps": 4}, matrix={CAPABILITY: values})
    capabilities = []
    for record, value in zip(run(sweep), values, strict=True):
        environment = record.environment
        assert environment is not None, record.failure
        assert environment.variables["ATEN_CPU_CAPABILITY"] == value
        assert environment.settings is not None
        capabilities.append(environment.settings.cpu_capability)
    assert capabilities[0] in ("DEFAULT", "NO AVX")
    assert capabilities[1] == BEST


def test_ranks_run_under_each_stack_and_say_what_it_has(tmp_path: Path) -> None:
    pythons = {
        name: make_environment(tmp_path / name, version)
        for name, version in (("old", "1.0"), ("boxed", "2.0"))
    }
    stacks = {
        "old": {"python": "old/bin/python"},  # relative to the sweep's file
        "boxed": {"prefix": container(), "python": str(pythons["boxed"])},
    }
    path = line_sweep(
        tmp_path,
        {"line": {}},
        length={"steps": 4},
        evaluate={"steps": 4},
        stacks=stacks,
        matrix={"stack": list(stacks), "env.SOME_NAME": ["x"]},
    )
    records = {record.trial.cell.axes.stack: record for record in run(path)}
    assert {name: (record.status, record.failure) for name, record in records.items()} == {
        "old": ("done", None),
        "boxed": ("done", None),
    }
    folder = Results(tmp_path / "results").sweep_folder("line")
    for name, version in (("old", "1.0"), ("boxed", "2.0")):
        environment = records[name].environment
        assert environment is not None
        assert environment.variables["SOME_NAME"] == "x"
        pins = folder.packages_path(str(environment.installed)).read_text()
        assert hashlib.sha256(pins.encode()).hexdigest() == environment.installed
        assert f"{PACKAGE}=={version}\n" in pins
    digests = {record.rank0.parameter_digest for record in records.values() if record.rank0}
    assert len(digests) == 1  # the same torch, so the same bits


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
    command = [str(Path(sys.executable).with_name("harness")), "run", sweep.name]
    command += ["--cluster", profile.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = Results(tmp_path / "results").sweep_folder("mine").record_paths()
    record = read_record(path)
    assert record.status == "done"
    assert record.trial.cell.axes.batch_size == 64
