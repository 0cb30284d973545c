"""`harness report`: one file that shows what was measured, and nothing that was not."""

from __future__ import annotations

import re
import subprocess
import tomllib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness.analysis.parity import write_parity
from harness.core.paths import Results
from harness.hardware import machine as machines
from harness.records.code import Repository
from harness.records.record import TargetMetric
from harness.records.store import read_recorded_sweep
from harness.render.html import intervals, page, sections
from harness.render.html import report as report_module
from harness.spec.sweep import Sweep, ready_sweeps
from tests.factories import make_machine, write_trial
from tests.support.commands import harness
from tests.support.parity import make_parity
from tests.support.reports import (
    HOSTILE,
    failed,
    make_records,
    make_sweep,
    write_run,
)
from tests.support.secrets import SECRET, SECRET_TEXTS
from tests.support.sweeps import load
from tests.support.tree import TOP

LOG_BEGINS = "the log of a trial begins"
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
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


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


def test_the_summary_names_the_winner_the_ratio_and_its_certainty(complete: Page) -> None:
    summary = complete.texts["summary"]
    assert "Fastest is bf16 ddp×2" in summary
    ratio = re.search(r"([\d.]+) times the reference fp32 single \(interval", summary)
    assert ratio is not None
    assert float(ratio[1]) == pytest.approx(8, rel=0.03)
    assert "certain at 95%: each of the other 3 cells is slower" in summary
    assert "3 faster" in summary


def test_single_trials_are_never_certain(results: Results, tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, seeds=1)
    write_run(results, sweep, make_records(sweep))
    texts = report(results).texts
    assert "Not certain: one trial per cell" in texts["summary"]
    assert "inconclusive" in texts["speedups"]
    assert "faster" not in texts["speedups"]


def test_a_section_without_data_says_what_it_needs(
    results: Results, sweep: Sweep, complete: Page
) -> None:
    assert "roofline" not in complete.texts
    assert "Roofline : needs harness peak" in complete.texts["lacking"]
    assert "Energy" in complete.texts["lacking"]
    machines.write(results.peaks, make_machine())
    record = make_records(sweep)[0]
    assert record.rank0
    record = replace(record, rank0=replace(record.rank0, bytes_per_sample=2.5e5))
    write_trial(results.sweep_folder("demo"), record)
    after = report(results)
    assert "Roofline" not in after.texts["lacking"]
    assert "of the roof" in after.texts["roofline"]


def test_trials_that_stopped_are_shown_with_their_epochs(results: Results, tmp_path: Path) -> None:
    sweep = make_sweep(
        tmp_path,
        data={"source": "digits", "validation": 0.1},
        stop={"patience": 2, "restore_best": True},
    )
    write_run(results, sweep, make_records(sweep))
    texts = report(results).texts
    assert "3 epochs, best at 3; ended: 3 by patience" in texts["stopping"]
    assert "training loss" in texts["curves"]


def test_sections_of_a_complete_sweep(complete: Page) -> None:
    texts = complete.texts
    assert "1.99× on 2× the ranks: 100% of ideal" in texts["scaling"]
    assert "3 trials together" in texts["classes"]
    assert "cat 75.0% 90.0% 81.8% 30" in texts["classes"]
    assert "27 90%" in texts["classes"]  # in the matrix: of 30 cats
    assert "steady from step" in texts["steps"]
    assert "10% data wait" in texts["step-phases"]
    assert "101 MiB" in texts["memory"]
    assert "Test CPU" in texts["environment"]
    assert "git checkout c0ffee" in texts["reproduce"]
    assert "harness run " in texts["reproduce"]
    assert "harness reproduce demo" in texts["reproduce"]


def test_speedups_say_which_cells_were_not_measured_in_turn(
    results: Results, sweep: Sweep, complete: Page
) -> None:
    assert "not interleaved" not in complete.texts["speedups"]
    for record in make_records(sweep):
        if record.trial.cell.id == sweep.cells[1].id:
            later = replace(record, started=record.started + 1e6, ended=record.ended + 1e6)
            write_trial(results.sweep_folder("demo"), later)
    assert "; not interleaved: what the machine did" in report(results).texts["speedups"]


