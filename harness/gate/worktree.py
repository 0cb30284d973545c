"""Another revision of a repository beside the working tree."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import BadInput, one_line


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A tree of files that code runs from: the working tree `top`, or `path` with another revision of it."""

    name: str  # for people: a revision as they gave it, or the working tree
    top: Path
    path: Path

    def counterpart(self, path: Path) -> Path:
        """What stands in this tree for a path of the working tree; a path outside stays."""
        path = path.absolute()
        return self.path / path.relative_to(self.top) if path.is_relative_to(self.top) else path

    @property
    def python_path(self) -> str:
        """This tree and the folders of it that this process imports from, then everybody's PYTHONPATH."""
        ours = [Path(entry) for entry in sys.path if entry and Path(entry).is_dir()]
        within = [
            self.counterpart(entry) for entry in ours if entry.absolute().is_relative_to(self.top)
        ]
        before = [
            str(self.counterpart(Path(entry)))
            for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)
            if entry
        ]
        kept = [str(entry) for entry in within if "site-packages" not in entry.parts]
        return os.pathsep.join(dict.fromkeys([str(self.path), *kept, *before]))


def find_top(path: Path) -> Path:
    """The top of the repository that holds a path; raises BadInput outside of any."""
    folder = path if path.is_dir() else path.parent
    return Path(_git(folder, "rev-parse", "--show-toplevel", what=f"{folder}: no git repository"))


def resolve_commit(top: Path, revision: str, given: str = "--against") -> str:
    """Its full id; raises BadInput, with the argument that it was given as, for a revision that there is not."""
    what = f"{given} {revision}: no such revision"
    return _git(
        top,
        "rev-parse",
        "--verify",
        "--quiet",
        "--end-of-options",
        f"{revision}^{{commit}}",
        what=what,
    )


@contextmanager
def worktree(top: Path, revision: str, folder: Path) -> Iterator[Tree]:
    """The revision checked out in `folder`, for as long as the block lasts; raises BadInput."""
    commit = resolve_commit(top, revision)
    try:
        _git(top, "worktree", "add", "--detach", str(folder), commit, what=f"--against {revision}")
        yield Tree(name=revision, top=top, path=folder)
    finally:  # forced twice: one whose making was interrupted is locked
        run_git(top, "worktree", "remove", "--force", "--force", str(folder))


def run_git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """git as it ended, in English."""
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}
    )


def _git(folder: Path, *arguments: str, what: str) -> str:
    done = run_git(folder, *arguments)
    if done.returncode:
        said = one_line(done.stderr)
        raise BadInput(
            f"{what}{': ' + said if said else '; allowed: what git rev-parse knows (in CI: fetch-depth: 0)'}"
        )
    return done.stdout.strip()
