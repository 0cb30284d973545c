"""Recorded code is taken where the code here is another one and git has it; nothing here changes."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.errors import BadInput
from harness.core.paths import SweepFolder
from harness.core.worktree import run_git
from harness.records.environment import Repository as RecordedRepository
from harness.records.environment import describe_repository, encode_diff
from harness.reproduce.source import (
    Choice,
    Source,
    choose_source,
    locate_base,
    read_diff,
    source_checked_out,
)
from harness.sweep.cell import WorkloadRef
from tests.factories import make_cell
from tests.support.repository import Repository

THERE = {"own.py": "1" * 64}
OTHER = {"own.py": "2" * 64}
OWN = replace(make_cell().workload, uses="own.py:Slowed", code=THERE)
EDITED = replace(OWN, code=OTHER)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "user")


def recorded(repository: Repository, **changes: object) -> RecordedRepository:
    commit = repository.git("rev-parse", "HEAD")
    return RecordedRepository(**{"commit": commit, "dirty": False, **changes})  # type: ignore[arg-type]


def choose(
    repository: Repository,
    source: RecordedRepository | None,
    here: WorkloadRef,
    *,
    diff: bytes | None = None,
    code: Choice | None = None,
) -> Source:
    return choose_source(source, diff, OWN, here, repository.path, code)


def test_the_same_code_is_not_checked_out(repository: Repository) -> None:
    choice = choose(repository, recorded(repository), OWN)
    assert (choice.choice, choice.reason) == ("here", "the same as recorded")
    with source_checked_out(choice, repository.path) as found:
        assert found == repository.path


def test_other_code_is_checked_out_beside_the_working_tree(repository: Repository) -> None:
    source = recorded(repository)
    before = (repository.path / "own.py").read_text(encoding="utf-8")
    repository.write(0.5)
    choice = choose(repository, source, EDITED)
    assert choice.choice == "recorded"
    with source_checked_out(choice, repository.path) as found:
        assert found != repository.path
        assert (found / "own.py").read_text(encoding="utf-8") == before
    assert not found.exists()
    assert repository.git("worktree", "list").count("\n") == 0
    assert choose(repository, source, EDITED, code="here").choice == "here"


def test_recorded_changes_run_only_where_that_is_demanded(
    repository: Repository, tmp_path: Path
) -> None:
    repository.write(0.5)
    dirty = (repository.path / "own.py").read_text(encoding="utf-8")
    text = run_git(repository.path, "diff", "HEAD").stdout
    digest = hashlib.sha256(text.encode()).hexdigest()
    folder = SweepFolder(tmp_path / "runs" / "own")
    path = folder.diff_path(digest)
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    source = recorded(repository, dirty=True, diff=digest)
    repository.git("checkout", "--quiet", ".")
    diff = read_diff(source, folder)
    with pytest.raises(BadInput, match=r"--code: workload: .* with uncommitted changes; allowed:"):
        choose(repository, source, EDITED, diff=diff)
    assert choose(repository, source, EDITED, diff=diff, code="here").choice == "here"
    choice = choose(repository, source, EDITED, diff=diff, code="recorded")
    assert "with its uncommitted changes" in choice.reason
    with source_checked_out(choice, repository.path) as found:
        assert (found / "own.py").read_text(encoding="utf-8") == dirty
    path.write_text(text + "more\n", encoding="utf-8")
    assert read_diff(source, folder) is None  # it was changed since
    assert read_diff(source, None) is None


@pytest.mark.parametrize(
    "content", [b"a = 1\r\nb = 2\r\n", b"# caf\xe9\na = 1\nb = 2\n"], ids=["CRLF", "Latin-1"]
)
@pytest.mark.parametrize("is_tracked", [True, False])
def test_changes_keep_line_ends_and_bytes_that_are_not_utf8(
    repository: Repository, content: bytes, *, is_tracked: bool
) -> None:
    file = repository.path / "more.py"
    if is_tracked:
        file.write_bytes(content)
        repository.commit("more")
    changed = content.replace(b"2", b"3")
    file.write_bytes(changed)
    source, text = describe_repository(repository.path, [file])
    assert source is not None
    assert source.diff == hashlib.sha256(encode_diff(text)).hexdigest()
    choice = choose(repository, source, EDITED, diff=encode_diff(text), code="recorded")
    with source_checked_out(choice, repository.path) as found:
        assert (found / "more.py").read_bytes() == changed


def test_recorded_changes_that_do_not_apply_are_bad_input(repository: Repository) -> None:
    """Of a binary file that was changed, only its name is recorded."""
    picture = repository.path / "picture.png"
    picture.write_bytes(b"\0old")
    repository.commit("picture")
    picture.write_bytes(b"\0new")
    repository.write(0.5)
    source, text = describe_repository(repository.path, [])
    choice = choose(repository, source, EDITED, diff=encode_diff(text), code="recorded")
    with (
        pytest.raises(BadInput, match=r"changes don't apply: .*; allowed: --code here"),
        source_checked_out(choice, repository.path),
    ):
        pass


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"commit": None}, "no commit was recorded"),
        ({"commit": "0" * 40}, "has no commit 000000000000 (git fetch may bring it)"),
        ({"dirty": True}, "had uncommitted changes that were not kept"),
    ],
)
def test_code_that_is_not_to_be_had_is_that_here_or_refused(
    repository: Repository, changes: dict[str, object], message: str
) -> None:
    source = recorded(repository, **changes)
    choice = choose(repository, source, EDITED)
    assert choice.choice == "here"
    assert message in choice.reason
    with pytest.raises(BadInput, match="--code recorded: workload: ") as error:
        choose(repository, source, EDITED, code="recorded")
    assert message in str(error.value)


def test_changes_that_were_cut_are_no_code(repository: Repository) -> None:
    cut = b"diff --git a/own.py b/own.py\n[cut: 9 more characters]\n"
    source = recorded(repository, dirty=True, diff=hashlib.sha256(cut).hexdigest())
    assert choose(repository, source, EDITED, diff=cut).choice == "here"


def test_the_current_folder_comes_before_the_recorded_one(
    repository: Repository, tmp_path: Path
) -> None:
    gone = Path("/gone/clone/experiments/one")
    assert locate_base(OWN, gone, repository.path) == repository.path
    assert locate_base(OWN, repository.path, tmp_path) == repository.path
    script = replace(OWN, uses="own.py")
    assert locate_base(script, gone, repository.path) == repository.path
    with pytest.raises(BadInput, match=r"own\.py:Slowed: found no own\.py in /gone"):
        locate_base(OWN, Path("/gone"), tmp_path)
    assert locate_base(make_cell().workload, gone, tmp_path) == tmp_path  # built in: any will do
