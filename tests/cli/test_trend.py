"""`harness trend`: the nights of archives and folders, as a table, JSON, Markdown and JUnit."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest

from harness.core.paths import Results
from harness.gate.bisect import BisectOptions, BisectOutcome
from harness.gate.history import Commit
from harness.gate.judge import BisectFinding
from harness.interface import history as interface_history
from harness.tracking import Tracker
from harness.tracking.connect import connect, quiet
from tests.factories import make_cell, write_sweep
from tests.support.commands import harness
from tests.support.mlflow import runs_of
from tests.support.nights import make_night, write_archives

HOSTILE = "mlp\x1b[31m @org <b>|"


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty nights in archives, of which the tenth made training 5% slower; the last one shows it."""
    folder = tmp_path_factory.mktemp("history")
    nights = []
    for number in range(22):
        nights.append(make_night(number, 1.0 if number < 15 else 0.95, cell=make_cell(HOSTILE)))
    write_archives(folder, nights)
    return folder


@pytest.fixture
def seen(history: Path) -> int:
    """The number of nights after which the slowdown is certain."""
    found = harness("trend", "nightly", str(history), "--results", "nowhere", "--json")
    (change,) = json.loads(found.out)["series"][0]["changes"]
    points = json.loads(found.out)["series"][0]["points"]
    return [point["started"] for point in points].index(change["seen"]) + 1


def archives(history: Path, count: int) -> list[str]:
    return [str(path) for path in sorted(history.glob("*.tar.gz"))[:count]]


def test_a_new_slowdown_fails_and_is_named(history: Path, seen: int, tmp_path: Path) -> None:
    summary, junit, page = tmp_path / "trend.md", tmp_path / "trend.xml", tmp_path / "trend.html"
    files = ["--summary", str(summary), "--junit", str(junit), "--output", str(page)]
    files += ["--results", str(tmp_path)]
    found = harness("trend", "nightly", *archives(history, seen), *files)
    assert found.code == 1
    assert found.out.splitlines()[-1] == "The trend fails: 1 new slowdown with the last night."
    assert "% slower (-" in found.out
    assert "\x1b" not in found.out
    suite = fromstring(junit.read_text(encoding="utf-8"))
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    text = summary.read_text(encoding="utf-8")
    assert text.startswith("### Trend of nightly: The trend fails: 1 new slowdown")
    for harmful in ("\x1b", "@org", "<b>"):
        assert harmful not in text
    html = page.read_text(encoding="utf-8")
    assert html.count("<svg role=") == 1  # the plot of the only series
    assert "<b>" not in html
    assert "<script" not in html


def test_a_known_slowdown_passes_and_stays_in_the_table(history: Path) -> None:
    found = harness("trend", "nightly", str(history), "--results", "nowhere")
    assert found.code == 0, found.err
    last = found.out.splitlines()[-1]
    assert last == "The trend passes: no new slowdown with the last night; 1 change in all."
    assert f"{14:040x}"[:7] in found.out


def test_the_results_folder_is_the_last_night(history: Path, seen: int, tmp_path: Path) -> None:
    folder = Results(tmp_path).sweep_folder("nightly")
    folder.path.mkdir(parents=True)
    write_sweep(folder, make_night(seen - 1, 0.95, cell=make_cell(HOSTILE)))
    paths = archives(history, seen - 1)
    assert harness("trend", "nightly", *paths, "--results", "nowhere").code == 0
    assert harness("trend", "nightly", *paths, "--results", str(tmp_path)).code == 1


def test_archives_of_other_sweeps_are_passed_over(history: Path, tmp_path: Path) -> None:
    found = harness("trend", "weekly", str(history), "--results", str(tmp_path))
    assert found.code == 2
    assert found.err.startswith("harness: weekly: found no records of such a sweep in ")


@pytest.mark.parametrize("kind", ["file", "folder", "missing"])
def test_what_is_no_history_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "history"
    if kind == "file":
        path.write_text("no archive", encoding="utf-8")
    if kind == "folder":
        path.mkdir()
    found = harness("trend", "nightly", str(path), "--results", str(tmp_path / "results"))
    assert (found.code, found.out) == (2, "")
    assert str(path) in found.err
    assert len(found.err.splitlines()) == 1


