"""A sweep over two interpreters: one that is started as it is, one in a container."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from harness.core.paths import Results
from tests.support.running import line_sweep, run
from tests.support.stacks import PACKAGE, container, make_environment

pytestmark = pytest.mark.distributed


@pytest.mark.nightly
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
