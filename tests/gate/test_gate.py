"""What a gate makes of what was measured, and where the other revision's code comes from."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.core.worktree import Tree, checked_out
from harness.gate import against, bisect
from harness.gate.against import CellOutcome, GateOptions, GateOutcome
from harness.gate.paired import PairedResult
from harness.statistics.sequential import SpeedVerdict
from harness.view import gate as view
from harness.view.console import print_json, show
from harness.view.gate import gate_view
from harness.view.view import markdown
from tests.factories import make_cell
from tests.support.commands import harness
from tests.support.repository import Repository

CELL = make_cell()


def paired(word: SpeedVerdict, ratio: float = 1.0, **changes: object) -> PairedResult:
    known = {"verdict": word, "ratio": ratio, "same_bits": True, "pairs": 20}
    bounds = {"low": ratio - 0.01, "high": ratio + 0.01}
    rates = {"a_rate": 1000.0, "b_rate": 1000.0 * ratio}
    return PairedResult(**{**known, **bounds, **rates, **changes})  # type: ignore[arg-type]


COMMIT = "f8fea52b" * 5
FAILED = PairedResult(failure="main: rank 0 on node1: ValueError: no")


def outcome(*found: PairedResult, is_repeatable: bool = True, **asked: Any) -> GateOutcome:
    cells = []
    for measured in found:
        cells.append(CellOutcome(cell=CELL, measured=measured, is_repeatable=is_repeatable))
    return GateOutcome(
        options=GateOptions(**{"revision": "main", **asked}),
        hardware="Fast-CPU-2-cores",
        load=7.5,
        commit=COMMIT,
        cells=cells,
    )


OTHER_BITS = paired("same", same_bits=False)
SLOWER, OPEN = paired("slower", 0.9), paired("inconclusive")


@pytest.mark.parametrize(
    ("found", "code", "line"),
    [
        (outcome(paired("same"), paired("faster", 1.1)), 0, "passes: nothing is slower than main"),
        (outcome(paired("not slower", 1.01)), 0, "passes: nothing is slower than main"),
        (outcome(paired("same"), SLOWER), 1, "fails: 1 of 2 cells failed"),
        (outcome(OPEN, SLOWER), 1, "fails: 1 of 2 cells failed; 1 of 2 cells inconclusive"),
        (outcome(paired("same"), OPEN), 3, "is inconclusive: 1 of 2 cells inconclusive"),
        (outcome(FAILED), 1, "fails: 1 of 1 cell could not be measured"),
        (outcome(OTHER_BITS), 0, "passes: nothing is slower than main"),
        (outcome(OTHER_BITS, compare_bits=True), 1, "fails: 1 of 1 cell failed"),
        (outcome(OTHER_BITS, compare_bits=True, is_repeatable=False), 3, "is inconclusive: 1 of 1 cell inconclusive"),
    ],
)  # fmt: skip
def test_the_first_line_says_what_the_exit_code_says(
    found: GateOutcome, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert found.exit_code == code
    show(gate_view(found, "nightly"))
    assert capsys.readouterr().out.splitlines()[0] == f"The gate of nightly {line}"


def noted(found: GateOutcome) -> str:
    """Return the last row of the gate's table, and what is said of it."""
    shown = gate_view(found, "nightly")
    (table,) = shown.tables
    fields = [field.text for field in table.drawn()[-1]]
    return " | ".join([*fields, *map(str, shown.lines[:-1])])


def test_each_cell_that_does_not_pass_has_a_note() -> None:
    text = noted(outcome(paired("same"), paired("slower", 0.95)))
    assert " | -5.0% (-6.0% to -4.0%) | slower | " in text
    found = paired("inconclusive", seconds=21.0, wall_seconds=362.0, low=0.493, high=1.114)
    text = noted(outcome(found))
    assert " | +0.0% (-50.7% to +11.4%) | inconclusive | " in text
    assert text.endswith("--budget or a quieter machine narrows the interval")
    assert noted(outcome(paired("slower", 0.88, by_whole_turns=True))).endswith("in whole turns")
    assert noted(outcome(FAILED)).endswith(str(FAILED.failure))
    assert "its losses" not in noted(outcome(OTHER_BITS))
    text = noted(outcome(OTHER_BITS, compare_bits=True))
    assert text.endswith("its losses differ from those of main")
    text = noted(outcome(OTHER_BITS, compare_bits=True, is_repeatable=False))
    assert text.endswith("its losses prove nothing: main computes other ones each time")
    unbounded = CellOutcome(cell=CELL, measured=paired("inconclusive", low=None, high=None))
    assert "inconclusive, too few measurements" in view.progress_line(unbounded)


def test_every_output_begins_with_the_verdict_and_names_the_machine_its_load_and_the_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = outcome(paired("same", seconds=21.0, wall_seconds=362.0), paired("slower", 0.95))
    comment = markdown(gate_view(found, "nightly"))
    lines = comment.splitlines()
    assert lines[0] == "### The gate of nightly fails: 1 of 2 cells failed"
    assert len([line for line in lines if line.startswith("| mlp ")]) == 2
    assert lines[-1].startswith("- samples/s of main (f8fea52) and of the working tree")
    show(gate_view(found, "nightly"))
    for text in (capsys.readouterr().out, comment.replace("\\", "")):
        shown = " ".join(text.split())
        assert "measured in turn on Fast-CPU-2-cores at a load of 7.5 on" in shown
        assert "21.0 s in 6 min 2 s, 20 pairs" in shown


HOSTILE = "x`y` @org/all #1 a[/red]b\n| <img> ![](http://evil) \x1b[31m \ufffe \ud800 ::error::"


