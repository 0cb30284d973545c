"""The CI files for users: from an empty repository with the README's own workload to a pull request
that is judged.
"""

from __future__ import annotations

import os
import re
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
# Seconds, slept rather than computed, so that it hardly matters what else this machine does.
STEP = 0.04
SHORT_STEP = 0.01  # where the difference stands out
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


def github_file() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((CI / "github.yml").read_text(encoding="utf-8"))
    return content


def github_step(name: str) -> str:
    steps = [step for job in github_file()["jobs"].values() for step in job["steps"]]
    (script,) = (step["run"] for step in steps if step.get("name") == name)
    return str(script)


def gitlab_job() -> dict[str, Any]:
    (job,) = yaml.safe_load((CI / "gitlab.yml").read_text(encoding="utf-8")).values()
    definition: dict[str, Any] = job
    return definition


class Repository:
    """A user's, in which `main` trains a model of some size and the branch `change` does so too,
    slower by a share.
    """

    def __init__(self, folder: Path, slower: float, step: float = SHORT_STEP) -> None:
        self.path = folder
        self.git("init", "--quiet", "--initial-branch=main")
        (folder / "sweep.yaml").write_text(SWEEP, encoding="utf-8")
        self.commit(step)
        self.git("checkout", "--quiet", "-b", "change")
        self.commit(step * (1 + slower))

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
    repository = Repository(tmp_path, slower=0.05, step=STEP)
    repository.merge()
    done = bash(github_step("Measure"), tmp_path)
    assert done.returncode == 1, done.stderr + done.stdout
    assert done.stdout.splitlines()[-1] == "The gate fails: 1 of 1 cell."
    summary = (tmp_path / "gate.md").read_text(encoding="utf-8")
    assert summary.startswith("### Training speed of spiral: fails: 1 of 1 cell")
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
    script = "\n".join(job["script"])
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


def comment(
    folder: Path, gh: str = "true", report: str = "### Training speed of spiral: passes\n"
) -> list[str]:
    """Run the step that comments on what `measure` left; return the calls of `gh`, in order."""
    (folder / "untrusted").mkdir(exist_ok=True)
    if not (folder / "untrusted" / "gate.md").is_symlink():
        (folder / "untrusted" / "gate.md").write_text(report, encoding="utf-8")
    script = f'gh() {{ echo "$*" >> called; {gh}; }}\n' + github_step("Comment")
    done = bash(script, folder, GITHUB_REPOSITORY="us/it", PULL_REQUEST="5")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""  # a runner takes commands from what a step prints
    called = folder / "called"
    return called.read_text(encoding="utf-8").splitlines() if called.exists() else []


@pytest.mark.parametrize(
    ("gh", "last"),
    [
        (
            '[ "$1 $2" != "api --paginate" ] || printf "7\\n9\\n"',
            "--method PATCH repos/us/it/issues/comments/9",
        ),
        ("true", "repos/us/it/issues/5/comments"),
    ],
    ids=["again", "first"],
)
def test_githubs_job_writes_one_comment_and_renews_it(tmp_path: Path, gh: str, last: str) -> None:
    assert comment(tmp_path, gh)[-1] == f"api {last} -F body=@comment.md"
    text = (tmp_path / "comment.md").read_text(encoding="utf-8")
    assert text == "### Training speed\nspiral: passes\n"


HOSTILE = (
    "### Training speed of `x`: passes @org/all ![](https://evil/pixel.png) [click](http://evil)\n"
    "::error::fake\n<img src=x> \\<b> www.evil.example #1 \x1b[31m \u202egnp\n"
    "| cell | before |\n| --- | ---: |\n"
)


def test_githubs_comment_mentions_nobody_and_links_nowhere(tmp_path: Path) -> None:
    assert comment(tmp_path, report=HOSTILE + "@" * 200_000)
    text = (tmp_path / "comment.md").read_text(encoding="utf-8")
    assert len(text) < 65_536  # GitHub refuses longer ones
    for harmful in ("@org", "![", "](", "://", "<", "www.", "#1", "\x1b", "\u202e"):
        assert harmful not in text
    assert "| --- | ---: |" in text  # a table stays one


def test_githubs_comment_is_of_a_file_and_not_of_what_a_link_names(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("token", encoding="utf-8")
    (tmp_path / "untrusted").mkdir()
    (tmp_path / "untrusted" / "gate.md").symlink_to(tmp_path / "secret")
    assert comment(tmp_path) == []


def test_only_the_job_that_runs_nothing_of_a_pull_request_may_write() -> None:
    """The one that measures has no right to write, no token on its disk, and no secret."""
    file = github_file()
    measure, writer = file["jobs"]["measure"], file["jobs"]["comment"]
    assert file["permissions"] == {}
    assert measure["permissions"] == {"contents": "read"}
    assert writer["permissions"] == {"pull-requests": "write"}
    (checkout,) = (step for step in measure["steps"] if "actions/checkout@" in step.get("uses", ""))
    assert checkout["with"]["persist-credentials"] is False
    assert not any("checkout" in step.get("uses", "") for step in writer["steps"])
    assert "token" not in str(measure).lower()
    assert "pip" not in str(writer)
    assert "head.repo.full_name == github.repository" in writer["if"]


def test_nobody_else_can_change_what_a_job_runs() -> None:
    """Actions are pinned by commit, the harness by commit and its packages by constraints."""
    file = github_file()
    steps = [step for job in file["jobs"].values() for step in job["steps"]]
    for step in steps:
        if "uses" in step:
            assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", step["uses"])
    assert file["concurrency"]["cancel-in-progress"] is True
    for install in (github_step("Install"), "\n".join(gitlab_job()["before_script"])):
        assert 'checkout --quiet "$COMMIT"' in install
        assert "--constraint" in install
    for definition in (file["env"], gitlab_job()["variables"]):
        assert re.fullmatch("[0-9a-f]{40}", definition["COMMIT"])
    assert (TOP / "constraints.txt").is_file()


def test_no_text_of_a_pull_request_is_pasted_into_a_script() -> None:
    """A branch's name or a title in `${{ }}` would be run by the shell."""
    for job in github_file()["jobs"].values():
        for step in job["steps"]:
            assert "${{" not in step.get("run", "")
