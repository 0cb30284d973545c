"""pytest as a gate: the cells of a sweep as benchmarks, and what becomes of them."""

from __future__ import annotations

import json
import re
import sys
from typing import Any
from xml.etree.ElementTree import parse

import pytest

from harness.analysis import baseline
from harness.analysis.result import aggregate
from harness.records.record import read_record
from harness.records.store import lock
from tests.support.benchmarks import PLUGIN, SEEDS, Place, records
from tests.support.commands import harness

pytest_plugins = ["pytester"]


@pytest.fixture
def place(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(pytester, monkeypatch)


def test_a_cell_is_a_benchmark_in_table_and_json(place: Place) -> None:
    place.both()
    found = place.pytest("--benchmark-json=out.json", "--junitxml=junit.xml")
    found.assert_outcomes(passed=2)
    found.stdout.fnmatch_lines(["*benchmark 'mlp': 2 tests*", f"{place.fp32.label} *"])
    written = json.loads((place.path / "out.json").read_text(encoding="utf-8"))
    first = next(one for one in written["benchmarks"] if one["name"] == place.fp32.label)
    measured: list[float] = []
    for fp32_record in records(place.fp32):
        steps = fp32_record.ranks[0].step_seconds
        assert steps is not None
        measured += steps.unpack()[5:].tolist()
    assert first["stats"]["data"] == pytest.approx(measured)
    assert first["extra_info"]["cell"] == place.fp32.id
    assert first["extra_info"]["verdicts"]["samples/s"]["verdict"] == "same"
    assert first["extra_info"]["digests"] == [f"{seed:064x}" for seed in SEEDS]
    assert first["extra_info"]["hardware"] == ["Test-CPU-2-cores"]
    assert "same: samples/s" in (place.path / "junit.xml").read_text(encoding="utf-8")


def test_pytest_benchmark_compares_the_files(place: Place) -> None:
    place.both()
    place.pytest("--benchmark-save=one")
    place.record(place.bf16, slower=0.5)
    place.pytest("--benchmark-save=two")
    shown = place.pytester.run(
        sys.executable, "-m", "pytest_benchmark", "compare", "--columns=mean"
    )
    assert shown.ret == 0
    shown.stdout.fnmatch_lines(["*mlp * bf16 * (0002_two)*"])


def test_pytest_benchmark_draws_its_histogram(place: Place) -> None:
    place.both()
    place.pytest("--benchmark-histogram=drawn", apart=True).assert_outcomes(
        passed=2
    )  # it bends sys.meta_path
    drawn = {element.text for element in parse(place.path / "drawn-mlp.svg").iter()}
    assert {place.fp32.label, place.bf16.label} <= drawn


def test_how_far_to_trust_it_is_told(place: Place) -> None:
    place.both()
    found = place.pytest()
    found.assert_outcomes(passed=2)
    assert (
        "harness: A/A certificate of this hardware: none; harness certify measures it"
        in found.outlines
    )


def test_a_cluster_is_refused_where_trials_would_run_here(place: Place) -> None:
    place.both()
    (place.path / "far.yaml").write_text("launcher: slurm\n", encoding="utf-8")
    found = place.pytest("--harness-cluster=far.yaml", "--harness-trials=all")
    assert found.ret != 0
    assert any(
        "--harness-cluster: launcher: found 'slurm'; allowed: torchrun, or " in line
        for line in found.outlines
    )


def test_baselines_of_another_sweep_say_what_they_can_not_tell(place: Place) -> None:
    place.both()
    sweep = place.path / "sweep.yaml"
    sweep.write_text(
        sweep.read_text(encoding="utf-8").replace("name: demo", "name: renamed"), encoding="utf-8"
    )
    words = (
        "no baseline is of a sweep named 'renamed', so cells that were removed from it go unnoticed"
    )
    assert any(words in line for line in place.pytest().outlines)


def test_cells_are_chosen_as_tests_are(place: Place) -> None:
    place.both(slower=0.5)
    place.pytest("-k", "fp32").assert_outcomes(passed=1, deselected=1)


def test_nothing_runs_where_cells_are_only_listed(place: Place) -> None:
    place.save()
    found = place.pytest("--collect-only", "-q", trials=())
    found.stdout.fnmatch_lines([f"sweep.yaml::{place.fp32.label}"])
    assert not place.results.runs.exists()


def test_a_sweep_that_is_at_work_is_refused_in_one_line(place: Place) -> None:
    place.both()
    with lock(place.results.sweep_folder("demo")):
        found = place.pytest(trials=())
    assert found.ret == pytest.ExitCode.USAGE_ERROR
    found.stderr.fnmatch_lines(["ERROR: *is at work on this sweep; wait for it"])


def test_slower_fails_and_says_by_how_much(place: Place) -> None:
    place.both(slower=0.05)
    found = place.pytest()
    found.assert_outcomes(passed=1, failed=1)
    found.stdout.re_match_lines(
        [r"slower: samples/s 6,4\d\d → 6,0\d\d, -4\.\d+% \(.*\), 5 pairs; what matters: 1\.00%"]
    )


def test_faster_and_more_accurate_pass(place: Place) -> None:
    place.both(slower=-0.2, accuracy=0.95)
    place.pytest().assert_outcomes(passed=2)


def test_a_baseline_of_another_schema_stops_everything(place: Place) -> None:
    place.both()
    path = next(place.results.baselines.glob("*/*.json"))
    path.write_text(
        re.sub(r'"schema": \d+', '"schema": 99', path.read_text(encoding="utf-8")),
        encoding="utf-8",
    )
    found = place.pytest()
    assert found.ret == pytest.ExitCode.INTERRUPTED
    found.stdout.fnmatch_lines(["*schema: found 99*"])


@pytest.mark.parametrize("option", ["--benchmark-disable", "--benchmark-skip"])
def test_benchmarks_turned_off_are_no_pass(place: Place, option: str) -> None:
    place.both(slower=0.5)
    found = place.pytest(option)
    assert found.ret == pytest.ExitCode.USAGE_ERROR
    found.stderr.fnmatch_lines([f"*found with {option}*"])


def test_xdist_is_no_pass(place: Place) -> None:
    place.both(slower=0.5)
    found = place.pytester.runpytest_subprocess(
        *PLUGIN, "-n2", "--harness-sweep=sweep.yaml", "--harness-baseline=results/baselines"
    )
    assert found.ret == pytest.ExitCode.USAGE_ERROR
    found.stderr.fnmatch_lines(["*found with pytest-xdist*"])


def test_what_a_worker_of_xdist_starts_is_no_pass(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.both()
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    found = place.pytest()
    assert found.ret == pytest.ExitCode.USAGE_ERROR
    found.stderr.fnmatch_lines(["*found with pytest-xdist*"])


def test_no_record_is_no_pass(place: Place) -> None:
    place.save()
    found = place.pytest()
    found.assert_outcomes(failed=2)
    found.stdout.fnmatch_lines(["not measured: no trial is recorded"])


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"min_efect": "1%"}, "*gate.yaml:1: min_efect: unknown key; did you mean 'min_effect'*"),
        ({"min_effect": "1 percent"}, "*gate.yaml:1: min_effect: found '1 percent'*"),
        ({"cells": {"cnn *": {"bits": "fail"}}}, "*found 'cnn *', which names no cell*"),
        ({"bits": "maybe"}, '*gate.yaml:1: bits: found "maybe"*'),
    ],
    ids=str,
)
def test_a_mistake_in_the_gates_file_is_one_line(
    place: Place, content: dict[str, Any], told: str
) -> None:
    place.both()
    place.gate(**content)
    found = place.pytest()
    assert found.ret == pytest.ExitCode.INTERRUPTED
    found.stdout.fnmatch_lines([told])


