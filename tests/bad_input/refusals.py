"""What the one line says that a user's mistake ends with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import CommandResult, harness

GOOD = "name: demo\nworkloads:\n  mlp: {data: {source: digits}}\n"


def tree(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def refused(*arguments: str) -> str:
    """What the one line says that `harness ARGUMENTS` ends with, having touched nothing."""
    before = tree(Path())
    ended = harness(*arguments)
    assert tree(Path()) == before
    return line_of(ended)


def line_of(ended: CommandResult) -> str:
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.count("\n") == 1
    head, _, line = ended.err.rstrip("\n").partition("harness: ")
    assert head == ""
    return line


def check(line: str, begins: str, *contains: str) -> None:
    assert line.startswith(begins)
    for text in contains:
        assert text in line


def param(name: str, spec: str, begins: str, *contains: str) -> Any:
    return pytest.param(spec, begins, contains, id=name)