def test_a_large_sweep_has_rows_of_its_fastest_cells_and_of_the_reference(
    results: Results, sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_module, "MAX_CELLS", 2)
    monkeypatch.setattr(report_module, "FASTEST", 1)
    records = read_recorded_sweep(results, sweep.name).records
    large = report_module.make_report(results, sweep, records, None)
    omitted = 0
    for workload, cells in large.shown.items():
        reference = large.result.reference(workload)
        assert reference is not None
        expected = {reference.cell.id, large.result.ranking(workload)[0].cell.id}
        assert {cell.cell.id for cell in cells} == expected
        omitted += len(large.workloads[workload]) - len(cells)
    assert large.omitted_count == omitted > 0
    assert f"harness show {sweep.name} has all" in page.render(large)


def test_parity_is_shown_once_it_was_measured(
    results: Results, sweep: Sweep, complete: Page
) -> None:
    assert "Parity : needs harness parity" in complete.texts["lacking"]
    reference, other, *_ = sweep.cells
    parity = make_parity(reference, other)
    write_parity(results.sweep_folder("demo"), parity)
    text = report(results).texts["parity"]
    assert f"against {reference.label} twice the same bits" in text
    assert "step 1, all-reduce reduction order 1×" in text
    shown = harness("show", "demo", "--results", str(results.path))
    assert shown.code == 0
    assert "step 1, all-reduce  reduction order" in shown.out


def test_an_interaction_of_two_axes_is_not_called_a_speedup(complete: Page) -> None:
    text = complete.texts["axes"]
    assert re.search(r"bf16 against fp32 4\.\d\d× \([^)]*\) faster", text)
    assert "mlp: two axes together how much more the first contributes" in text
    assert re.search(r"bf16 with ddp [01]\.\d\d× \([^)]*\) not certain", text)


def test_cells_with_equal_losses_share_a_curve(complete: Page) -> None:
    names = "fp32 single = bf16 single fp32 ddp×2 = bf16 ddp×2"
    assert names in complete.texts["curves"]


@pytest.mark.parametrize("colors", [sections.STEP_COLORS, sections.TRIAL_COLORS])
def test_every_phase_has_its_own_color(colors: dict[str, str]) -> None:
    assert len({color.lower() for color in colors.values()}) == len(colors)


def test_the_page_loads_nothing(complete: Page) -> None:
    assert "svg" in complete.tags
    assert not complete.tags & LOADING_TAGS
    addresses = [value or "" for name, value in complete.attributes if name in ADDRESS_ATTRIBUTES]
    assert addresses
    assert [address for address in addresses if not address.startswith("#")] == []
    assert not re.search(r"@import|url\((?!#)", complete.source)


def test_hostile_texts_are_escaped(results: Results, tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, label=HOSTILE, description=HOSTILE)
    write_run(results, sweep, make_records(sweep, hostile=True), logs=HOSTILE)
    written = report(results)
    assert not written.tags & {"script", "img"}
    assert [name for name, _ in written.attributes if name.startswith("on")] == []
    assert HOSTILE in written.texts["failures"]
    assert HOSTILE in written.texts["matrix"]


def test_a_failed_trial_is_shown_with_its_reason_and_log(results: Results, tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path)
    records = make_records(sweep, hostile=True)
    write_run(results, sweep, records[1:], logs="the last line of the log")
    texts = report(results).texts
    assert f"{records[-1].trial.id} , log" in texts["failures"]
    assert "the last line of the log" in texts["failures"]
    assert "10 done, 1 failed, 1 not run" in texts["head"]


def test_secrets_in_logs_are_removed(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "s3cret<>value")
    sweep = make_sweep(tmp_path)
    logs = "s3cret<>value at https://me:pw@host/x"
    write_run(results, sweep, make_records(sweep, hostile=True), logs=logs)
    source = report(results).source
    assert "s3cret" not in source
    assert "me:pw" not in source
    assert source.count("[redacted]") >= 2