def test_hostile_names_and_words_are_text_in_every_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A pull request chooses its labels, its sweep's name and what its ranks print."""
    cell = make_cell(HOSTILE)
    cells = [
        CellOutcome(cell=cell, measured=paired("slower", 0.9)),
        CellOutcome(cell=cell, measured=PairedResult(failure=HOSTILE)),
    ]
    found = replace(outcome(), cells=cells, options=GateOptions(revision=HOSTILE))
    show(gate_view(found, HOSTILE))
    comment = markdown(gate_view(found, HOSTILE))
    for text in (capsys.readouterr().out, comment):
        assert "\x1b" not in text
        assert "a[/red]b" in text.replace("\\", "")
    for line in comment.splitlines()[2:]:
        assert line[:2] in ("", "- ", "| ")  # nobody else begins a line
    assert not re.search(r"@\w|#\d|(?<!\\)[`<]|(?<!\\)!\[", comment)


def test_json_has_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_json(outcome(paired("slower", 0.9)))
    found = json.loads(capsys.readouterr().out)
    (cell,) = found["cells"]
    assert (found["exit_code"], cell["measured"]["ratio"]) == (1, 0.9)
    assert cell["cell"] == {"id": CELL.id, "label": CELL.label}


def test_equal_code_that_trains_otherwise_each_time_does_not_fail_for_its_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(tmp_path)
    monkeypatch.setattr(against, "arm_server", lambda *_: None)
    monkeypatch.setattr(against, "measure", lambda *_: OTHER_BITS)
    for control, code in (((True, 20), 1), ((False, 20), 3)):
        monkeypatch.setattr(against, "compare_losses", lambda *_, found=control, **__: found)
        ended = harness("gate", "--against", "HEAD", str(repository.sweep), "--bits")
        assert ended.code == code, ended.out


def test_a_line_is_printed_for_each_cell_in_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(tmp_path, matrix={"batch_size": [32, 64]})
    found = paired("same", seconds=3.0, wall_seconds=30.0)
    monkeypatch.setattr(against, "arm_server", lambda *_: None)
    monkeypatch.setattr(against, "measure", lambda *_: found)
    ended = harness("gate", "--against", "HEAD", str(repository.sweep), "--json")
    assert ended.err.count("same, +0.0% (-1.0% to +1.0%); 3.0 s in 30 s, 20 pairs\n") == 2


def test_the_revision_is_looked_up_before_the_machine_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(*_: object, **__: object) -> None:
        raise AssertionError("waited")

    for module in (against, bisect):
        monkeypatch.setattr(module, "hold_machine", wait)
    repository = Repository(tmp_path)
    for command in (("gate", "--against", "v9"), ("bisect", "v9", "HEAD")):
        ended = harness(*command, str(repository.sweep))
        assert (ended.code, ended.err.count("\n")) == (2, 1)
        assert "v9: no such revision" in ended.err
    shutil.rmtree(repository.path / ".git")
    ended = harness("gate", "--against", "HEAD", str(repository.sweep))
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "repository" in ended.err


def test_the_other_tree_is_the_revision_and_goes_away(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    repository.write(0.5)
    with checked_out(repository.path, "HEAD", tmp_path / "other") as tree:
        there = tree.counterpart(repository.path / "own.py")
        assert there == tmp_path / "other" / "own.py"
        assert "SLOWER = 0.0" in there.read_text(encoding="utf-8")
        assert "SLOWER = 0.5" in (repository.path / "own.py").read_text(encoding="utf-8")
        assert tree.counterpart(Path("/data/mnist")) == Path("/data/mnist")
    assert not (tmp_path / "other").exists()


def test_code_is_imported_from_the_other_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src").mkdir()
    monkeypatch.setattr(sys, "path", ["/usr/lib/python3", str(tmp_path / "src")])
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'more'}{os.pathsep}/elsewhere")
    other = Tree(name="main", top=tmp_path, path=Path("/other"))
    expected = ["/other", "/other/src", "/other/more", "/elsewhere"]
    assert other.python_path.split(os.pathsep) == expected


def test_a_link_in_the_working_tree_chooses_no_other_counterpart(tmp_path: Path) -> None:
    """Nor is a tree that is reached through a link another one: code would be compared with itself."""
    (tmp_path / "link").symlink_to(tmp_path / "top")
    top, other = tmp_path / "top", Tree(name="main", top=tmp_path / "top", path=tmp_path / "other")
    for folder in (top / "elsewhere", other.path / "bench", other.path / "elsewhere"):
        folder.mkdir(parents=True)
    for tree in (top, other.path):
        (tree / "other.yaml").touch()
    (other.path / "bench" / "sweep.yaml").touch()
    (top / "bench").symlink_to(top / "elsewhere")
    (top / "bench" / "sweep.yaml").symlink_to(top / "other.yaml")
    assert other.counterpart(top / "bench" / "sweep.yaml") == other.path / "bench" / "sweep.yaml"
    assert other.counterpart(top / "bench") == other.path / "bench"
    assert other.counterpart(tmp_path / "link" / "other.yaml") == other.path / "other.yaml"
    # A link that the other tree does not have is followed.
    (top / "link.yaml").symlink_to(top / "other.yaml")
    assert other.counterpart(top / "link.yaml") == other.path / "other.yaml"


def test_a_bound_without_meaning_is_cut_and_rates_have_their_unit() -> None:
    measured = paired("inconclusive", 2.0, low=1e-9, high=1e29, unit="steps/s")
    found = outcome(measured)
    comment = markdown(gate_view(found, "sweep")).replace("\\", "")
    assert comment.count("+100.0% (-100.0% to >+1,000%)") == 1
    assert "steps/s of main" in comment
