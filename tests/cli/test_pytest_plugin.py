"""pytest as a gate: every cell of a sweep is a benchmark, and its verdict decides its test."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from harness.analysis import baseline
from harness.analysis.result import aggregate
from harness.records.files import read_record
from harness.records.store import lock, read_recorded_spec
from tests.support.benchmarks import OTHER_MACHINE, PLUGIN, SEEDS, BenchmarkProject, records
from tests.support.commands import harness

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.usefixtures("libraries_loaded_once")


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> BenchmarkProject:
    return BenchmarkProject(pytester, monkeypatch)


def test_a_cell_is_a_benchmark_in_table_and_json(project: BenchmarkProject) -> None:
    project.save_and_record()
    run = project.pytest("--benchmark-json=out.json", "--junitxml=junit.xml")
    run.assert_outcomes(passed=2)
    run.stdout.fnmatch_lines(["*benchmark 'mlp': 2 tests*", f"{project.fp32.label} *"])
    written = json.loads((project.path / "out.json").read_text(encoding="utf-8"))
    benchmarks = {benchmark["name"]: benchmark for benchmark in written["benchmarks"]}
    fp32 = benchmarks[project.fp32.label]
    measured: list[float] = []
    for record in records(project.fp32):
        steps = record.ranks[0].step_seconds
        assert steps is not None
        measured += steps[5:].tolist()
    assert fp32["stats"]["data"] == pytest.approx(measured)
    info = fp32["extra_info"]
    assert (info["cell"], info["hardware"]) == (project.fp32.id, ["Test-CPU-2-cores"])
    assert info["verdicts"]["samples/s"]["verdict"] == "same"
    assert info["digests"] == [f"{seed:064x}" for seed in SEEDS]
    assert "same: samples/s" in (project.path / "junit.xml").read_text(encoding="utf-8")


def test_a_sweep_in_a_folder_above_is_found(
    project: BenchmarkProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.save_and_record()
    (project.path / "tests").mkdir()
    monkeypatch.chdir(project.path / "tests")
    folders = ["--harness-baseline=../results/baselines", "--harness-results=../results"]
    project.pytest("--harness-sweep=../sweep.yaml", *folders).assert_outcomes(passed=2)


def test_a_slurm_profile_is_refused_unless_trials_are_recorded(project: BenchmarkProject) -> None:
    project.save_and_record()
    (project.path / "far.yaml").write_text("launcher: slurm\n", encoding="utf-8")
    run = project.pytest("--harness-cluster=far.yaml", "--harness-trials=all")
    assert run.ret != 0
    run.stdout.fnmatch_lines(["*--cluster far.yaml: launcher: found 'slurm'; allowed: torchrun*"])


def test_baselines_of_another_sweep_warn_that_lost_cells_go_unnoticed(
    project: BenchmarkProject,
) -> None:
    project.save_and_record()
    sweep = project.path / "sweep.yaml"
    text = sweep.read_text(encoding="utf-8")
    sweep.write_text(text.replace("name: demo", "name: renamed"), encoding="utf-8")
    output = project.pytest().stdout.str()
    assert "no baseline is of a sweep named 'renamed', so cells" in output


def test_a_package_of_the_projects_that_is_called_like_ours_is_named(
    project: BenchmarkProject,
) -> None:
    project.save_and_record()
    (project.path / "workloads").mkdir()
    (project.path / "workloads" / "__init__.py").touch()
    (project.path / "conftest.py").write_text("import workloads\n", encoding="utf-8")
    run = project.pytest(in_subprocess=True)
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines(
        [f"ERROR: --harness-sweep found the package 'workloads' of {project.path}/workloads imp*"]
    )


def test_the_sweep_keeps_the_cells_that_are_not_selected(project: BenchmarkProject) -> None:
    project.save_and_record()
    run = project.pytest("-k", "fp32", trials=["--harness-trials=missing"])
    run.assert_outcomes(passed=1, deselected=1)
    written = read_recorded_spec(project.results, "demo")
    assert [cell.id for cell in written.cells] == [project.fp32.id, project.bf16.id]


def test_collecting_only_runs_no_trial(project: BenchmarkProject) -> None:
    project.save_baselines()
    run = project.pytest("--collect-only", "-q", trials=())
    run.stdout.fnmatch_lines([f"sweep.yaml::{project.fp32.label}"])
    assert not project.results.runs.exists()


def test_a_sweep_that_runs_in_another_process_is_refused_in_one_line(
    project: BenchmarkProject,
) -> None:
    project.save_and_record()
    with lock(project.results.sweep_folder("demo")):
        run = project.pytest(trials=())
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines(["ERROR: *is running this sweep; wait until it ends"])


def test_a_slower_cell_fails_and_says_by_how_much(project: BenchmarkProject) -> None:
    project.save_and_record(slower=0.05)
    run = project.pytest()
    run.assert_outcomes(passed=1, failed=1)
    run.stdout.re_match_lines(
        [r"slower: samples/s 6,4\d\d → 6,0\d\d, -4\.\d+% \(.*\), 3 sessions; what matters: 1\.00%"]
    )


def regresses_for_pytest_benchmark(project: BenchmarkProject, limit: str) -> bool:
    """Return whether pytest-benchmark's own gate finds a regression against what was saved."""
    run = project.pytest("--benchmark-compare=0001", f"--benchmark-compare-fail={limit}")
    return "Performance has regressed" in run.stdout.str() + run.stderr.str()


