"""Each hole of pytest-benchmark's own gate, beside ours: both judge the same steps in the same folder."""

from __future__ import annotations

import json
import sys

import pytest

from harness.core.paths import write_atomically
from tests.support.benchmarks import OTHER_MACHINE, Place
from tests.support.commands import harness

pytest_plugins = ["pytester"]


@pytest.fixture
def before(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Place:
    """With baselines, and what pytest-benchmark saved of the same steps."""
    place = Place(pytester, monkeypatch)
    place.both()
    place.pytest("--benchmark-save=before")
    return place


def theirs(place: Place, limit: str) -> str:
    """What pytest-benchmark's own gate says in the end: passed, regressed, or that it doesn't take such a limit."""
    found = place.pytest("--benchmark-compare=0001", f"--benchmark-compare-fail={limit}")
    if "Could not parse value" in found.stderr.str():
        return "no such limit"
    return (
        "regressed"
        if "Performance has regressed" in found.stdout.str() + found.stderr.str()
        else "passed"
    )


def test_theirs_finds_what_is_plain(before: Place) -> None:
    """Or else the others here would show nothing."""
    before.record(before.bf16, slower=0.5)
    assert theirs(before, "mean:5%") == "regressed"


def test_one_scalar_takes_noise_for_a_slowdown(before: Place) -> None:
    """The means are 3% apart, the trials 15% either way."""
    before.record(before.bf16, slower=[0.15, -0.15, 0.15, -0.15, 0.15])
    assert theirs(before, "mean:2%") == "regressed"
    found = before.pytest()
    found.assert_outcomes(passed=2, warnings=1)
    found.stdout.fnmatch_lines(["*GateWarning: mlp * bf16 *: inconclusive: samples/s*"])
    before.gate(inconclusive="fail")
    before.pytest().assert_outcomes(passed=1, failed=1)


def test_a_fraction_of_a_percent(before: Place) -> None:
    before.record(before.bf16, slower=0.006)
    assert theirs(before, "mean:0.3%") == "no such limit"
    before.pytest().assert_outcomes(passed=2)
    before.gate(min_effect="0.3%")
    before.pytest().assert_outcomes(passed=1, failed=1)


def test_a_limit_of_its_own_for_a_cell(before: Place) -> None:
    """Theirs is one for all; which of them it was meant for can't be said."""
    before.record(before.bf16, slower=0.05)
    assert theirs(before, "mean:2%") == "regressed"
    before.pytest().assert_outcomes(passed=1, failed=1)
    before.gate(cells={"mlp * bf16 *": {"min_effect": "10%"}})
    before.pytest().assert_outcomes(passed=2)


def test_more_of_what_should_be_high_passes_and_less_fails(before: Place) -> None:
    """Theirs knows seconds only: no limit on a rate, and none on what was learned."""
    assert theirs(before, "ops:5%") == "no such limit"
    before.record(before.bf16, slower=-0.2, accuracy=0.95)
    before.pytest().assert_outcomes(passed=2)
    before.record(before.bf16, accuracy=0.85)
    assert theirs(before, "mean:2%") == "passed"
    found = before.pytest()
    found.assert_outcomes(passed=1, failed=1)
    found.stdout.fnmatch_lines(["worse accuracy: accuracy 0.9020 → 0.8520*"])


def test_a_cell_that_the_baseline_lacks_fails(before: Place) -> None:
    (saved,) = before.path.rglob("0001_before.json")
    content = json.loads(saved.read_text(encoding="utf-8"))
    content["benchmarks"] = [
        one for one in content["benchmarks"] if one["name"] != before.bf16.label
    ]
    write_atomically(saved, json.dumps(content))
    next(before.results.baselines.glob(f"*/{before.bf16.id}.json")).unlink()
    before.record(before.bf16, slower=0.5)
    assert theirs(before, "mean:5%") == "passed"
    found = before.pytest()
    found.assert_outcomes(passed=1, failed=1)
    found.stdout.fnmatch_lines(["no baseline of this cell*"])
    before.gate(missing="warn")
    before.pytest().assert_outcomes(passed=2, warnings=1)


def test_a_cell_that_the_run_lacks_fails(before: Place) -> None:
    before.spec(["fp32"])
    assert theirs(before, "mean:5%") == "passed"
    found = before.pytest("--benchmark-only")
    found.assert_outcomes(passed=1, failed=1)
    found.stdout.fnmatch_lines(["mlp * bf16 *: in the baseline and not in the sweep*"])


def test_trials_that_the_run_lacks_fail(before: Place) -> None:
    before.results.sweep_folder("demo").trial_folder(f"{before.bf16.id}-s4-r0").record_path.unlink()
    assert theirs(before, "mean:5%") == "passed"
    found = before.pytest()
    found.assert_outcomes(passed=1, failed=1)
    found.stdout.fnmatch_lines(["1 of 5 trials have no record"])


def test_another_machines_baseline_fails_unless_it_is_the_question(before: Place) -> None:
    (saved,) = before.path.rglob("0001_before.json")
    content = json.loads(saved.read_text(encoding="utf-8"))
    content["machine_info"]["node"] = "another"
    write_atomically(saved, json.dumps(content))
    with pytest.warns(Warning, match="machine_info is different"):
        assert theirs(before, "mean:5%") == "passed"
    for cell in (before.fp32, before.bf16):
        before.record(cell, environment=OTHER_MACHINE)
    found = before.pytest()
    found.assert_outcomes(failed=2)
    found.stdout.fnmatch_lines(
        ["*other hardware: hardware: Test-CPU-2-cores (baseline), Other-CPU-2-cores (run)*"]
    )
    before.gate(across=["hardware"])
    before.pytest().assert_outcomes(passed=2)


def test_other_bits_fail_where_they_matter(before: Place) -> None:
    before.record(before.bf16, bits="f")
    assert theirs(before, "mean:5%") == "passed"
    before.pytest().assert_outcomes(passed=2)
    before.gate(cells={before.bf16.id: {"bits": "fail"}})
    found = before.pytest()
    found.assert_outcomes(passed=1, failed=1)
    found.stdout.fnmatch_lines(["other bits: 0 of 5 pairs end alike"])


def test_comparing_outside_of_pytest_can_fail(
    before: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Theirs shows the files side by side and ends with 0 whatever they hold."""
    monkeypatch.chdir(before.path)
    before.record(before.bf16, slower=0.5)
    before.pytest("--benchmark-save=after")
    assert before.pytester.run(sys.executable, "-m", "pytest_benchmark", "compare").ret == 0
    assert harness("compare", "baseline", str(before.results.runs / "demo")).code == 1
