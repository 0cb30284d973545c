"""A node that is slower than the others and one that flips a bit, as the doctor and trials find them.

Both are planted in the Python that the profile names: on n2 it runs a program that changes a bit of
a parameter after a step, on n3 it is stopped for three quarters of the time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.slurm.doctor import cluster
from tests.slurm.cluster import Slurm
from tests.slurm.conftest import set_client_environment, skip_if
from tests.slurm.daemons import missing, running
from tests.slurm.sweeps import is_over, read_records, status
from tests.support.commands import harness
from tests.support.running import NO_VALIDITY_LIMITS, line_sweep, wait_until
from tests.support.tree import TOP

pytestmark = [pytest.mark.slurm, pytest.mark.distributed, pytest.mark.timeout(1200)]

NODES = ("n1", "n2", "n3", "n4")
# Runs `-P -m MODULE ARGUMENTS`, and flips a bit of the first parameter after the 37th step.
FLIPPING = """
import runpy, sys
from torch.optim.optimizer import register_optimizer_step_post_hook
steps = 0
def flip(optimizer, *_):
    global steps
    steps += 1
    if steps == 37:
        optimizer.param_groups[0]["params"][0].detach().view(dtype=__import__("torch").int32).view(-1)[5] ^= 1
register_optimizer_step_post_hook(flip)
module, *arguments = sys.argv[sys.argv.index("-m") + 1:]
sys.argv = [module, *arguments]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
# What a shell does before it becomes Python, which keeps its process id.
STOPPING = (
    "(while kill -STOP $$ && sleep 0.06 && kill -CONT $$ && sleep 0.02; do :; done)"
    " </dev/null >/dev/null 2>&1 &"
)


@pytest.fixture(scope="module")
def four_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    skip_if(missing())
    with running(tmp_path_factory.mktemp("four"), nodes=NODES) as slurm:
        yield slurm


@pytest.fixture
def slurm(four_nodes: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    set_client_environment(four_nodes, monkeypatch)
    monkeypatch.setattr(cluster, "LAG_SECONDS", 1.0)
    monkeypatch.setenv("PYTHONPATH", str(TOP))
    yield four_nodes
    four_nodes.restore()


def write_profile(folder: Path, *planted: str, **slurm: Any) -> Path:
    """Write a profile whose Python begins with these lines of shell."""
    python = folder / "python"
    python.write_text("\n".join(["#!/bin/sh", *planted, f'exec {sys.executable} "$@"', ""]))
    python.chmod(0o755)
    content = {
        "launcher": "slurm",
        "device": "cpu",
        "validity": NO_VALIDITY_LIMITS,
        "slurm": {"exclusive": False, "time": "10", "python": str(python), **slurm},
    }
    profile = folder / "profile.yaml"
    profile.write_text(yaml.safe_dump(content), encoding="utf-8")
    return profile


def on_node(node: str, line: str) -> str:
    """Return a line of shell that does something on one node."""
    return f'if [ "$SLURMD_NODENAME" = {node} ]; then {line}\nfi'


@pytest.mark.nightly
def test_the_doctor_names_both_and_submissions_leave_them_out(slurm: Slurm, tmp_path: Path) -> None:
    flipping = tmp_path / "flipping.py"
    flipping.write_text(FLIPPING, encoding="utf-8")
    flip = f'case "$*" in *doctor.measurement*) exec {sys.executable} {flipping} "$@";; esac'
    planted = [on_node("n2", flip), on_node("n3", STOPPING)]
    profile = write_profile(tmp_path, *planted, nodes=4, exclude="auto")
    results = str(tmp_path / "results")
    arguments = ["--cluster", str(profile), "--results", results]
    ended = harness("doctor", *arguments, "--measure", "--json")
    assert ended.code == 1
    checks = {check["name"]: check for check in json.loads(ended.out)["checks"]}
    assert checks["bits"]["detail"].startswith("n2: rank 1 (")
    assert checks["bits"]["detail"].endswith(", as 3 of 4 ranks do")
    assert checks["speed"]["detail"].startswith("n3: ")
    assert checks["speed"]["detail"].count("slower") == 1
    assert checks["pairs"]["passed"]

    write_profile(tmp_path, *planted, nodes=2, exclude="auto")
    sweep = line_sweep(tmp_path, {"line": {}}, length={"steps": 20}, seeds=[0])
    ended = harness("submit", str(sweep), *arguments)
    assert "node n2 is excluded: rank 1 (" in ended.out
    assert "node n3 is excluded: " in ended.out
    wait_until(lambda: is_over(tmp_path / "results"), 300, every=2.0)
    (record,) = read_records(tmp_path / "results").values()
    assert record.settings is not None
    assert record.settings.excluded_nodes == ["n2", "n3"]
    assert record.summary is not None
    assert set(record.summary.node_seconds) <= {"n1", "n4"}


@pytest.mark.nightly
def test_trials_on_all_nodes_show_which_is_slow(slurm: Slurm, tmp_path: Path) -> None:
    """Blocks are pairs: all three nodes train each trial."""
    planted = on_node("n3", STOPPING)
    profile = write_profile(tmp_path, planted, nodes=3, exclude="auto")
    content = {
        "name": "line",
        "workloads": {"mlp": {"data": {"source": "digits"}, "options": {"hidden": [1024, 1024]}}},
        "length": {"steps": 60},
        "seeds": [0, 1, 2, 3],
        "warmup": 5,
        "axes": {"strategy": "ddp", "world_size": 3, "batch_size": 510},
    }
    sweep = tmp_path / "line.yaml"
    sweep.write_text(yaml.safe_dump(content), encoding="utf-8")
    results = tmp_path / "results"
    arguments = ["--cluster", str(profile), "--results", str(results)]
    assert harness("submit", str(sweep), *arguments).code == 0
    wait_until(lambda: is_over(results), 600, every=3.0)
    slowest, *others = status(results)["nodes"]
    assert (slowest["node"], slowest["count"]) == ("n3", 4)
    assert slowest["high"] < 1
    assert {speed["node"] for speed in others} == {"n1", "n2"}
    assert "slow node n3: " in harness("status", "line", "--results", str(results)).out

    more = harness("submit", str(sweep), *arguments, "--set", "seeds=0,1,2,3,4", "--dry-run")
    assert "node n3 is excluded: " in more.out, more.err
