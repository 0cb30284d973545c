"""`harness gate` on a user's repository, with real ranks of two revisions in turn."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from harness.core.cores import usable_cores
from harness.gate import paired
from tests.support.commands import harness
from tests.support.repository import Repository
from tests.support.running import processes_below

pytestmark = pytest.mark.distributed

# Differences that stand out from whatever else the machine does, so that a few short pairs of
# processes suffice.
LOUD = ("--min-effect", "33%", "--budget", "3s")
LOUDER = ("--min-effect", "90%", "--budget", "3s")


@pytest.fixture(autouse=True)
def short_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let arms start to count while they still become a little faster."""
    monkeypatch.setattr(paired, "WARM_UP_SECONDS", 0.1)


@pytest.mark.nightly
def test_a_slower_working_tree_fails_and_is_told_of_everywhere(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    repository.write(1.0)
    summary, junit = tmp_path / "gate.md", tmp_path / "gate.xml"
    ended = harness(
        "gate",
        "--against",
        "main",
        str(repository.sweep),
        *LOUD,
        "--summary",
        str(summary),
        "--junit",
        str(junit),
    )
    assert ended.code == 1, ended.err + ended.out
    # Next to other tests, steps that wait for a core may decide sooner than the usual ones.
    *_, reason, headline, command = ended.out.splitlines()
    assert re.search("slower (as a whole )?than main", reason)
    assert headline == "The gate fails: 1 of 1 cell."
    assert command.startswith(
        f"next  harness explain main . {repository.sweep} --revisions --cell "
    )
    assert summary.read_text(encoding="utf-8").startswith("### Training speed of own: fails")
    assert '<failure message="own eager' in junit.read_text(encoding="utf-8")
    assert repository.git("worktree", "list").count("\n") == 0  # the other one is gone
    assert processes_below(tmp_path) == []


@pytest.mark.nightly
def test_a_gate_explains_what_makes_a_cell_slower(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    more = (
        "\n\nplain_loss = Slowed.loss\n\n\ndef loss(self, model, batch):\n    import torch\n\n"
        "    torch.ones(700, 700).cumsum(dim=0)\n    return plain_loss(self, model, batch)\n"
        "\n\nSlowed.loss = loss\n"
    )
    repository.write(0.0, more=more)
    summary = tmp_path / "gate.md"
    options = ("--explain", "--budget", "30s", "--min-effect", "20%", "--summary", str(summary))
    ended = harness("gate", "--against", "main", str(repository.sweep), *options, "--json")
    assert ended.code == 1, ended.err + ended.out
    (cell,) = json.loads(ended.out)["cells"]
    parts = cell["explanation"]["parts"]
    assert parts[0]["name"] == "aten::cumsum"
    assert "aten::cumsum" in summary.read_text(encoding="utf-8")


@pytest.mark.nightly
def test_the_same_code_passes_with_the_same_bits_its_control_and_its_accuracy(
    tmp_path: Path,
) -> None:
    repository = Repository(tmp_path)
    for name in ("harness", "workloads"):  # folders of the user's hide nothing of ours
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('not ours')")
    repository.commit("folders that are called like ours")
    command = ("gate", "--against", "HEAD", str(repository.sweep), *LOUDER, "--json")
    options = ("--control", "--bits", "--accuracy", "--accuracy-seeds", "2")
    ended = harness(*command, *options)
    assert ended.code == 0, ended.err + ended.out
    (cell,) = json.loads(ended.out)["cells"]
    assert cell["measured"]["same_bits"] is True
    assert (cell["measured"]["verdict"], cell["control"]["verdict"]) == ("same", "same")
    assert cell["accuracy"]["outcome"] == "same"


@pytest.mark.nightly
def test_other_losses_fail_where_bits_matter(tmp_path: Path) -> None:
    repository = Repository(tmp_path, axes={"strategy": "ddp", "world_size": 2})
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
    assert cell["summary"].endswith("its losses differ from those of HEAD")


# Fails where a rank may use as many cores as the whole trial.
ON_SOME_CORES = """

plain_loss = Slowed.loss


def loss(self, model, batch):
    import os

    found = os.sched_getaffinity(0)
    if len(found) >= ALL:
        raise ValueError(f"the rank is on cores {found}")
    return plain_loss(self, model, batch)


Slowed.loss = loss
"""


@pytest.mark.nightly
@pytest.mark.skipif(len(usable_cores()) < 2, reason="one core is all that there is")
def test_ranks_of_both_sides_are_bound(tmp_path: Path) -> None:
    axes = {"strategy": "ddp", "world_size": 2, "binding": "exclusive"}
    repository = Repository(tmp_path, axes=axes)
    repository.write(0.0, more=ON_SOME_CORES.replace("ALL", str(len(usable_cores()))))
    repository.commit("checks its cores")
    command = ("gate", "--against", "HEAD", str(repository.sweep), "--budget", "1s", "--bits")
    ended = harness(*command, "--json")
    (cell,) = json.loads(ended.out)["cells"]
    assert cell["measured"]["same_bits"] is True, ended.out


def test_a_side_that_fails_says_what_its_rank_said(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    repository.write(0.0, more="\n\nraise ValueError('the dog ate the model')\n")
    repository.commit("broken")
    repository.write(0.0)
    ended = harness("gate", "--against", "HEAD", str(repository.sweep), *LOUD)
    assert ended.code == 1
    assert "HEAD: rank 0 on" in ended.out
    assert "ValueError: the dog ate the model" in ended.out
    log = Path(ended.out.partition("; log: ")[2].split()[0])
    assert "the dog ate the model" in log.read_text(encoding="utf-8")
    shutil.rmtree(log.parents[1])


# As fast as before, since all is computed, and learns nothing.
FORGETS = """

honest_loss = Slowed.loss
Slowed.loss = lambda self, model, batch: honest_loss(self, model, batch) * 0.0
"""


@pytest.mark.nightly
def test_a_bug_that_keeps_the_speed_and_ruins_the_learning_fails(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    repository.write(0.0, more=FORGETS)
    command = ("gate", "--against", "HEAD", str(repository.sweep), *LOUDER, "--json")
    # Next to other tests, three seconds do not always decide; a gate ends as soon as it has decided.
    ended = harness(*command, "--accuracy", "--accuracy-seeds", "3", "--budget", "30s")
    assert ended.code == 1, ended.err + ended.out
    (cell,) = json.loads(ended.out)["cells"]
    assert cell["measured"]["verdict"] == "same"
    accuracy = cell["accuracy"]
    assert (accuracy["outcome"], accuracy["metric"], accuracy["seeds"]) == ("worse", "accuracy", 3)
    assert accuracy["before"] > 0.6 > accuracy["now"]
    repository.write(0.0, more="\n\nSlowed.loss = lambda self, model, batch: 1 / 0\n")
    ended = harness(*command, "--accuracy", "--accuracy-seeds", "2")
    assert ended.code == 1
    (cell,) = json.loads(ended.out)["cells"]
    assert "the working tree: seed 0: ZeroDivisionError" in cell["accuracy"]["failure"]
    shutil.rmtree(Path(cell["accuracy"]["failure"].partition("; log: ")[2]).parents[2])