def test_a_sweep_without_a_baseline_is_refused(place: Place) -> None:
    found = place.pytester.runpytest_subprocess(
        *PLUGIN, "-p", "no:xdist", "--harness-sweep=sweep.yaml"
    )
    assert found.ret == pytest.ExitCode.USAGE_ERROR


def test_pytest_starts_without_anything_heavy(pytester: pytest.Pytester) -> None:
    heavy = "{'torch', 'mlflow', 'scipy', 'numpy', 'pydantic', 'rich', 'typer'}"
    pytester.makepyfile(f"import sys\ndef test_it():\n    assert not {heavy} & set(sys.modules)")
    pytester.runpytest_subprocess(*PLUGIN).assert_outcomes(passed=1)


def test_no_baseline_at_all_is_no_pass(place: Place) -> None:
    place.record(place.fp32)
    found = place.pytest()
    assert found.ret == pytest.ExitCode.INTERRUPTED
    found.stdout.fnmatch_lines(["*found no baselines; harness baseline save SWEEP makes them"])


@pytest.mark.distributed
def test_trials_run_anew_and_are_held_against_those_before(place: Place) -> None:
    """Which verdict comes out is up to the machine; what must not differ is bits and accuracy."""
    place.spec(["fp32"])
    less = ["--set", "seeds=0,1", "--set", "length.steps=40"]
    assert harness(
        "run", str(place.path / "sweep.yaml"), "--results", str(place.results.path), *less
    ).code in (0, 3)
    baseline.save(
        place.results,
        aggregate(
            [read_record(path) for path in place.results.sweep_folder("demo").record_paths()]
        ),
    )
    place.gate(min_effect="90%", inconclusive="ignore", bits="fail")
    options = [f"--harness-{option.removeprefix('--')}" for option in less[::2]]
    found = place.pytest(
        *(word for pair in zip(options, less[1::2], strict=True) for word in pair), trials=()
    )
    found.assert_outcomes(passed=1)
    replaced = "harness: 2 records in *demo are replaced; to deliver the new ones to MLflow: harness collect demo"
    found.stdout.fnmatch_lines(
        [replaced, "harness: 2 trials to run, 0 already there", "*2/2 mlp eager*"]
    )
