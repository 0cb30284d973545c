"""`harness report`: one file that shows what was measured, and nothing that was not."""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness.analysis.parity import write_parity
from harness.core.paths import Results
from harness.core.worktree import run_git
from harness.records.environment import Repository
from harness.sweep.sweep import Sweep, ready_sweeps
from harness.view import report as page
from harness.view.report import drawing_of
from harness.view.value import Effect
from harness.view.view import Table
from tests.factories import ENVIRONMENT
from tests.support.commands import harness
from tests.support.parity import make_parity
from tests.support.reports import HOSTILE, failed, make_records, make_sweep, write_run
from tests.support.sweeps import load
from tests.support.tree import TOP

LOADING_TAGS = {"script", "link", "img", "iframe", "object", "embed"}
ADDRESS_ATTRIBUTES = ("src", "href", "xlink:href")


class Page(HTMLParser):
    """A page as a browser reads it: its elements with their attributes, and each section's text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}  # by the section's id; `head` before the first one
        self.section = "head"
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)

    @property
    def tags(self) -> set[str]:
        return {tag for tag, _ in self.elements}

    @property
    def attributes(self) -> list[tuple[str, str | None]]:
        return [item for _, attributes in self.elements for item in attributes.items()]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "section":
            self.section = str(dict(attrs)["id"])

    def handle_data(self, data: str) -> None:
        text = f"{self.texts.get(self.section, '')} {data}"
        self.texts[self.section] = " ".join(text.split())


@pytest.fixture
def sweep(results: Results, tmp_path: Path) -> Sweep:
    """A sweep of which every trial is done."""
    sweep = make_sweep(tmp_path)
    write_run(results, sweep, make_records(sweep))
    return sweep


def report(results: Results, *options: str) -> Page:
    """Return the report of the sweep `demo` as the command writes it."""
    ended = harness("report", "demo", "--results", str(results.path), *options)
    assert (ended.code, ended.err) == (0, "")
    return Page(Path(ended.out.strip()))


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The report of the fixture `sweep`, for all tests that add nothing to it."""
    folder = tmp_path_factory.mktemp("complete")
    sweep = make_sweep(folder)
    results = Results(folder / "results")
    write_run(results, sweep, make_records(sweep))
    return report(results)


def test_sections_of_a_complete_sweep(complete: Page) -> None:
    texts = complete.texts
    assert set(texts) == {"head", "summary", "cells", "effects", "curves", "environment"}
    expected = {
        "summary": ["mlp: fastest is bf16 ddp×2", "certain at 95%.", ", accuracy same; "],
        "cells": ["7.97×", "faster", "101"],
        "curves": ["training loss", "bf16 ddp×2 = fp32 ddp×2 bf16 single = fp32 single"],
        "environment": ["Test CPU", "git checkout c0ffee", "harness run ", " reproduce demo"],
    }
    for section, words in expected.items():
        assert [word for word in words if word not in texts[section]] == []
    assert re.search(r"<span>\(\S+ to \S+\)</span>", complete.source)  # which no line breaks


def test_scripts_at_several_world_sizes_have_a_report(results: Results, tmp_path: Path) -> None:
    """What a script makes of its ranks is its own affair: its cells have no strategy."""
    (tmp_path / "train.py").write_text("print('a script')\n", encoding="utf-8")
    workloads, matrix = {"train": {"uses": "train.py"}}, {"world_size": [1, 2]}
    sweep = load(tmp_path, workloads, seeds=[0, 1], length={"steps": 60}, matrix=matrix)
    assert all("strategy" not in cell.levels for cell in sweep.cells)
    write_run(results, sweep, make_records(sweep))
    assert " 99.6% " in report(results).texts["cells"]  # of ideal scaling


def test_intervals_are_drawn_whole_and_one_that_would_flatten_the_others_goes_on() -> None:
    table = Table(["cell", "speed"])
    intervals = [(0.57, 0.1, 3.35), (0.8, 0.19, 3.32), (0.4, 0.2, 0.83)]
    for ratio, *bounds in [*intervals, (1.0, 1e-9, 1e9), (2.0, 0.0, math.inf)]:
        table.add_row("a cell", Effect(ratio, (bounds[0], bounds[1])))
    table.add_row("a cell", Effect(1.0))
    place = drawing_of(table)
    places = list(map(place, [0.1, 0.19, 0.2, 0.4, 0.57, 0.83, 1.0, 2.0, 3.32, 3.35]))
    assert places == sorted(set(places))
    assert 5 < places[0] < places[-1] < 95
    assert places[-1] - places[0] > 40
    assert [place(1e-9), place(0.0), place(1e9), place(math.inf)] == [0, 0, 100, 100]


