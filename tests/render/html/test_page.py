"""`harness report`: one file that says what is known, and nothing that is not."""

from __future__ import annotations

import re
import subprocess
import tomllib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness.core.paths import Results
from harness.hardware import machine as machines
from harness.render.html import page, sections
from tests.factories import make_machine, write_trial
from tests.support.commands import harness
from tests.support.reports import HOSTILE, leave, make_records, make_sweep
from tests.support.tree import TOP


class Page(HTMLParser):
    """What a browser would make of it: elements, attributes, and the words of each section."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: dict[str, str] = {}
        self.section = "head"
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "section":
            self.section = str(dict(attrs)["id"])

    def handle_data(self, data: str) -> None:
        self.words[self.section] = " ".join(f"{self.words.get(self.section, '')} {data}".split())


@pytest.fixture
def place(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


def report(place: Results, *more: str) -> Page:
    ended = harness("report", "demo", "--results", str(place.path), *more)
    assert (ended.code, ended.err) == (0, "")
    return Page(Path(ended.out.strip()))


def test_says_what_won_by_how_much_and_that_it_is_certain(place: Results, tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path)
    leave(place, sweep, make_records(sweep))
    summary = report(place).words["summary"]
    assert "Fastest is bf16 ddp×2" in summary
    ratio = re.search(r"([\d.]+) times the reference fp32 single \(95% interval", summary)
    assert ratio is not None
    assert float(ratio[1]) == pytest.approx(8, rel=0.03)
    assert "certain at 95%: each of the other 3 cells is slower" in summary
    assert "3 faster" in summary


def test_a_single_trial_is_never_certain(place: Results, tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, seeds=1)
    leave(place, sweep, make_records(sweep))
    words = report(place).words
    assert "Not certain: a single trial a cell" in words["summary"]
    assert "inconclusive" in words["speedups"]
    assert "faster" not in words["speedups"]


def test_what_there_is_no_data_for_is_named_with_what_brings_it(
    place: Results, tmp_path: Path
) -> None:
    sweep = make_sweep(tmp_path)
    records = make_records(sweep)
    leave(place, sweep, records)
    before = report(place)
    assert "roofline" not in before.words
    assert "Roofline : takes harness peak" in before.words["lacking"]
    assert "Energy" in before.words["lacking"]
    machines.write(place.peaks, make_machine())
    learned = records[0].rank0
    assert learned
    write_trial(
        place.sweep_folder("demo"),
        replace(records[0], rank0=replace(learned, bytes_per_sample=2.5e5)),
    )
    after = report(place)
    assert "Roofline" not in after.words["lacking"]
    assert "of the roof" in after.words["roofline"]


def test_sections_of_a_whole_sweep(place: Results, tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path)
    leave(place, sweep, make_records(sweep))
    words = report(place).words
    assert "1.99× on 2× the ranks: 100% of ideal" in words["scaling"]
    assert "steady from step" in words["steps"]
    assert "10% data wait" in words["step-phases"]
    assert "101 MiB" in words["memory"]
    assert "Test CPU" in words["environment"]
    assert "git checkout c0ffee" in words["reproduce"]
    assert "--set seeds=0,1,2" in words["reproduce"]


def test_what_two_axes_do_together_is_not_taken_for_a_speed_up(
    place: Results, tmp_path: Path
) -> None:
    sweep = make_sweep(tmp_path)
    leave(place, sweep, make_records(sweep))
    words = report(place).words["axes"]
    assert re.search(r"bf16 against fp32 4\.\d\d× \([^)]*\) faster", words)
    assert (
        "mlp: two axes together how much more the first buys with the second than without it"
        in words
    )
    assert re.search(r"bf16 with ddp [01]\.\d\d× \([^)]*\) not certain", words)


def test_cells_that_trained_the_same_share_a_curve(place: Results, tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path)
    leave(place, sweep, make_records(sweep))
    assert "fp32 single = bf16 single fp32 ddp×2 = bf16 ddp×2" in report(place).words["curves"]


def test_every_phase_of_a_trial_has_its_own_colour() -> None:
    for looks in (sections.STEP, sections.TRIAL):
        assert len({colour.lower() for colour in looks.values()}) == len(looks)


def test_it_needs_nothing_else(place: Results, tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path)
    leave(place, sweep, make_records(sweep))
    found = report(place)
    tags = {tag for tag, _ in found.elements}
    assert "svg" in tags
    assert not tags & {"script", "link", "img", "iframe", "object", "embed"}
    addresses = [
        value or "" for _, attributes in found.elements for name, value in attributes.items()
        if name in ("src", "href", "xlink:href")
    ]  # fmt: skip
    assert addresses
    assert [address for address in addresses if not address.startswith("#")] == []
    assert not re.search(r"@import|url\((?!#)", found.text)


def test_hostile_words_stay_words(place: Results, tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, label=HOSTILE, description=HOSTILE)
    records = make_records(sweep, hostile=True)
    leave(place, sweep, records, logs=HOSTILE)
    found = report(place)
    assert not {tag for tag, _ in found.elements} & {"script", "img"}
    assert not [
        name for _, attributes in found.elements for name in attributes if name.startswith("on")
    ]
    assert HOSTILE in found.words["failures"]
    assert HOSTILE in found.words["matrix"]


def test_a_failed_trial_is_told_with_its_reason_and_log(place: Results, tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path)
    records = make_records(sweep, hostile=True)
    leave(place, sweep, records[1:], logs="the last line of the log")
    words = report(place).words
    assert f"{records[-1].trial.id} , log" in words["failures"]
    assert "the last line of the log" in words["failures"]
    assert "10 done, 1 failed, 1 not run" in words["head"]


def test_secrets_in_logs_are_cut_out(
    place: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "s3cret<>value")
    sweep = make_sweep(tmp_path)
    leave(
        place,
        sweep,
        make_records(sweep, hostile=True),
        logs="s3cret<>value at https://me:pw@host/x",
    )
    text = report(place).text
    assert "s3cret" not in text
    assert "me:pw" not in text
    assert text.count("[redacted]") >= 2


def test_the_same_records_give_the_same_bytes(place: Results, tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path)
    leave(place, sweep, make_records(sweep))
    assert report(place).text == report(place, "--out", str(tmp_path / "again.html")).text


def test_against_a_baseline(place: Results, tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path)
    leave(place, sweep, make_records(sweep))
    assert harness("baseline", "save", "demo", "--results", str(place.path)).code == 0
    found = report(place, "--against", "baseline")
    assert "1.00×" in found.words["against"]
    assert "against" not in report(place).words


@pytest.mark.parametrize(
    "arguments", [["other"], ["demo", "--against", "baseline"], ["demo", "--against", "nothing"]]
)
def test_what_is_not_there_is_bad_input_and_writes_nothing(
    place: Results, tmp_path: Path, arguments: list[str]
) -> None:
    sweep = make_sweep(tmp_path)
    leave(place, sweep, make_records(sweep))
    out = tmp_path / "out.html"
    ended = harness("report", *arguments, "--results", str(place.path), "--out", str(out))
    assert ended.code == 2
    assert ended.err.count("\n") == 1
    assert not out.exists()


def test_a_sweep_without_records_is_bad_input(place: Results, tmp_path: Path) -> None:
    leave(place, make_sweep(tmp_path), [])
    assert "found no records" in harness("report", "demo", "--results", str(place.path)).err


def test_a_wheel_holds_the_templates() -> None:
    """Hatchling packs what lies in a package and is not ignored by git."""
    templates = sorted((Path(page.__file__).parent / "templates").iterdir())
    assert {path.name for path in templates} == {"report.html", "kinds.html", "report.css"}
    wheel = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"][
        "build"
    ]["targets"]
    assert wheel == {"wheel": {"packages": ["harness", "workloads", "clusters"]}}
    if (TOP / ".git").exists():
        ignored = subprocess.run(
            ["git", "check-ignore", *map(str, templates)], cwd=TOP, capture_output=True, text=True
        )
        assert ignored.stdout == ""


def test_one_trial_in_flight_is_no_trouble(place: Results, tmp_path: Path) -> None:
    """A report of a sweep that has only begun."""
    sweep = make_sweep(tmp_path)
    records = make_records(sweep)
    leave(place, sweep, [])
    write_trial(place.sweep_folder("demo"), records[0])
    assert "1 done, 11 not run" in report(place).words["head"]
