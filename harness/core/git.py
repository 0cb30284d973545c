"""Runs git, so that nothing of a repository's runs with it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from harness.core.processes import Undecodable, run_command

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
