"""The CI files for users: from an empty repository with the README's own workload to a pull request
that is judged.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.ci_files import Repository, bash, github_file, github_step, gitlab_job
from tests.support.tree import TOP


def louder(script: str) -> str:
    """Return the script with an effect to look for that takes few pairs of processes."""
    assert " sweep.yaml " in script
    return script.replace(" sweep.yaml ", " sweep.yaml --min-effect 20% ")


@pytest.mark.nightly
@pytest.mark.distributed
def test_githubs_job_lets_a_pull_request_in_that_changes_nothing(tmp_path: Path) -> None:
    repository = Repository(tmp_path, slower=0.0)
    repository.merge()
    done = bash(louder(github_step("Measure")), tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    summary = (tmp_path / "gate.md").read_text(encoding="utf-8")
    assert summary.startswith("### The gate of spiral passes")


@pytest.mark.nightly
@pytest.mark.distributed
def test_gitlabs_job_fails_a_slower_merge_request(tmp_path: Path) -> None:
    repository, job = Repository(tmp_path, slower=0.5), gitlab_job()
    script = "\n".join(job["script"])
    done = bash(
        louder(script), tmp_path, CI_MERGE_REQUEST_DIFF_BASE_SHA=repository.git("rev-parse", "main")
    )
    assert done.returncode == 1, done.stderr + done.stdout
    assert job["artifacts"]["paths"] == ["gate.md"]
    assert (tmp_path / "gate.md").is_file()
    assert job["allow_failure"]["exit_codes"] == 3


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_githubs_job_warns_where_nothing_can_be_told(tmp_path: Path, code: int) -> None:
    script = f"git() {{ :; }}; harness() {{ return {code}; }}\n" + github_step("Measure")
    done = bash(script, tmp_path)
    assert done.returncode == (0 if code == 3 else code)
    assert ("::warning" in done.stdout) == (code == 3)


def comment(
    folder: Path, gh: str = "true", report: str = "### The gate of spiral passes\n"
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
    assert text == "### Training speed\nThe gate of spiral passes\n"


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
    file, job = github_file(), gitlab_job()
    for step in [step for job in file["jobs"].values() for step in job["steps"]]:
        if "uses" in step:
            assert re.fullmatch(r"actions/[a-z/-]+@[0-9a-f]{40}", step["uses"])
    check_install(github_step("Install"), file["env"])
    check_install("\n".join(job["before_script"]), job["variables"])
    assert file["concurrency"]["cancel-in-progress"] is True
    assert (TOP / "constraints.txt").is_file()


def check_install(script: str, variables: dict[str, str]) -> None:
    assert 'checkout --quiet "$COMMIT"' in script
    assert "--constraint" in script
    assert re.fullmatch("[0-9a-f]{40}", variables["COMMIT"])


def test_no_text_of_a_pull_request_is_pasted_into_a_script() -> None:
    """A branch's name or a title in `${{ }}` would be run by the shell."""
    for job in github_file()["jobs"].values():
        for step in job["steps"]:
            assert "${{" not in step.get("run", "")
