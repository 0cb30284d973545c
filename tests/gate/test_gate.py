"""What a gate makes of what was measured, and where the other revision's code comes from."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest

from harness.core.errors import BadInput, one_line
from harness.core.worktree import Tree, checked_out, find_repository
from harness.gate.against import CellOutcome, Conditions, GateOptions, GateOutcome
from harness.gate.paired import PairedResult, SpeedVerdict
from harness.interface import gating
from harness.render import gate as view
from tests.factories import make_cell
from tests.support.commands import harness
from tests.support.repository import Repository

CELL = make_cell()


def paired(word: SpeedVerdict, ratio: float = 1.0, **changes: object) -> PairedResult:
    known = {
        "low": ratio - 0.01,
        "high": ratio + 0.01,
        "a_rate": 1000.0,
        "b_rate": 1000.0 * ratio,
        "pairs": 20,
    }
    return PairedResult(**{"verdict": word, "ratio": ratio, "same_bits": True, **known, **changes})  # type: ignore[arg-type]


COMMIT = "f8fea52b" * 5
CONDITIONS = Conditions(
    hardware="Fast-CPU-2-cores",
    torch="2.13.0",
    certificate="A/A certificate of this hardware: none",
)
FAILED = PairedResult(failure="main: rank 0 on node1: ValueError: no")


def outcome(*found: PairedResult, control: PairedResult | None = None, **asked: Any) -> GateOutcome:
    verdicts = [CellOutcome(cell=CELL, measured=one, control=control) for one in found]
    return GateOutcome(
        options=GateOptions(**{"revision": "main", **asked}),
        conditions=CONDITIONS,
        commit=COMMIT,
        cells=verdicts,
    )


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (outcome(paired("same")), 0),
        (outcome(paired("faster", 1.1)), 0),
        (outcome(paired("not slower", 1.01)), 0),
        (outcome(paired("same"), paired("slower", 0.9)), 1),
        (outcome(paired("inconclusive"), paired("slower", 0.9)), 1),
        (outcome(paired("same"), paired("inconclusive")), 3),
        (outcome(paired("inconclusive"), inconclusive="fail"), 1),
        (outcome(paired("inconclusive"), inconclusive="ignore"), 0),
        (outcome(FAILED), 1),
        (outcome(paired("same", same_bits=False)), 0),
        (outcome(paired("same", same_bits=False), compare_bits=True), 1),
        (outcome(paired("slower", 0.9), control=paired("same")), 1),
        (outcome(paired("slower", 0.9), control=paired("slower", 0.9)), 3),
        (outcome(paired("same"), control=FAILED), 3),
        (outcome(FAILED, control=paired("slower", 0.9)), 1),
        (outcome(paired("same", same_bits=False), control=paired("slower", 0.9), compare_bits=True), 1),
    ],
)  # fmt: skip
def test_exit_codes(found: GateOutcome, code: int) -> None:
    assert found.exit_code == code


def test_words_for_a_tired_engineer() -> None:
    (line,) = view.lines(outcome(paired("same"), paired("slower", 0.95)))
    assert line == (
        f"{CELL.label}: trains 5.0% slower than main (4.0% to 6.0%): 1,000 → 950 samples/s"
    )
    assert view.lines(outcome(paired("same"))) == []
    (line,) = view.lines(outcome(paired("inconclusive", seconds=30.0, low=0.962, high=1.046)))
    assert (
        "inconclusive after 30 s of measuring: between 3.8% slower and 4.6% faster than main;"
        in line
    )
    (line,) = view.lines(outcome(paired("inconclusive", seconds_until_certain=241.6)))
    assert line.endswith("to be certain would take about --budget 242s here, or a quieter machine")
    whole = {"by_whole_turns": True, "whole_ratio": 0.88, "whole_low": 0.86, "whole_high": 0.9}
    (line,) = view.lines(outcome(paired("slower", 1.0, **whole)))
    assert "trains 12.0% slower as a whole than main (10.0% to 14.0%), which its usual" in line
    whole |= {"low": 0.87, "high": 1.01}
    (line,) = view.lines(outcome(paired("slower", 0.9, **whole)))
    assert line.endswith(
        "trains 12.0% slower as a whole than main (10.0% to 14.0%);"
        " its usual steps alone are not certain: between 13.0% slower and 1.0% faster than main"
    )
    (line,) = view.lines(outcome(paired("inconclusive", seconds=2.0, low=None, high=None)))
    assert "inconclusive after 2 s of measuring: too few measurements for an interval" in line
    (line,) = view.lines(outcome(paired("slower", 0.9), control=paired("faster", 1.1)))
    assert line.endswith("main measured against itself came out faster")
    (line,) = view.lines(outcome(paired("slower", 0.9), revision=COMMIT))
    assert "slower than f8fea52 (" in line
    passing = outcome(paired("not slower", low=0.996, high=1.021))
    assert view.lines(passing) == []
    assert view.sentence(passing, passing.cells[0]) == (
        f"{CELL.label}: is not slower by 1.0%: between 0.4% slower and 2.1% faster than main"
    )


def test_the_smallest_change_is_named_with_the_certificate_that_it_comes_from(
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = "what the certificate of this machine says can be seen in 30 s"
    found = outcome(paired("same"), min_effect=0.023, min_effect_source=source)
    view.show_outcome(found)
    out = " ".join(capsys.readouterr().out.split())
    assert f"smallest change that matters: 2.3% ({source});" in out
    assert f"smallest change that matters: 2.3% ({source});" in view.markdown(
        found, "sweep"
    ).replace("\\", "")
    view.show_outcome(outcome(paired("same")))
    assert "smallest change that matters: 1.0%;" in " ".join(capsys.readouterr().out.split())


def test_the_interval_beside_a_verdict_is_that_of_the_measurement_it_rests_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = {"by_whole_turns": True, "whole_ratio": 0.88, "whole_low": 0.86, "whole_high": 0.9}
    found = outcome(paired("slower", 1.0, low=0.9, high=1.1, **whole), paired("same"))
    view.show_outcome(found)
    out = " ".join(capsys.readouterr().out.split())
    assert "-12.0% -14.0% to -10.0% slower (whole turns)" in out
    assert "change and interval are those of whole turns" in out
    markdown = view.markdown(found, "sweep")
    assert "-12.0% | -14.0% to -10.0% | **slower (whole turns)**" in markdown
    assert "change and interval are those of whole turns" in markdown
    assert "(10.0% to 14.0%)" in view.junit(found, "sweep")
    cells = json.loads(view.as_json(found))["cells"]
    assert [cell["interval"] for cell in cells] == [[0.86, 0.9], [0.99, 1.01]]
    assert "whole turns" not in view.markdown(outcome(paired("same")), "sweep")
    whole = {"by_whole_turns": True, "whole_ratio": 0.97, "whole_low": 0.92, "whole_high": 1.02}
    (line,) = view.lines(outcome(paired("inconclusive", **whole)))
    assert "whole turns are between 8.0% slower and 2.0% faster than main" in line


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (outcome(paired("same"), paired("faster", 1.1)), "passes: nothing is slower than main"),
        (outcome(paired("same"), paired("slower", 0.9)), "fails: 1 of 2 cells"),
        (
            outcome(paired("slower", 0.9), paired("inconclusive")),
            "fails: 1 of 2 cells; 1 inconclusive",
        ),
        (outcome(paired("same"), paired("inconclusive")), "is inconclusive: 1 of 2 cells"),
        (outcome(paired("inconclusive"), inconclusive="fail"), "fails: 1 inconclusive"),
        (
            outcome(paired("inconclusive"), inconclusive="ignore"),
            "passes: nothing is slower than main; 1 inconclusive",
        ),
    ],
)
def test_the_last_line_says_what_the_exit_code_says(
    found: GateOutcome, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    view.show_outcome(found)
    assert capsys.readouterr().out.splitlines()[-1] == f"The gate {line}."


def test_junit_has_a_case_a_cell_and_none_that_can_be_taken_for_a_pass() -> None:
    found = outcome(paired("same"), paired("slower", 0.9), paired("inconclusive"), FAILED)
    suite = fromstring(view.junit(found, "sweep"))
    assert {name: suite.get(name) for name in ("tests", "failures", "errors")} == {
        "tests": "4",
        "failures": "2",
        "errors": "1",
    }
    assert [[child.tag for child in case] for case in suite.iter("testcase")] == [
        [],
        ["failure"],
        ["error"],
        ["failure"],
    ]
    for words in suite.iter("failure"):
        assert words.text == words.get("message")  # GitLab shows the text, others the message


def test_the_summary_begins_with_the_verdict_and_what_is_wrong() -> None:
    text = view.markdown(outcome(paired("same"), paired("slower", 0.95)), "nightly")
    lines = text.splitlines()
    assert lines[0] == "### Training speed of nightly: fails: 1 of 2 cells"
    assert lines[2].startswith(f"- {CELL.label}: trains 5.0% slower than main")
    assert len([line for line in lines if line.startswith("| mlp ")]) == 2
    assert lines[-1].startswith("Samples/s of main (f8fea52) and of the working tree")


def test_what_a_rank_said_is_no_markup() -> None:
    said = "rank 0: TypeError: __init__() takes <2> arguments | `but`"
    text = view.markdown(outcome(PairedResult(failure=said)), "nightly")
    assert r"TypeError: \_\_init\_\_() takes \<2\> arguments \| \`but\`" in text


def test_what_can_not_be_printed_is_left_out_of_a_ranks_words() -> None:
    said = one_line("\x1b[31mno\x00\n  way\udc80")
    found = fromstring(view.junit(outcome(PairedResult(failure=said)), "sweep"))
    assert found.findtext("testcase/failure") == f"{CELL.label}: failed: [31mno way"


HOSTILE = "x`y` @org/all #1 a[/red]b\n| <img> ![](http://evil) \x1b[31m \ufffe \ud800 ::error::"


def test_hostile_names_and_words_are_text_in_every_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A pull request chooses its labels, its sweep's name and what its ranks print."""
    cell = make_cell(HOSTILE)
    cells = [
        CellOutcome(cell=cell, measured=paired("slower", 0.9)),
        CellOutcome(cell=cell, measured=PairedResult(failure=HOSTILE)),
        CellOutcome(cell=cell, measured=paired("same"), control=PairedResult(failure=HOSTILE)),
    ]
    found = replace(outcome(), cells=cells, options=GateOptions(revision=HOSTILE))
    view.show_outcome(found)
    comment = view.markdown(found, HOSTILE)
    cases = fromstring(view.junit(found, HOSTILE)).findall("testcase")
    assert [case.get("classname") for case in cases] == [one_line(HOSTILE)] * 3
    for text in (capsys.readouterr().out, comment):
        assert "\x1b" not in text
        assert "a[/red]b" in text.replace("\\", "")
    for line in comment.splitlines()[2:]:
        assert line[:2] in ("", "- ", "| ", "Sa")  # nobody else begins a line
    assert not re.search(r"@\w|#\d|(?<!\\)[`<]|(?<!\\)!\[", comment)