def test_parity_is_shown_once_it_was_measured(
    results: Results, sweep: Sweep, complete: Page
) -> None:
    assert "parity" not in complete.texts
    reference, other, *_ = sweep.cells
    parity = make_parity(reference, other)
    write_parity(results.sweep_folder("demo"), parity)
    text = report(results).texts["parity"]
    assert f"against {reference.label}, twice the same bits" in text
    assert "step 1, all-reduce strategy 1×" in text
    shown = harness("show", "demo", "--results", str(results.path))
    assert "parity" in shown.out


def test_an_interaction_of_two_axes_is_not_called_a_speedup(complete: Page) -> None:
    text = complete.texts["effects"]
    assert re.search(r"bf16 fp32 4\.\d+× \([^)]*\) faster", text)
    assert re.search(r"bf16 with ddp \S+ with \S+ [01]\.\d+× \([^)]*\) not certain", text)


def test_the_page_loads_nothing(complete: Page) -> None:
    assert "svg" in complete.tags
    assert not complete.tags & LOADING_TAGS
    addresses = [value or "" for name, value in complete.attributes if name in ADDRESS_ATTRIBUTES]
    assert addresses
    assert [address for address in addresses if not address.startswith("#")] == []
    assert not re.search(r"@import|url\((?!#)", complete.source)


def test_a_failed_trial_is_shown_with_its_log_and_hostile_texts_are_escaped(
    results: Results, tmp_path: Path
) -> None:
    sweep = make_sweep(tmp_path)
    records = make_records(sweep, hostile=True)
    write_run(results, sweep, records[1:], logs=HOSTILE)
    written = report(results)
    assert not written.tags & {"script", "img"}
    assert [name for name, _ in written.attributes if name.startswith("on")] == []
    assert HOSTILE in written.texts["failures"]
    assert f"{records[-1].trial.id} , log" in written.texts["failures"]
    assert "10 done, 1 failed, 1 not run" in written.texts["head"]


def test_a_sweep_without_a_measured_trial_has_a_page(results: Results, tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path)
    write_run(results, sweep, [failed(record) for record in make_records(sweep)])
    texts = report(results).texts
    assert "No trial was measured." in texts["summary"]


@pytest.mark.usefixtures("sweep")
def test_the_same_records_give_the_same_bytes(results: Results, tmp_path: Path) -> None:
    again = report(results, "--output", str(tmp_path / "again.html"))
    assert report(results).source == again.source


def test_a_sweep_without_records_is_bad_input(results: Results, tmp_path: Path) -> None:
    write_run(results, make_sweep(tmp_path), [])
    ended = harness("report", "demo", "--results", str(results.path))
    assert ended.code == 2
    assert "found no records" in ended.err


def test_a_wheel_contains_the_templates() -> None:
    """Hatchling packs what is in a package and not ignored by git."""
    templates = sorted((Path(page.__file__).parent / "templates").iterdir())
    names = {"report.html", "report.css"}
    assert {path.name for path in templates} == names
    project = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))
    targets = project["tool"]["hatch"]["build"]["targets"]
    assert targets == {"wheel": {"packages": ["harness", "workloads", "clusters"]}}
    if (TOP / ".git").exists():
        assert run_git(TOP, "check-ignore", *map(str, templates)).stdout == ""


def test_the_recipe_has_the_users_commit_and_command(results: Results, tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, seeds=2)
    repository = Repository(commit="decaf" * 8, dirty=True, diff="a1b2")
    environment = replace(ENVIRONMENT, repository=repository)
    records = [replace(record, environment=environment) for record in make_records(sweep)]
    options = ["--set", "precision=fp32,bf16", "--data", "mlp=/data"]
    write_run(results, replace(sweep, options=options), records)
    recipe = report(results).texts["environment"]
    assert f"git checkout {'decaf' * 8}" in recipe
    assert "a1b2.diff" in recipe
    assert f"harness run {sweep.source} --set precision=fp32,bf16 --data mlp=/data" in recipe


def test_a_user_whose_code_is_in_no_repository_is_warned(results: Results, tmp_path: Path) -> None:
    """No commit of the harness brings back a model that git does not know."""
    sweep = make_sweep(tmp_path)
    write_run(results, sweep, make_records(sweep))
    warning = f"{sweep.source} and the code of its workloads are in no git repository"
    assert warning in report(results).texts["environment"]
    write_run(results, replace(sweep, source=ready_sweeps()["quickstart"]), make_records(sweep))
    assert "in no git repository" not in report(results).texts["environment"]


def test_the_recipe_calls_a_sweep_that_comes_with_the_harness_by_its_name(
    results: Results, tmp_path: Path
) -> None:
    """And a file of the user's that has the same name by its path."""
    sweep = make_sweep(tmp_path)
    own = tmp_path / "matrix.yaml"
    elsewhere = Path("/cluster/lib/workloads/sweeps/matrix.yaml")
    ready = ready_sweeps()["matrix"]
    for source, name in ((own, str(own)), (ready, "matrix"), (elsewhere, "matrix")):
        write_run(results, replace(sweep, source=source), make_records(sweep))
        assert f" harness run {name} " in report(results).texts["environment"]