def test_a_bisection_needs_the_sweep_in_the_results_folder(
    history: Path, seen: int, tmp_path: Path
) -> None:
    found = harness(
        "trend", "nightly", *archives(history, seen), "--bisect", "--results", str(tmp_path)
    )
    assert found.code == 2
    assert "1 new slowdown" in found.out  # which is shown before
    assert found.err.startswith("harness: nightly: no records of such a sweep in ")


def test_a_bisection_leaves_the_json_alone(
    history: Path, seen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Commit(id="a" * 40, short="aaaaaaa", author="a", date="d", subject="the slow one")
    outcome = BisectOutcome(
        options=BisectOptions(good="good", bad="bad"),
        cell=make_cell(),
        steps=[],
        suspects=[commit],
        against_parent=BisectFinding(mark="bad", description="5% slower"),
    )
    monkeypatch.setattr(interface_history, "bisect_slowdowns", lambda *_: [outcome])
    found = harness(
        "trend", "nightly", *archives(history, seen), "--results", "nowhere", "--json", "--bisect"
    )
    assert (found.code, json.loads(found.out)["exit_code"]) == (1, 1)
    assert "is the first bad commit" in found.err


def test_a_record_in_mlflow_that_cant_be_read_is_left_out_and_named(tmp_path: Path) -> None:
    results = Results(tmp_path / "night")
    folder = results.sweep_folder("nightly")
    folder.path.mkdir(parents=True)
    write_sweep(folder, make_night(0, 1.0))
    tracker = Tracker(results)
    tracker.deliver(folder)
    trials = [run for run in runs_of(tracker.uri, "nightly") if "harness.record" in run.data.tags]
    damaged = trials[0].info.run_id
    with quiet():
        connect(tracker.uri).log_text(damaged, "{", "record.json")
    arguments = ("--from-mlflow", "--tracking-uri", tracker.uri, "--results", str(tmp_path))
    found = harness("trend", "nightly", *arguments, "--json")
    assert found.code == 0, found.err
    trend = json.loads(found.out)
    assert len(trend["series"][0]["points"]) == 1
    assert any(f"left out MLflow run {damaged}: record.json" in note for note in trend["notes"])


def test_series_with_similar_and_long_labels_have_curves_of_their_own(tmp_path: Path) -> None:
    results = Results(tmp_path)
    folder = results.sweep_folder("nightly")
    folder.path.mkdir(parents=True)
    labels = [f"{'w' * 190} {end}" for end in ("a@b", "a#b")] + ["a/b", "a-b"]
    records = []
    for label in labels:
        records += make_night(0, 1.0, cell=make_cell(label), cpu="Test CPU of a long name")
    write_sweep(folder, records)
    arguments = ("--to-mlflow", "--results", str(tmp_path))
    assert harness("trend", "nightly", *arguments).code == 0
    (run,) = runs_of(f"sqlite:///{results.database}", "nightly")
    assert len(run.data.metrics) == len(labels)
    assert all(name.startswith("trend/") for name in run.data.metrics)


def test_mlflow_gives_the_nights_and_takes_the_trend(tmp_path: Path) -> None:
    """Every night is delivered from a results folder of its own, as CI's runners do."""
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    for number in range(3):
        results = Results(tmp_path / f"night-{number}")
        folder = results.sweep_folder("nightly")
        folder.path.mkdir(parents=True)
        write_sweep(folder, make_night(number, 1.0))
        Tracker(results, uri).deliver(folder)
    arguments = ("--from-mlflow", "--tracking-uri", uri, "--results", str(tmp_path / "results"))
    found = harness("trend", "nightly", *arguments, "--json")
    (series,) = json.loads(found.out)["series"]
    assert [point["commit"] for point in series["points"]] == [f"{n:040x}" for n in range(3)]
    for _ in range(2):
        assert harness("trend", "nightly", *arguments, "--to-mlflow").code == 0
    (run,) = [run for run in runs_of(uri, "nightly") if run.data.tags["harness.kind"] == "trend"]
    name = "trend/mlp eager fp32 single w0 b64 t1 on Test-CPU-2-cores"
    with quiet():
        history = connect(uri).get_metric_history(run.info.run_id, name)
    assert [metric.step for metric in history] == [0, 1, 2]
    assert [metric.value for metric in history] == pytest.approx(
        [point["throughput"] for point in series["points"]]
    )
