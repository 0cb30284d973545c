"""What README and manual print works: their commands parse, their files are read, their examples
run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.cli.results import WRITERS
from tests.support.pages import (
    FENCE,
    GUIDE,
    blocks,
    check_file,
    commands,
    documented_pages,
    harness_calls,
    parse_problem,
    run_page,
    write_files,
    wrong_options,
)

PAGES = documented_pages()


def page_id(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_every_harness_command_of_a_page_parses(path: Path) -> None:
    problems: list[str] = []
    for block in blocks(path.read_text(encoding="utf-8")):
        for command in commands(block):
            for arguments in harness_calls(command):
                problem = parse_problem(arguments)
                if problem:
                    problems.append(f"{path.name}:{block.line}: {command}: {problem}")
    assert problems == []


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_every_option_of_a_paragraph_is_one_of_the_command_that_it_names(path: Path) -> None:
    problems: list[str] = []
    for paragraph in FENCE.sub("", path.read_text(encoding="utf-8")).split("\n\n"):
        problems += wrong_options(paragraph)
    assert problems == []


def test_the_formats_of_a_table_of_trials_are_those_that_are_written() -> None:
    text = (GUIDE / "results.md").read_text(encoding="utf-8")
    formats = re.search(r"# a row per trial: (.*)", text)
    assert formats is not None
    assert re.findall(r"\.\w+", formats[1]) == list(WRITERS)


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_every_file_that_a_page_prints_is_read(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in write_files(path.read_text(encoding="utf-8"), tmp_path):
        check_file(file)


def pages_with_examples() -> Iterator[Any]:
    """Yield the pages whose commands are run; one takes as long as all others together."""
    for path in PAGES:
        if any(block.is_run for block in blocks(path.read_text("utf-8"))):
            marks = [pytest.mark.nightly] if path.stem == "workloads" else []
            yield pytest.param(path, marks=marks)


@pytest.mark.distributed
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("path", list(pages_with_examples()), ids=page_id)
def test_the_examples_of_a_page_run(path: Path, tmp_path: Path) -> None:
    assert run_page(path.read_text(encoding="utf-8"), tmp_path) == []
