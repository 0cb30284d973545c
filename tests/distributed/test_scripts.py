"""Scripts with their own loops, unchanged, as trials: a plain one, DDP, and that of a larger project."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from harness.records.numbers import RATES
from harness.records.record import Record
from tests.support.commands import harness
from tests.support.repository import Repository
from tests.support.running import USER_SCRIPTS, by_label, line_sweep, local_profile, run

pytestmark = pytest.mark.distributed

SETTINGS = """
[model]
width = 8
[optimizer]
lr = 0.01
[training]
seed = 0
local_batch_size = 8
steps = 12
"""


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """Return the records of each script, the plain one trained twice."""
    folder = tmp_path_factory.mktemp("scripts")
    shutil.copytree(USER_SCRIPTS, folder, dirs_exist_ok=True)
    (folder / "tiny.toml").write_text(SETTINGS)
    path = line_sweep(
        folder,
        {
            "plain": {
                "uses": "plain.py",
                "arguments": "--lr {lr} --out {folder}",
                "options": {"lr": 0.01},
            },
            "again": {"uses": "plain.py", "arguments": "--lr 0.01"},
            "ddp": {
                "uses": "ddp.py",
                "arguments": ["--batch-size", "{rank_batch_size}"],
                "axes": {"batch_size": 32, "world_size": 2},
                "target": "accuracy",
            },
            "titan": {
                "uses": "titan.py",
                "arguments": "--job.config_file tiny.toml --optimizer.lr {lr}",
                "axes": {"world_size": 2, "lr": 0.02},
                "length": {"steps": 9},
            },
        },
    )
    return by_label(run(path))


def samples_per_step(record: Record) -> float:
    """Return the samples of a step that the ranks of a script counted or reported."""
    return sum(rank.samples_per_step or 0 for rank in record.ranks)


def test_all_of_them_are_measured(records: dict[str, Record]) -> None:
    for label, record in records.items():
        assert record.failure is None, label
        assert record.status == "done", label
        shares = {name for name in record.numbers if name.endswith("_share")}
        assert not shares, "the phases of its steps are not known"
        assert record.order_digest is None, "nor which samples it saw"


def test_a_plain_script_counts_steps_and_has_the_trial_s_seed(records: dict[str, Record]) -> None:
    digests = set()
    for record in (records["plain"], records["again"]):
        assert record.loss is not None
        assert len(record.loss) == 40
        assert RATES["steps/s"] in record.numbers
        assert "final_loss" not in record.numbers
        assert np.isnan(record.loss).all()
        assert record.rank0 is not None
        assert record.rank0.evaluations == ()
        digests.add(record.rank0.parameter_digest)
    assert len(digests) == 1


def test_ranks_have_torchrun_s_variables(records: dict[str, Record]) -> None:
    record = records["ddp"]
    assert record.rank0 is not None
    assert RATES["samples/s"] in record.numbers
    assert samples_per_step(record) == 32
    assert [evaluation.step for evaluation in record.rank0.evaluations] == [20, 40]
    accuracy = record.rank0.evaluations[-1].metrics["accuracy"]
    assert record.numbers["final_accuracy"] == accuracy > 0.8
    assert record.numbers["final_loss"] < 0.6


def test_torchtitan_s_way_of_training(records: dict[str, Record]) -> None:
    record = records["titan"]
    assert record.loss is not None
    assert len(record.loss) == 9, "the harness ended it at its length"
    assert samples_per_step(record) == 16


def test_commands_that_need_the_harness_s_loop_refuse_a_script(tmp_path: Path) -> None:
    shutil.copy(USER_SCRIPTS / "plain.py", tmp_path)
    path = line_sweep(tmp_path, {"plain": {"uses": "plain.py"}})
    for command in ("check", "find-lr"):
        done = harness(command, str(path))
        assert done.code == 2
        assert (
            "plain: found plain.py, a script with its own loop; allowed for this command: "
            in done.err
        )


@pytest.mark.nightly
def test_a_slower_commit_of_a_script_fails_the_gate(tmp_path: Path) -> None:
    script = (USER_SCRIPTS / "plain.py").read_text()
    workloads = {"plain": {"uses": "plain.py", "arguments": "--steps {steps}"}}
    repository = Repository(tmp_path / "repository", workloads=workloads)
    (repository.path / "plain.py").write_text(script)
    repository.commit("a script")
    slow = "    optimizer.step()\n    torch.ones(400, 400) @ torch.ones(400, 400)\n"
    slower = script.replace("    optimizer.step()\n", slow)
    (repository.path / "plain.py").write_text(slower)
    sweep, profile = str(repository.sweep), str(local_profile(tmp_path))
    done = harness("gate", sweep, "--against", "HEAD", "--cluster", profile, "--budget", "30s")
    assert done.code == 1, done.err
    assert "slower" in done.out