def test_json_has_all_of_it() -> None:
    found = json.loads(view.as_json(outcome(paired("slower", 0.9))))
    assert (found["exit_code"], found["cells"][0]["failed"]) == (1, True)


def test_what_it_was_measured_on_and_how_far_to_trust_it_is_said_everywhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = outcome(paired("same"))
    view.show_outcome(found)
    for text in (
        capsys.readouterr().out,
        view.as_json(found),
        view.markdown(found, "a"),
        view.junit(found, "a"),
    ):
        assert all(words in text for words in asdict(CONDITIONS).values())


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
    assert other.python_path.split(os.pathsep) == [
        "/other",
        "/other/src",
        "/other/more",
        "/elsewhere",
    ]


def test_a_revision_that_there_is_not(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    found = harness("gate", "--against", "mian", str(repository.sweep))
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert "--against mian: no such revision" in found.err


def test_a_tree_that_is_reached_through_a_link_is_the_same_tree(tmp_path: Path) -> None:
    """Its code would else be compared with itself."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    other = Tree(name="main", top=tmp_path / "real", path=Path("/other"))
    assert other.counterpart(tmp_path / "link" / "own.py") == Path("/other/own.py")


def test_a_link_in_the_working_tree_chooses_no_other_counterpart(tmp_path: Path) -> None:
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
    # A link that the other tree does not have is followed.
    (top / "link.yaml").symlink_to(top / "other.yaml")
    assert other.counterpart(top / "link.yaml") == other.path / "other.yaml"


def test_an_unknown_policy_is_refused(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    found = harness("gate", "--against", "main", str(repository.sweep), "--inconclusive", "failed")
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert "--inconclusive: found 'failed'; did you mean 'fail'?" in found.err


def test_a_folder_without_git(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no git repository"):
        find_repository(tmp_path)


def test_a_bound_without_meaning_is_cut_and_rates_have_their_unit() -> None:
    measured = paired("inconclusive", 2.0, low=1e-9, high=1e29, unit="steps/s")
    found = outcome(measured)
    words = "between 100.0% slower and more than 1,000% faster than main"
    assert words in view.sentence(found, found.cells[0])
    assert ">+1,000%" in view.markdown(found, "sweep")
    assert "Steps/s of main" in view.markdown(found, "sweep")
    slower = outcome(paired("slower", 0.9, unit="steps/s"))
    assert view.sentence(slower, slower.cells[0]).endswith("1,000 → 900 steps/s")


def test_a_gate_keeps_its_verdict_if_it_cannot_be_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BadInput("local: another command measures here")

    found = outcome(paired("slower", 0.9))
    monkeypatch.setattr(gating, "gate_sweep", lambda *_, **__: found)
    monkeypatch.setattr(gating, "explain_arms", refuse)
    summary, junit = tmp_path / "gate.md", tmp_path / "gate.xml"
    files = ["--summary", str(summary), "--junit", str(junit)]
    ended = harness("gate", "--against", "main", "quickstart", "--explain", *files)
    assert ended.code == 1
    assert "slower" in ended.out
    assert f"{CELL.label}: not explained: local: another command measures here" in ended.err
    assert summary.exists()
    assert junit.exists()
