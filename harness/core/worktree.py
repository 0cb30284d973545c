"""Runs git, so that nothing of a repository's runs with it, and checks out another revision."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import BadInput, one_line
from harness.core.import_path import ROOT, WORKLOADS
from harness.core.processes import Undecodable, run_command
from harness.core.scratch import is_removed_scratch

TIMEOUT = 300.0  # seconds; a checkout of a large repository takes minutes
NOT_FOUND = 127  # exit code of a command that is not installed, as shells have it
# Settings that keep git from running a repository's own programs: hooks, such as the `post-checkout`
# of `git worktree add`, and the monitor that `git status` asks for changed files.
NO_PROGRAMS = ("-c", f"core.hooksPath={os.devnull}", "-c", "core.fsmonitor=false")
# Git sets these for its hooks, of which a command may be one. They name the repository and the index
# of that commit, and would have git use them in every other folder too.
VARIABLES_OF_HOOKS = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX",
)  # fmt: skip


def run_git(
    folder: Path, *arguments: str, undecodable: Undecodable = "replace"
) -> subprocess.CompletedProcess[str]:
    """Run git in a folder and return how it ended.

    Messages are in English, whatever the user's language: some of them are parsed. It never asks
    for a password. `undecodable` is that of `run_command`. Raises HarnessError if it takes longer
    than TIMEOUT.
    """
    command = ["git", "-C", str(folder), *NO_PROGRAMS, *arguments]
    variables = {**os.environ, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}
    for name in VARIABLES_OF_HOOKS:
        variables.pop(name, None)
    remedy = f"look whether `git {' '.join(arguments[:2])}` ends in {folder}"
    try:
        return run_command(
            command, timeout=TIMEOUT, variables=variables, remedy=remedy, undecodable=undecodable
        )
    except FileNotFoundError:
        return subprocess.CompletedProcess(command, NOT_FOUND, "", "git is not installed")


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A tree of files that code runs from.

    It is a repository's working tree, or another revision that is checked out next to it.
    """

    name: str  # for people: a revision as they typed it, or the working tree
    top: Path  # of the repository's working tree
    path: Path  # of this tree: `top`, or where another revision is checked out

    def counterpart(self, path: Path) -> Path:
        """Return what this tree has in place of a path of the working tree.

        A path outside of the working tree, such as that of a data set, stays as it is. Links that
        lead to the working tree are followed, as git names its real folder. Links inside of it are
        not, unless this tree has nothing of that name: a change could otherwise choose what it is
        compared with by a link.
        """
        real_top = self.top.resolve()
        absolute = Path(os.path.normpath(path.absolute()))
        for folder in reversed(absolute.parents):
            counterpart = self.path / absolute.relative_to(folder)
            if folder.resolve() == real_top and os.path.lexists(counterpart):
                return counterpart
        real_path = path.resolve()
        if not real_path.is_relative_to(real_top):
            return path.absolute()
        return self.path / real_path.relative_to(real_top)

    def link_what_git_has_not(self) -> None:
        """Link what is in the working tree and in no revision, such as data, but code and caches.

        So a script reads `data/x` here as at home. A file of this tree stays as it is.
        """
        listed = run_git(self.top, "ls-files", "--others", "--directory", "-z").stdout
        for name in filter(None, listed.split("\0")):
            link, target = self.path / name, self.top / name
            is_apart = target.name == "__pycache__" or target.suffix == ".py"
            if not is_apart and not os.path.lexists(link):
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(target)

    @property
    def python_path(self) -> str:
        """Return the PYTHONPATH of a process that runs this tree's code.

        It has the tree itself, the folders of it that correspond to those of the working tree which
        this process imports from, then what PYTHONPATH has.
        """
        entries = [str(self.path)]
        real_top = self.top.resolve()
        for entry in sys.path:
            folder = Path(entry)
            is_inside = folder.is_dir() and folder.resolve().is_relative_to(real_top)
            if entry and is_inside:
                counterpart = self.counterpart(folder)
                if "site-packages" not in counterpart.parts:
                    entries.append(str(counterpart))
        inherited = os.environ.get("PYTHONPATH", "")
        for entry in inherited.split(os.pathsep):
            if entry:
                entries.append(str(self.counterpart(Path(entry))))
        return os.pathsep.join(dict.fromkeys(entries))

    @property
    def own_packages(self) -> dict[str, str]:
        """Return the folder of each package of ours that the tree must not hide by one of its name.

        None where the tree is the harness's own repository: then the tree's packages are measured.
        """
        if ROOT.is_relative_to(self.top.resolve()) and "site-packages" not in ROOT.parts:
            return {}
        return dict.fromkeys(("harness", WORKLOADS), str(ROOT))


def find_repository(path: Path) -> Path:
    """Return the top folder of the repository that a path is in; raises BadInput outside of any."""
    folder = path if path.is_dir() else path.parent
    context = f"{folder}: no git repository"
    return Path(_git_output(folder, "rev-parse", "--show-toplevel", context=context))


def resolve_commit(repository: Path, revision: str, argument: str = "--against") -> str:
    """Return the full id of a revision's commit.

    Raises BadInput, which names the command line's argument, for a revision that does not exist.
    """
    arguments = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    context = f"{argument} {revision}: no such revision"
    return _git_output(repository, *arguments, context=context)


@contextmanager
def checked_out(
    repository: Path,
    revision: str,
    folder: Path,
    argument: str = "--against",
) -> Iterator[Tree]:
    """Check a revision out in `folder` for as long as the context lasts.

    Raises BadInput, which names the command line's argument.
    """
    commit = resolve_commit(repository, revision, argument)
    context = f"{argument} {revision}"
    # Git forgets worktrees of processes that were killed, whose scratch folders are gone.
    listed = run_git(repository, "worktree", "list", "--porcelain").stdout
    for line in listed.splitlines():
        path = Path(line.removeprefix("worktree "))
        if line.startswith("worktree ") and is_removed_scratch(path.parent):
            run_git(repository, "worktree", "remove", "--force", "--force", str(path))
    try:
        arguments = ("worktree", "add", "--detach", str(folder), commit)
        _git_output(repository, *arguments, context=context)
        tree = Tree(name=revision, top=repository, path=folder)
        tree.link_what_git_has_not()
        yield tree
    finally:
        # Forced twice, as git locks a worktree while it makes it, and keeps it locked if it is
        # interrupted.
        run_git(repository, "worktree", "remove", "--force", "--force", str(folder))


def _git_output(folder: Path, *arguments: str, context: str) -> str:
    """Return what git prints; raises BadInput, which begins with `context`, if git fails."""
    done = run_git(folder, *arguments)
    if done.returncode == 0:
        return done.stdout.strip()
    allowed = "allowed: what git rev-parse knows (in CI: fetch-depth: 0)"
    raise BadInput(f"{context}: {one_line(done.stderr) or allowed}")