def test_no_kind_of_secret_stays_in_a_report(results: Results, tmp_path: Path) -> None:
    """A report shows the end of a log, so no trial's log has all kinds."""
    sweep = make_sweep(tmp_path)
    records = make_records(sweep)
    write_run(results, sweep, records)
    texts = list(SECRET_TEXTS.values())
    groups = [texts[start : start + 8] for start in range(0, len(texts), 8)]
    for record, group in zip(records, groups, strict=False):
        logs = "\n".join([LOG_BEGINS, *group])
        write_trial(results.sweep_folder("demo"), failed(record), logs=logs)
    source = report(results).source
    assert SECRET not in source
    _, *logs_shown = source.split(LOG_BEGINS)
    assert len(logs_shown) == len(groups)
    for shown, group in zip(logs_shown, groups, strict=True):
        assert shown.count("[redacted]") >= len(group)


@pytest.mark.usefixtures("sweep")
def test_the_same_records_give_the_same_bytes(results: Results, tmp_path: Path) -> None:
    again = report(results, "--output", str(tmp_path / "again.html"))
    assert report(results).source == again.source


@pytest.mark.usefixtures("sweep")
def test_a_sweep_is_compared_with_a_baseline(results: Results) -> None:
    assert harness("baseline", "demo", "--results", str(results.path)).code == 0
    compared = report(results, "--against", "baseline")
    assert "1.00×" in compared.texts["against"]
    assert "against" not in report(results).texts


@pytest.mark.usefixtures("sweep")
@pytest.mark.parametrize(
    "arguments", [["other"], ["demo", "--against", "baseline"], ["demo", "--against", "nothing"]]
)
def test_an_unknown_name_is_bad_input_and_writes_nothing(
    results: Results, tmp_path: Path, arguments: list[str]
) -> None:
    out = tmp_path / "out.html"
    ended = harness("report", *arguments, "--results", str(results.path), "--output", str(out))
    assert ended.code == 2
    assert ended.err.count("\n") == 1
    assert not out.exists()


def test_a_sweep_without_records_is_bad_input(results: Results, tmp_path: Path) -> None:
    write_run(results, make_sweep(tmp_path), [])
    ended = harness("report", "demo", "--results", str(results.path))
    assert ended.code == 2
    assert "found no records" in ended.err


def test_a_wheel_contains_the_templates() -> None:
    """Hatchling packs what is in a package and not ignored by git."""
    templates = sorted((Path(page.__file__).parent / "templates").iterdir())
    names = {"report.html", "kinds.html", "report.css"}
    assert {path.name for path in templates} == names
    project = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))
    targets = project["tool"]["hatch"]["build"]["targets"]
    assert targets == {"wheel": {"packages": ["harness", "workloads", "clusters"]}}
    if (TOP / ".git").exists():
        ignored = subprocess.run(
            ["git", "check-ignore", *map(str, templates)], cwd=TOP, capture_output=True, text=True
        )
        assert ignored.stdout == ""


def test_a_sweep_that_has_only_begun_has_a_report(results: Results, tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path)
    write_run(results, sweep, make_records(sweep)[:1])
    assert "1 done, 11 not run" in report(results).texts["head"]


def test_titles_name_the_workloads_own_metric(results: Results, sweep: Sweep) -> None:
    folder = results.sweep_folder("demo")
    for record in make_records(sweep):
        assert record.rank0
        evaluations = [
            replace(evaluation, metrics={"bleu": evaluation.metrics["accuracy"]})
            for evaluation in record.rank0.evaluations
        ]
        target = TargetMetric(name="bleu", higher_is_better=True)
        rank0 = replace(record.rank0, target=target, evaluations=tuple(evaluations))
        write_trial(folder, replace(record, rank0=rank0))
    texts = report(results).texts
    assert texts["accuracy"].startswith("Final bleu ")
    assert texts["evaluations"].startswith("Bleu during training ")
    assert texts["curves"].startswith("Training loss ")


def test_the_recipe_has_the_users_commit_and_command(results: Results, tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, seeds=2)
    repository = Repository(commit="decaf" * 8, dirty=True, diff="a1b2")
    records = []
    for record in make_records(sweep):
        assert record.environment
        environment = replace(record.environment, repository=repository)
        records.append(replace(record, environment=environment))
    options = ["--set", "precision=fp32,bf16", "--data", "mlp=/data"]
    write_run(results, replace(sweep, options=options), records)
    recipe = report(results).texts["reproduce"]
    assert f"{'decaf' * 8} (yours, with changes)" in recipe
    assert f"git checkout {'decaf' * 8}" in recipe
    assert "a1b2.diff" in recipe
    assert f"harness run {sweep.source} --set precision=fp32,bf16 --data mlp=/data" in recipe