def test_noise_is_a_regression_for_pytest_benchmark_and_inconclusive_for_us(
    project: BenchmarkProject,
) -> None:
    """The means differ by 3%, single trials by 15% either way."""
    project.save_and_record()
    project.pytest("--benchmark-save=before")
    project.record(project.bf16, slower=[0.15, -0.15, 0.15, -0.15, 0.15])
    assert regresses_for_pytest_benchmark(project, "mean:2%")
    run = project.pytest()
    run.assert_outcomes(passed=2, warnings=1)
    run.stdout.fnmatch_lines(["*GateWarning: mlp * bf16 *: inconclusive: samples/s*"])
    project.write_gate(inconclusive="fail")
    project.pytest().assert_outcomes(passed=1, failed=1)


@pytest.mark.parametrize(
    ("changes", "gate", "failed"),
    [
        ({"slower": 0.006}, {}, 0),
        ({"slower": 0.006}, {"min_effect": "0.3%"}, 1),
        ({"slower": 0.05}, {"cells": {"mlp * bf16 *": {"min_effect": "10%"}}}, 0),
        ({"slower": -0.2, "accuracy": 0.95}, {}, 0),
        ({"bits": "f"}, {}, 0),
        ({"environment": OTHER_MACHINE}, {}, 1),
        ({"environment": OTHER_MACHINE}, {"across": ["hardware"]}, 0),
    ],
)
def test_limits_are_those_of_the_gate(
    project: BenchmarkProject, changes: dict[str, Any], gate: dict[str, Any], failed: int
) -> None:
    project.write_sweep(["bf16"])
    project.save_baselines()
    project.record(project.bf16, **changes)
    project.write_gate(missing="ignore", **gate)
    project.pytest("-k", "bf16").assert_outcomes(passed=1 - failed, failed=failed, deselected=1)


def test_what_fails_says_why(project: BenchmarkProject) -> None:
    project.save_and_record(accuracy=0.85, bits="f")
    project.write_gate(cells={project.bf16.id: {"bits": "fail"}})
    run = project.pytest()
    run.assert_outcomes(passed=1, failed=1)
    run.stdout.fnmatch_lines(
        ["worse accuracy: accuracy 0.9020 → 0.8520*", "other bits: 0 of 5 pairs end alike"]
    )
    project.record(project.bf16)
    last = project.results.sweep_folder("demo").trial_folder(f"{project.bf16.id}-s4-r0")
    last.record_path.unlink()
    run = project.pytest()
    run.assert_outcomes(passed=1, failed=1)
    run.stdout.fnmatch_lines(["1 of 5 trials have no record"])


def test_a_cell_without_a_baseline_fails(project: BenchmarkProject) -> None:
    project.save_and_record()
    next(project.results.baselines.glob(f"*/{project.bf16.settings_id}.json")).unlink()
    run = project.pytest()
    run.assert_outcomes(passed=1, failed=1)
    run.stdout.fnmatch_lines(["no baseline of this cell*"])
    project.write_gate(missing="warn")
    project.pytest().assert_outcomes(passed=2, warnings=1)


