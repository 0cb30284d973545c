"""What README and manual print works: their commands parse, their files are read, their examples
run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import BadInput
from tests.support.pages import (
    blocks,
    check_file,
    commands,
    documented_pages,
    harness_calls,
    parse_problem,
    run_page,
    write_files,
)

PAGE = """\
# A page

```yaml
# sweep.yaml
name: demo
workloads:
  mlp: {data: {source: digits}}
```

Text between.

```console run
$ harness plan sweep.yaml > plan.txt && test -s plan.txt   # the plan
demo: what it prints is not compared
$ harness plan \\
    nothing.yaml    # exit code 2
```

```bash
# a comment
harness run sweep.yaml --set precision=fp32,bf16
```

```
no language: 1 2 3
```
"""

PAGES = documented_pages()


def page_id(path: Path) -> str:
    return path.stem


class TestMachinery:
    """On a page of its own."""

    def test_blocks_have_a_language_a_line_and_a_file_name(self) -> None:
        sweep, console, script, plain = blocks(PAGE)
        assert (sweep.language, sweep.line, sweep.file_name) == ("yaml", 3, "sweep.yaml")
        assert (console.language, console.is_run, console.file_name) == ("console", True, None)
        assert (script.language, script.is_run) == ("bash", False)
        assert (plain.language, plain.is_run) == ("", False)

    def test_commands_of_a_console_follow_the_prompt(self) -> None:
        _, console, _, plain = blocks(PAGE)
        plan_command, refused_command = commands(console)
        assert plan_command.text.startswith("harness plan sweep.yaml > plan.txt")
        assert plan_command.exit_code == 0
        assert " ".join(refused_command.text.split()).startswith("harness plan nothing.yaml #")
        assert refused_command.exit_code == 2
        assert commands(plain) == []

    def test_commands_of_a_script_are_its_lines(self) -> None:
        script = blocks(PAGE)[2]
        assert [command.text for command in commands(script)] == [
            "harness run sweep.yaml --set precision=fp32,bf16"
        ]

    @pytest.mark.parametrize(
        ("line", "calls"),
        [
            ("harness run a.yaml   # why", [["run", "a.yaml"]]),
            ("pytest -q && harness show 'my sweep'", [["show", "my sweep"]]),
            ("harness status x | tail -1", [["status", "x"]]),
            ("OMP_NUM_THREADS=1 .venv/bin/harness axes > out.txt", [["axes"]]),
            ("harness run a; harness show a", [["run", "a"], ["show", "a"]]),
            ("grep harness file", []),
        ],
    )
    def test_calls_of_harness_in_a_command_line(self, line: str, calls: list[list[str]]) -> None:
        assert harness_calls(line) == calls

    @pytest.mark.parametrize(
        ("arguments", "problem"),
        [
            (["run", "sweep.yaml", "--set", "precision=bf16"], None),
            (["fetch", "mnist", "--to", "DIR"], None),
            (["gate", "--help"], None),
            (["--version"], None),
            (["status"], None),
            (["gate"], "Missing argument 'SWEEP'."),
            (["rnu", "sweep.yaml"], "no such command: rnu"),
            (["run", "sweep.yaml", "--fast"], "No such option: --fast"),
            (["run"], "Missing argument 'SWEEP'."),
            (["ui", "--port", "http"], "Invalid value for '--port'"),
        ],
    )
    def test_a_call_that_does_not_parse_is_named(
        self, arguments: list[str], problem: str | None
    ) -> None:
        found_problem = parse_problem(arguments)
        if problem is None:
            assert found_problem is None
        else:
            assert found_problem is not None
            assert found_problem.startswith(problem)

    @pytest.mark.parametrize(
        ("name", "content", "kind"),
        [
            ("a.yaml", "name: a\nworkloads:\n  mlp: {data: {source: digits}}\n", "sweep"),
            ("near.yaml", "launcher: torchrun\ndevice: cpu\n", "profile"),
            ("gate.yaml", "min_effect: 2%\n", "gate"),
            ("own.py", "width = 3\n", "python"),
            ("run.sh", "harness axes\n", "other"),
        ],
    )
    def test_files_are_read_by_their_kind(
        self, tmp_path: Path, name: str, content: str, kind: str
    ) -> None:
        (path,) = write_files(f"```text\n# {name}\n{content}```\n", tmp_path)
        assert path.read_text(encoding="utf-8") == content
        assert check_file(path) == kind

    @pytest.mark.parametrize(
        ("name", "content", "error"),
        [
            ("a.yaml", "workloads: {mlp: {data: {source: digts}}}\nname: a\n", BadInput),
            ("near.yaml", "launcher: torchrum\n", BadInput),
            ("gate.yaml", "min_efect: 2%\n", BadInput),
            ("own.py", "def\n", SyntaxError),
        ],
    )
    def test_a_file_with_a_mistake_is_refused(
        self, tmp_path: Path, name: str, content: str, error: type[Exception]
    ) -> None:
        (path,) = write_files(f"```text\n# {name}\n{content}```\n", tmp_path)
        with pytest.raises(error):
            check_file(path)

    def test_commands_run_in_one_folder_and_end_as_they_state(self, tmp_path: Path) -> None:
        assert run_page(PAGE, tmp_path) == []
        assert (tmp_path / "plan.txt").is_file()

    def test_a_command_that_ends_otherwise_is_named_with_its_output(self, tmp_path: Path) -> None:
        page = "\n```console run\n$ harness plan nothing.yaml\n$ true   # exit code 3\n```\n"
        refused, wrong_code = run_page(page, tmp_path)
        assert refused.startswith("line 2: harness plan nothing.yaml: exit code 2, not 0:\n")
        assert "nothing.yaml" in refused.partition("\n")[2]
        assert "exit code 0, not 3" in wrong_code

    def test_blocks_without_the_word_are_not_run(self, tmp_path: Path) -> None:
        assert run_page("```bash\ntouch made\n```\n```console\n$ touch made\n```\n", tmp_path) == []
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_every_harness_command_of_a_page_parses(path: Path) -> None:
    problems: list[str] = []
    for block in blocks(path.read_text(encoding="utf-8")):
        for command in commands(block):
            for arguments in harness_calls(command.text):
                problem = parse_problem(arguments)
                if problem:
                    problems.append(f"{path.name}:{block.line}: {command.text}: {problem}")
    assert problems == []


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
