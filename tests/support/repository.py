"""A user's repository: a workload of its own, a sweep, and the commits that a gate measures
against.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml

SLOWED = (Path(__file__).parent / "slowed.py").read_text(encoding="utf-8")

DEFAULTS = """
from dataclasses import dataclass

from workloads.mlp_settings import MLPOptions


@dataclass(frozen=True, kw_only=True)
class Options(MLPOptions):
    lr: float = LR
    clip: float | None = CLIP


Slowed.Options = Options
Slowed.batch_size = BATCH_SIZE
"""


def git(folder: Path, *arguments: str, sent: str | None = None) -> str:
    """Run a command of git in a folder with `sent` as its input; return what it prints."""
    who = ("-c", "user.name=Test", "-c", "user.email=test@localhost")
    command = ["git", "-C", str(folder), *who, *arguments]
    ended = subprocess.run(command, check=True, capture_output=True, text=True, input=sent)
    return ended.stdout.strip()


class Repository:
    def __init__(self, folder: Path, **keys: object) -> None:
        self.path = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.git("init", "--quiet", "--initial-branch=main")
        self.sweep = folder / "sweep.yaml"
        content = {
            "name": "own",
            "workloads": {"own": {"uses": "own.py:Slowed", "data": {"source": "digits"}}},
            "length": {"steps": 100},
            **keys,
        }
        self.sweep.write_text(yaml.safe_dump(content), encoding="utf-8")
        (folder / ".gitignore").write_text("__pycache__/\n", encoding="utf-8")
        self.write(0.0)
        self.commit("before")

    def git(self, *arguments: str, sent: str | None = None) -> str:
        """Run a command of git with `sent` as its input; return what it prints."""
        return git(self.path, *arguments, sent=sent)

    def write(self, slower: float, more: str = "") -> None:
        """The workload, slower by this share."""
        text = SLOWED.replace("SLOWER = 0.0", f"SLOWER = {slower}") + more
        (self.path / "own.py").write_text(text, encoding="utf-8")

    def write_defaults(self, lr: float, batch_size: int, clip: float | None = None) -> None:
        """The workload with these defaults of its own."""
        text = DEFAULTS.replace("LR", str(lr)).replace("BATCH_SIZE", str(batch_size))
        text = text.replace("CLIP", str(clip))
        self.write(0.0, text)

    def commit(self, message: str) -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)
        return self.git("rev-parse", "HEAD")
