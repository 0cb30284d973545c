"""Runs the steps of the CI files for users as a runner does, in a user's repository."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.cli.test_readme import write_printed
from tests.support.repository import git
from tests.support.tree import TOP

CI = TOP / "harness" / "gate" / "ci"
# Seconds, slept rather than computed, so that it hardly matters what else this machine does.
STEP = 0.01
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

    def __init__(self, folder: Path, slower: float) -> None:
        self.path = folder
        self.git("init", "--quiet", "--initial-branch=main")
        (folder / "sweep.yaml").write_text(SWEEP, encoding="utf-8")
        self.commit(STEP)
        self.git("checkout", "--quiet", "-b", "change")
        self.commit(STEP * (1 + slower))

    def git(self, *arguments: str) -> str:
        return git(self.path, *arguments)

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
    """As a runner does it, with the commands of this environment, which are the first in PATH."""
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