def test_the_recipe_calls_a_sweep_that_comes_with_the_harness_by_its_name(
    results: Results, tmp_path: Path
) -> None:
    """And a file of the user's that has the same name by its path."""
    sweep = make_sweep(tmp_path)
    own = tmp_path / "matrix.yaml"
    elsewhere = Path("/cluster/lib/workloads/sweeps/matrix.yaml")
    for source, name in (
        (own, str(own)),
        (ready_sweeps()["matrix"], "matrix"),
        (elsewhere, "matrix"),
    ):
        write_run(results, replace(sweep, source=source), make_records(sweep))
        assert f" harness run {name} " in report(results).texts["reproduce"]


def test_nodes_are_compared_where_trials_ran_on_several(
    results: Results, sweep: Sweep, complete: Page
) -> None:
    """Both commands name n2, on which every other seed took twice as long."""
    assert "Nodes : needs two blocks" in complete.texts["lacking"]
    for record in make_records(sweep):
        assert record.summary is not None
        seed = record.trial.seed
        node = "n2" if seed % 2 else "n1"
        own_seconds = 0.01 * (2.0 if node == "n2" else 1.0) * (1 + 0.001 * seed)
        for block in range(3):
            trial = replace(record.trial, repeat=block)
            summary = replace(record.summary, node_seconds={node: own_seconds + 1e-5 * block})
            write_trial(results.sweep_folder("demo"), replace(record, trial=trial, summary=summary))
    table = report(results).texts["nodes"]
    assert "n2 50.0% slower" in table
    assert (
        "slow node n2: 50.0% slower"
        in harness("status", "demo", "--results", str(results.path)).out
    )


def test_the_recipe_is_that_of_the_trial_that_ended_last(results: Results, tmp_path: Path) -> None:
    """Trials that earlier commands have left come after those of the last command."""
    sweep = make_sweep(tmp_path, seeds=2)
    records = make_records(sweep)
    commits = ["beef" * 10] + ["face" * 10] * (len(records) - 1)
    changed = []
    for record, commit in zip(records, commits, strict=True):
        assert record.environment
        assert record.environment.code
        code = replace(record.environment.code, commit=commit)
        repository = Repository(commit=commit[::-1], dirty=False, diff=None)
        environment = replace(record.environment, code=code, repository=repository)
        changed.append(replace(record, environment=environment))
    changed[0] = replace(changed[0], started=changed[0].started + 1e6, ended=changed[0].ended + 1e6)
    write_run(results, sweep, changed)
    recipe = report(results).texts["reproduce"]
    assert f"git checkout {'beef' * 10}" in recipe
    assert f"git checkout {'feeb' * 10}" in recipe
    assert "git checkout face" not in recipe


def test_a_workload_names_its_own_cells_that_never_reached_the_goal(
    results: Results, tmp_path: Path
) -> None:
    """Not those of another workload, of which no cell can be compared."""
    mlp = {"uses": "mlp", "data": {"source": "digits"}}
    sweep = load(
        tmp_path,
        {"good": mlp, "bad": {**mlp, "options": {"hidden": [8]}}},
        seeds=[0, 1, 2],
        length={"steps": 60},
        matrix={"precision": ["fp32", "bf16"]},
    )
    records = []
    for record in make_records(sweep):
        assert record.rank0 is not None
        if record.trial.cell.workload.label == "bad":
            evaluations = [
                replace(evaluation, metrics={"accuracy": 0.1})
                for evaluation in record.rank0.evaluations
            ]
            record = replace(record, rank0=replace(record.rank0, evaluations=tuple(evaluations)))
        records.append(record)
    made = report_module.make_report(results, sweep, records, None, goal=0.4)
    comparison = made.result.comparison
    assert comparison is not None
    assert any(missing.startswith("bad") for missing in comparison.missing)
    (group,) = intervals.convergence(made)
    assert (group.title, group.note) == ("good", "1× is fp32")
