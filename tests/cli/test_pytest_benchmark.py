"""What `pytest-benchmark --benchmark-compare-fail` misses and our gate finds, on the same steps in
the same folder.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from harness.core.paths import write_atomically
from tests.support.benchmarks import OTHER_MACHINE, BenchmarkProject
from tests.support.commands import harness

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.usefixtures("libraries_loaded_once")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder for what `before` makes at its first use, and copies at each other one."""
    return tmp_path_factory.mktemp("before") / "saved"


@pytest.fixture
def before(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, saved: Path
) -> BenchmarkProject:
    """Return a project with baselines, and with what pytest-benchmark saved of the same steps."""
    project = BenchmarkProject(pytester, monkeypatch)
    if saved.exists():
        shutil.copytree(saved, project.path, dirs_exist_ok=True)
    else:
        project.save_and_record()
        project.pytest("--benchmark-save=before")
        shutil.copytree(project.path, saved)
    return project


def verdict_of_pytest_benchmark(project: BenchmarkProject, limit: str) -> str:
    """Return the verdict of pytest-benchmark's own gate: passed, regressed, or no such limit."""
    run = project.pytest("--benchmark-compare=0001", f"--benchmark-compare-fail={limit}")
    if "Could not parse value" in run.stderr.str():
        return "no such limit"
    return (
        "regressed"
        if "Performance has regressed" in run.stdout.str() + run.stderr.str()
        else "passed"
    )


def test_pytest_benchmark_finds_a_large_slowdown(before: BenchmarkProject) -> None:
    """Without this, the other tests of this module would prove nothing."""
    before.record(before.bf16, slower=0.5)
    assert verdict_of_pytest_benchmark(before, "mean:5%") == "regressed"


def test_noise_is_a_regression_for_pytest_benchmark_and_inconclusive_for_us(
    before: BenchmarkProject,
) -> None:
    """The means differ by 3%, single trials by 15% either way."""
    before.record(before.bf16, slower=[0.15, -0.15, 0.15, -0.15, 0.15])
    assert verdict_of_pytest_benchmark(before, "mean:2%") == "regressed"
    run = before.pytest()
    run.assert_outcomes(passed=2, warnings=1)
    run.stdout.fnmatch_lines(["*GateWarning: mlp * bf16 *: inconclusive: samples/s*"])
    before.write_gate(inconclusive="fail")
    before.pytest().assert_outcomes(passed=1, failed=1)


def test_limits_below_one_percent_work(before: BenchmarkProject) -> None:
    before.record(before.bf16, slower=0.006)
    assert verdict_of_pytest_benchmark(before, "mean:0.3%") == "no such limit"
    before.pytest().assert_outcomes(passed=2)
    before.write_gate(min_effect="0.3%")
    before.pytest().assert_outcomes(passed=1, failed=1)


def test_a_cell_may_have_its_own_limit(before: BenchmarkProject) -> None:
    """pytest-benchmark has one limit for all benchmarks."""
    before.record(before.bf16, slower=0.05)
    assert verdict_of_pytest_benchmark(before, "mean:2%") == "regressed"
    before.pytest().assert_outcomes(passed=1, failed=1)
    before.write_gate(cells={"mlp * bf16 *": {"min_effect": "10%"}})
    before.pytest().assert_outcomes(passed=2)


def test_higher_throughput_passes_and_lower_accuracy_fails(before: BenchmarkProject) -> None:
    """pytest-benchmark compares seconds only, neither rates nor accuracy."""
    assert verdict_of_pytest_benchmark(before, "ops:5%") == "no such limit"
    before.record(before.bf16, slower=-0.2, accuracy=0.95)
    before.pytest().assert_outcomes(passed=2)
    before.record(before.bf16, accuracy=0.85)
    assert verdict_of_pytest_benchmark(before, "mean:2%") == "passed"
    run = before.pytest()
    run.assert_outcomes(passed=1, failed=1)
    run.stdout.fnmatch_lines(["worse accuracy: accuracy 0.9020 → 0.8520*"])


def test_a_cell_without_a_baseline_fails(before: BenchmarkProject) -> None:
    (saved,) = before.path.rglob("0001_before.json")
    content = json.loads(saved.read_text(encoding="utf-8"))
    content["benchmarks"] = [
        benchmark for benchmark in content["benchmarks"] if benchmark["name"] != before.bf16.label
    ]
    write_atomically(saved, json.dumps(content))
    next(before.results.baselines.glob(f"*/{before.bf16.settings_id}.json")).unlink()
    before.record(before.bf16, slower=0.5)
    assert verdict_of_pytest_benchmark(before, "mean:5%") == "passed"
    run = before.pytest()
    run.assert_outcomes(passed=1, failed=1)
    run.stdout.fnmatch_lines(["no baseline of this cell*"])
    before.write_gate(missing="warn")
    before.pytest().assert_outcomes(passed=2, warnings=1)


def test_a_cell_that_was_removed_from_the_sweep_fails(before: BenchmarkProject) -> None:
    before.write_sweep(["fp32"])
    assert verdict_of_pytest_benchmark(before, "mean:5%") == "passed"
    run = before.pytest("--benchmark-only")
    run.assert_outcomes(passed=1, failed=1)
    run.stdout.fnmatch_lines(["mlp * bf16 *: in the baseline and not in the sweep*"])


def test_a_missing_trial_fails(before: BenchmarkProject) -> None:
    before.results.sweep_folder("demo").trial_folder(f"{before.bf16.id}-s4-r0").record_path.unlink()
    assert verdict_of_pytest_benchmark(before, "mean:5%") == "passed"
    run = before.pytest()
    run.assert_outcomes(passed=1, failed=1)
    run.stdout.fnmatch_lines(["1 of 5 trials have no record"])


def test_a_baseline_of_another_machine_fails_unless_compared_across_hardware(
    before: BenchmarkProject,
) -> None:
    (saved,) = before.path.rglob("0001_before.json")
    content = json.loads(saved.read_text(encoding="utf-8"))
    content["machine_info"]["node"] = "another"
    write_atomically(saved, json.dumps(content))
    with pytest.warns(Warning, match="machine_info is different"):
        assert verdict_of_pytest_benchmark(before, "mean:5%") == "passed"
    for cell in (before.fp32, before.bf16):
        before.record(cell, environment=OTHER_MACHINE)
    run = before.pytest()
    run.assert_outcomes(failed=2)
    run.stdout.fnmatch_lines(
        ["*other hardware: hardware: Test-CPU-2-cores (baseline), Other-CPU-2-cores (run)*"]
    )
    before.write_gate(across=["hardware"])
    before.pytest().assert_outcomes(passed=2)


def test_different_final_parameters_fail_where_bits_matter(before: BenchmarkProject) -> None:
    before.record(before.bf16, bits="f")
    assert verdict_of_pytest_benchmark(before, "mean:5%") == "passed"
    before.pytest().assert_outcomes(passed=2)
    before.write_gate(cells={before.bf16.id: {"bits": "fail"}})
    run = before.pytest()
    run.assert_outcomes(passed=1, failed=1)
    run.stdout.fnmatch_lines(["other bits: 0 of 5 pairs end alike"])


def test_harness_compare_has_an_exit_code(
    before: BenchmarkProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pytest-benchmark compare` ends with 0 whatever the files hold."""
    monkeypatch.chdir(before.path)
    before.record(before.bf16, slower=0.5)
    before.pytest("--benchmark-save=after")
    assert before.pytester.run(sys.executable, "-m", "pytest_benchmark", "compare").ret == 0
    assert harness("compare", "baseline", str(before.results.runs / "demo")).code == 1