def test_a_cell_that_was_removed_from_the_sweep_fails(project: BenchmarkProject) -> None:
    project.save_and_record()
    project.write_sweep(["fp32"])
    run = project.pytest("--benchmark-only")
    run.assert_outcomes(passed=1, failed=1)
    run.stdout.fnmatch_lines(["mlp * bf16 *: in the baseline and not in the sweep*"])


def test_a_baseline_of_another_schema_interrupts_the_session(project: BenchmarkProject) -> None:
    project.save_and_record()
    path = next(project.results.baselines.glob("*/*.json"))
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r'"schema": "?[\d.]+"?', '"schema": "99.0"', text), encoding="utf-8")
    run = project.pytest()
    assert run.ret == pytest.ExitCode.INTERRUPTED
    run.stdout.fnmatch_lines(["*schema: found *99.0*"])


@pytest.mark.parametrize("option", ["--benchmark-disable", "--benchmark-skip"])
def test_an_option_that_turns_benchmarks_off_is_refused(
    project: BenchmarkProject, option: str
) -> None:
    project.save_and_record(slower=0.5)
    run = project.pytest(option)
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines([f"*found with {option}*"])


def test_xdist_and_a_sweep_without_a_baseline_are_refused(project: BenchmarkProject) -> None:
    project.save_and_record(slower=0.5)
    sweep = [*PLUGIN, "--harness-sweep=sweep.yaml"]
    baselines = "--harness-baseline=results/baselines"
    run = project.pytester.runpytest_subprocess(*sweep, "-n2", baselines)
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines(["*found with pytest-xdist*"])
    run = project.pytester.runpytest_subprocess(*sweep, "-p", "no:xdist")
    assert run.ret == pytest.ExitCode.USAGE_ERROR


def test_a_cell_without_records_fails(project: BenchmarkProject) -> None:
    project.save_baselines()
    run = project.pytest()
    run.assert_outcomes(failed=2)
    run.stdout.fnmatch_lines(["not measured: no trial is recorded"])


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ({"min_efect": "1%"}, "*gate.yaml:1: min_efect: unknown key; did you mean 'min_effect'*"),
        ({"cells": {"cnn *": {"bits": "fail"}}}, "*found 'cnn *', which names no cell*"),
        ({"bits": "maybe"}, '*gate.yaml:1: bits: found "maybe"*'),
    ],
    ids=str,
)
def test_a_mistake_in_gate_yaml_is_one_line(
    project: BenchmarkProject, content: dict[str, Any], error: str
) -> None:
    project.save_and_record()
    project.write_gate(**content)
    run = project.pytest()
    assert run.ret == pytest.ExitCode.INTERRUPTED
    run.stdout.fnmatch_lines([error])


def test_pytest_starts_without_anything_heavy(pytester: pytest.Pytester) -> None:
    heavy = "{'torch', 'mlflow', 'scipy', 'numpy', 'pydantic', 'rich', 'typer'}"
    pytester.makepyfile(f"import sys\ndef test_it():\n    assert not {heavy} & set(sys.modules)")
    pytester.runpytest_subprocess(*PLUGIN).assert_outcomes(passed=1)


def test_a_folder_without_baselines_interrupts_the_session(project: BenchmarkProject) -> None:
    project.record(project.fp32)
    run = project.pytest()
    assert run.ret == pytest.ExitCode.INTERRUPTED
    run.stdout.fnmatch_lines(["*found no baselines; harness baseline SWEEP makes them"])


@pytest.mark.nightly
@pytest.mark.distributed
def test_trials_run_again_and_are_compared_with_the_baseline(project: BenchmarkProject) -> None:
    """The speed of this machine may vary, so the gate lets it pass; bits and accuracy are the same."""
    project.write_sweep(["fp32"])
    results, less = project.results, ["seeds=0,1", "length.steps=40"]
    command = ["run", str(project.path / "sweep.yaml"), "--results", str(results.path)]
    assert harness(*command, *(f"--set={change}" for change in less)).code in (0, 3)
    records = [read_record(path) for path in results.sweep_folder("demo").record_paths()]
    baseline.save(results, aggregate(records))
    project.write_gate(min_effect="90%", inconclusive="ignore", bits="fail")
    run = project.pytest(*(f"--harness-set={change}" for change in less), trials=())
    run.assert_outcomes(passed=1)
    run.stdout.fnmatch_lines(["demo: 2 trials of 1 cell*", "*2/2 mlp eager*"])
