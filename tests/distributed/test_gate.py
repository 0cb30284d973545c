"""`harness gate` on a user's repository, with real ranks of two revisions in turn."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from harness.gate import paired
from tests.support.commands import harness
from tests.support.repository import Repository
from tests.support.running import processes_below

pytestmark = pytest.mark.distributed

# Differences that stand out from whatever else the machine does, so that a few short pairs of
# processes suffice.
LOUD = ("--min-effect", "33%", "--budget", "3s")
# Next to other programs, 3 s do not always decide; a gate ends as soon as it has decided.
LOUDER = ("--min-effect", "90%", "--budget", "60s")


@pytest.fixture(autouse=True)
def short_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let arms start to count while they still become a little faster."""
    monkeypatch.setattr(paired, "WARM_UP_SECONDS", 0.1)


@pytest.mark.nightly
def test_a_slower_working_tree_fails_and_is_told_of_everywhere(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    repository.write(1.0)
    summary = tmp_path / "gate.md"
    command = ("gate", "--against", "main", str(repository.sweep), *LOUD)
    ended = harness(*command, "--summary", str(summary))
    assert ended.code == 1, ended.err + ended.out
    headline, _, row, *_ = ended.out.splitlines()
    assert headline == "The gate of own fails: 1 of 1 cell failed"
    assert re.search(" -.*% .* slower ", row)
    assert summary.read_text(encoding="utf-8").startswith("### The gate of own fails")
    assert repository.git("worktree", "list").count("\n") == 0  # the other one is gone
    assert processes_below(tmp_path) == []


@pytest.mark.nightly
def test_the_same_code_passes_with_the_same_bits(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    for name in ("harness", "workloads"):  # folders of the user's hide nothing of ours
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('not ours')")
    repository.commit("folders that are called like ours")
    command = ("gate", "--against", "HEAD", str(repository.sweep), *LOUDER, "--json")
    ended = harness(*command, "--bits")
    assert ended.code == 0, ended.err + ended.out
    (cell,) = json.loads(ended.out)["cells"]
    assert cell["measured"]["same_bits"] is True
    assert cell["measured"]["verdict"] == "same"


@pytest.mark.nightly
def test_other_losses_fail_where_bits_matter(tmp_path: Path) -> None:
    repository = Repository(tmp_path, matrix={"strategy": "ddp", "world_size": 2})
    repository.write(
        0.0,
        # Not `MLP.optimizer`: this process plans the sweep too, and later tests in it train MLPs.
        more="\n\nSlowed.optimizer = lambda self, model: _sgd(model)\n"
        "\n\ndef _sgd(model):\n    import torch\n\n    return torch.optim.SGD(model.parameters(), lr=0.1)\n",
    )
    ended = harness(
        "gate",
        "--against",
        "HEAD",
        str(repository.sweep),
        "--budget",
        "1s",  # one pair shows the losses
        "--bits",
        "--json",
    )
    (cell,) = json.loads(ended.out)["cells"]
    assert ended.code == 1
    assert cell["measured"]["same_bits"] is False


# Fails where a rank may use as many cores as the whole trial.


FAILS = """


def fail(self, model, batch):
    raise ValueError("the dog ate the model")


Slowed.loss = fail
"""


def test_a_side_that_fails_says_what_its_rank_said(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    repository.write(0.0, more=FAILS)
    repository.commit("broken")
    repository.write(0.0)
    ended = harness("gate", "--against", "HEAD", str(repository.sweep), *LOUD)
    assert ended.code == 1
    assert "HEAD: rank 0 on" in ended.out
    assert "ValueError: the dog ate the model" in ended.out
    log = Path(ended.out.partition("; log: ")[2].split()[0])
    assert "the dog ate the model" in log.read_text(encoding="utf-8")
    shutil.rmtree(log.parents[1])


DRAWS = """

honest_loss = Slowed.loss


def loss(self, model, batch):
    import os

    return honest_loss(self, model, batch) * (1 + os.getpid() % 1000 / 1e5)


Slowed.loss = loss
"""


@pytest.mark.nightly
def test_equal_code_that_is_not_deterministic_does_not_fail_for_its_bits(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    repository.write(0.0, more=DRAWS)
    repository.commit("draws")
    command = ("gate", "--against", "HEAD", str(repository.sweep), *LOUDER, "--json")
    ended = harness(*command, "--bits")
    (cell,) = json.loads(ended.out)["cells"]
    assert cell["measured"]["same_bits"] is False
    assert cell["is_repeatable"] is False
    assert ended.code == 3, ended.out
