"""The CI files for users: from an empty repository with the README's own workload to a pull request
that is judged.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import parse

import pytest
import yaml

from tests.cli.test_readme import write_printed
from tests.support.tree import TOP

CI = TOP / "harness" / "gate" / "ci"
# seconds, slept rather than computed, so that it hardly matters what else this machine does
STEP = 0.04
SWEEP = """
name: spiral
workloads:
  spiral: {uses: "spiral.py:Spiral"}
length: {epochs: 20}
"""
LOSS = """
    def loss(self, model, batch):
        import time

        time.sleep({seconds})
        return super().loss(model, batch)
"""


def github_step(name: str) -> str:
    (job,) = yaml.safe_load((CI / "github.yml").read_text(encoding="utf-8"))["jobs"].values()
    (script,) = (step["run"] for step in job["steps"] if step.get("name") == name)
    return str(script)


def gitlab_job() -> dict[str, Any]:
    (job,) = yaml.safe_load((CI / "gitlab.yml").read_text(encoding="utf-8")).values()
    definition: dict[str, Any] = job
    return definition


class Repository:
    """A user's, in which `main` trains a model of some size and the branch `change` does so too,
    slower by a share.
    """

    def __init__(self, folder: Path, slower: float) -> None:
        self.path = folder
        self.git("init", "--quiet", "--initial-branch=main")
        (folder / "sweep.yaml").write_text(SWEEP, encoding="utf-8")
        self.commit(STEP)
        self.git("checkout", "--quiet", "-b", "change")
        self.commit(STEP * (1 + slower))

    def git(self, *arguments: str) -> str:
        who = ("-c", "user.name=Test", "-c", "user.email=test@localhost")
        command = ["git", "-C", str(self.path), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, seconds: float) -> None:
        source = write_printed("spiral.py", self.path)
        source.write_text(
            source.read_text(encoding="utf-8") + LOSS.format(seconds=seconds), encoding="utf-8"
        )
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", f"{seconds} s a step")

    def merge(self) -> None:
        """What GitHub checks out for a pull request."""
        self.git("checkout", "--quiet", "--detach", "main")
        self.git("merge", "--quiet", "--no-ff", "--message", "merge", "change")


def bash(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """As a runner does it, with the commands of this environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "PYTHONPATH": str(TOP), **variables}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )


def louder(script: str) -> str:
    """The script with a change that stands out from whatever else the machine does: it takes few
    pairs of processes.
    """
    assert " sweep.yaml " in script
    return script.replace(" sweep.yaml ", " sweep.yaml --min-effect 20% ")


@pytest.mark.distributed
@pytest.mark.alone
def test_githubs_job_fails_a_pull_request_that_trains_five_percent_slower(tmp_path: Path) -> None:
    repository = Repository(tmp_path, slower=0.05)
    repository.merge()
    done = bash(github_step("Measure"), tmp_path)
    assert done.returncode == 1, done.stderr + done.stdout
    assert done.stdout.splitlines()[-1] == "The gate fails: 1 of 1 cells."
    summary = (tmp_path / "gate.md").read_text(encoding="utf-8")
    assert summary.startswith("### Training speed of `spiral`: fails: 1 of 1 cells")
    assert "% slower than base (" in summary
    suite = parse(tmp_path / "gate.xml").getroot()
    assert suite.get("tests") == "1"
    assert suite.find("testcase/failure") is not None


@pytest.mark.distributed
def test_githubs_job_lets_a_pull_request_in_that_changes_nothing(tmp_path: Path) -> None:
    repository = Repository(tmp_path, slower=0.0)
    repository.merge()
    done = bash(louder(github_step("Measure")), tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    assert parse(tmp_path / "gate.xml").getroot().get("failures") == "0"


@pytest.mark.distributed
def test_gitlabs_job_fails_a_slower_merge_request(tmp_path: Path) -> None:
    repository, job = Repository(tmp_path, slower=0.5), gitlab_job()
    script = "\n".join(line for line in job["script"] if not line.startswith("pip "))
    done = bash(
        louder(script), tmp_path, CI_MERGE_REQUEST_DIFF_BASE_SHA=repository.git("rev-parse", "main")
    )
    assert done.returncode == 1, done.stderr + done.stdout
    assert (
        parse(tmp_path / job["artifacts"]["reports"]["junit"]).getroot().find("testcase/failure")
        is not None
    )
    assert job["allow_failure"]["exit_codes"] == 3


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_githubs_job_warns_where_nothing_can_be_told(tmp_path: Path, code: int) -> None:
    script = f"git() {{ :; }}; harness() {{ return {code}; }}\n" + github_step("Measure")
    done = bash(script, tmp_path)
    assert done.returncode == (0 if code == 3 else code)
    assert ("::warning" in done.stdout) == (code == 3)


@pytest.mark.parametrize(
    ("gh", "last", "notice"),
    [
        (
            '[ "$1 $2" != "api --paginate" ] || printf "7\\n9\\n"',
            "--method PATCH repos/us/it/issues/comments/9",
            "",
        ),
        ("true", "repos/us/it/issues/5/comments", ""),
        ('[ "$2" = --paginate ]', "repos/us/it/issues/5/comments", "::notice::no comment"),
    ],
    ids=["again", "first", "fork"],
)
def test_githubs_job_writes_one_comment_and_renews_it(
    tmp_path: Path, gh: str, last: str, notice: str
) -> None:
    (tmp_path / "gate.md").write_text("### Training speed of `spiral`: passes\n", encoding="utf-8")
    script = f'gh() {{ echo "$*" >> called; {gh}; }}\n' + github_step("Tell")
    done = bash(
        script, tmp_path, GITHUB_STEP_SUMMARY="step.md", GITHUB_REPOSITORY="us/it", PULL_REQUEST="5"
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "step.md").read_bytes() == (tmp_path / "gate.md").read_bytes()
    assert (tmp_path / "called").read_text(encoding="utf-8").splitlines()[
        -1
    ] == f"api {last} -F body=@gate.md"
    assert done.stdout.startswith(notice)
