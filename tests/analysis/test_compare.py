"""What may be compared, and what comes out of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.analysis.compare import Comparison, Rules, Side, compare, compare_by
from harness.analysis.questions import throughput_difference
from harness.analysis.result import CellResult, TrialResult
from harness.core.errors import BadInput
from harness.gate.answer import describe_row
from harness.spec.cell import Trial
from harness.statistics.estimate import Drift
from tests.factories import make_cell
from tests.support.results import make_result
from tests.support.sweeps import load

STEADY = [1000.0, 1001.0, 999.0, 1002.0, 998.0]


def side(name: str, *cells: CellResult) -> Side:
    return Side(name=name, cells=cells)


def held(a: CellResult, b: CellResult, *across: str) -> Comparison:
    return compare(side("A", a), [side("B", b)], Rules(across=across))


def faster(by: float) -> list[float]:
    return [speed * by for speed in STEADY]


def words(found: Comparison) -> list[str]:
    return [row.verdict.label for row in found.rows]


@pytest.mark.parametrize(
    ("by", "word", "code"), [(1.1, "faster", 0), (0.9, "slower", 1), (1.0005, "same", 0)], ids=str
)
def test_exit_codes_follow_verdicts(by: float, word: str, code: int) -> None:
    found = held(make_result(STEADY), make_result(faster(by)))
    assert (words(found), found.exit_code) == ([word, "same"], code)


def test_noise_is_inconclusive_and_has_a_code_of_its_own() -> None:
    found = held(make_result([1000.0, 1100.0, 900.0]), make_result([1100.0, 900.0, 1050.0]))
    assert (words(found)[0], found.exit_code) == ("inconclusive", 3)


def test_one_trial_a_side_is_never_a_pass() -> None:
    assert held(make_result([1000.0]), make_result([1000.0])).exit_code == 3


def test_pairs_cancel_what_drifts_while_they_ran_interleaved() -> None:
    drifting = [1000.0, 900.0, 800.0, 700.0]
    found = held(make_result(drifting), make_result([speed * 1.02 for speed in drifting]))
    assert words(found)[0] == "faster"
    assert found.rows[0].verdict.question.estimate.paired
    assert found.notes == []


def test_what_ran_one_side_after_the_other_is_no_pair_and_is_said_so() -> None:
    drifting = [1000.0, 900.0, 800.0, 700.0]
    later = make_result(
        [speed * 1.02 for speed in drifting], started=[1.8e9 + seed for seed in range(4)]
    )
    found = held(make_result(drifting), later)
    assert not found.rows[0].verdict.question.estimate.paired
    assert words(found)[0] == "inconclusive"
    assert "not interleaved" in found.notes[0]
    assert "harness certify" in found.notes[0]


def test_the_machines_drift_between_the_sides_is_no_difference_of_them() -> None:
    apart = make_result(faster(0.97), started=[1.8e9 + seed for seed in range(5)])
    certified = {"Test-CPU-2-cores": Drift(deviation=0.02, degrees_of_freedom=199)}
    assert words(held(make_result(STEADY), apart))[0] == "slower"
    found = compare(side("A", make_result(STEADY)), [side("B", apart)], Rules(drift=certified))
    assert words(found)[0] == "inconclusive"
    assert found.notes == [
        "not interleaved: the interval allows for the 2.9% by which the machine moved between certificates"
    ]
    interleaved = compare(
        side("A", make_result(STEADY)),
        [side("B", make_result(faster(0.97)))],
        Rules(drift=certified),
    )
    assert words(interleaved)[0] == "slower"


def test_intervals_hold_with_a_drift_that_few_comparisons_told() -> None:
    """Both sides take it from the same certificate, so its luck does not average out between them."""
    rng, tries, kind, drift = np.random.default_rng(3), 2000, "Test-CPU-2-cores", 0.056
    held_by = 0
    for _ in range(tries):
        sides = [np.exp(rng.normal(rng.normal(0, drift), 0.02, 3)) for _ in "AB"]
        certified = Drift(
            deviation=float(np.std(rng.normal(0, drift, 3), ddof=1)), degrees_of_freedom=2
        )
        a, b = (
            make_result(list(own), started=[n * 1e6 + seed for seed in range(3)])
            for n, own in enumerate(sides)
        )
        asked = throughput_difference(a, b, 0.01, {kind: certified})
        assert asked is not None
        low, high = asked.question.estimate.interval()
        held_by += low <= 0 <= high
    assert held_by / tries > 0.93


def test_drift_counts_where_it_is_known_of_both_sides() -> None:
    here, there = (
        make_result(STEADY),
        make_result(faster(0.97), conditions={"hardware": ["Other-CPU"]}),
    )
    known = {"Test-CPU-2-cores": Drift(deviation=0.02, degrees_of_freedom=199)}
    rules = [
        Rules(across=["hardware"], drift=known | more)
        for more in ({}, {"Other-CPU": known["Test-CPU-2-cores"]})
    ]
    found = [words(compare(side("A", here), [side("B", there)], one))[0] for one in rules]
    assert found == ["slower", "inconclusive"]


def test_a_gate_says_when_an_interval_is_certain_for_its_cell_alone() -> None:
    """At 2% alone, which among two cells' speeds and accuracies is not certain."""
    changed, unchanged = make_result(STEADY), make_result(STEADY, cell=make_cell(precision="bf16"))
    noisy = [speed * by for speed, by in zip(STEADY, (0.95, 0.98, 0.92, 0.96, 0.99), strict=True)]
    later = (make_result(noisy), make_result(faster(1.001), cell=unchanged.cell))
    rows = compare(side("A", changed, unchanged), [side("B", *later)], Rules()).rows
    told = [describe_row(row) for row in rows if row.verdict.question.metric.name == "samples/s"]
    assert 0.0125 < rows[0].verdict.question.estimate.p_change() < 0.05
    assert told[0].startswith("inconclusive: ")
    assert "certain for this cell alone but not over all of them" in told[0]
    assert "alone" not in told[1]


def test_trials_of_other_hardware_are_no_pairs() -> None:
    other = make_result(faster(2.0), conditions={"hardware": ["Other-CPU"]})
    found = held(make_result(STEADY), other, "hardware")
    assert not found.rows[0].verdict.question.estimate.paired


def test_other_hardware_is_refused_unless_it_is_the_question() -> None:
    here, there = (
        make_result(STEADY),
        make_result(faster(2.0), conditions={"hardware": ["Other-CPU"]}),
    )
    with pytest.raises(
        BadInput, match=r"hardware: Test-CPU-2-cores \(A\), Other-CPU \(B\); .*--across hardware"
    ):
        held(here, there)
    found = held(here, there, "hardware")
    assert words(found)[0] == "faster"
    assert found.differences == ["hardware: Test-CPU-2-cores (A), Other-CPU (B)"]


def test_unknown_hardware_is_not_the_same_as_unknown_hardware() -> None:
    unknown = make_result(STEADY, conditions={"hardware": ["unknown"]})
    with pytest.raises(BadInput, match="other hardware"):
        held(unknown, unknown)


def test_other_code_is_named() -> None:
    found = held(make_result(STEADY), make_result(STEADY, conditions={"code": ["0.1.0 d00d"]}))
    assert found.differences == ["code: 0.1.0 c0ffee (A), 0.1.0 d00d (B)"]


def test_other_cells_are_refused_with_their_differences() -> None:
    bf16 = make_result(faster(1.5), cell=make_cell(precision="bf16", execution="compile"))
    with pytest.raises(BadInput) as refused:
        held(make_result(STEADY), bf16)
    assert "execution: eager and compile; precision: fp32 and bf16" in str(refused.value)
    assert str(refused.value).endswith("--across execution,precision")
    assert words(held(make_result(STEADY), bf16, "execution", "precision"))[0] == "faster"
    with pytest.raises(
        BadInput,
        match=r"nearest differ in precision: fp32 and bf16; .*--across execution,precision",
    ):
        held(make_result(STEADY), bf16, "execution")


def test_other_data_is_refused() -> None:
    cell = make_cell()
    identity = {**cell.workload.identity, "files": "f00d"}
    other = make_result(
        faster(1.001), cell=replace(cell, workload=replace(cell.workload, identity=identity))
    )
    with pytest.raises(BadInput, match="--across data"):
        held(make_result(STEADY), other)
    assert held(make_result(STEADY), other, "data").exit_code == 0


def test_a_word_that_is_no_difference_is_refused() -> None:
    with pytest.raises(BadInput, match="--across: found 'hardwear'; did you mean 'hardware'"):
        held(make_result(STEADY), make_result(STEADY), "hardwear")


def test_a_cell_that_one_side_lacks_is_named_and_no_pass() -> None:
    both = (make_result(STEADY), make_result(STEADY, cell=make_cell(precision="bf16")))
    found = compare(side("A", *both), [side("B", make_result(faster(1.001)))], Rules())
    assert found.missing == [f"{both[1].cell.label}: only in A"]
    assert found.exit_code == 3


def test_trials_against_themselves_are_named_and_no_pass() -> None:
    found = held(make_result(STEADY), make_result(STEADY))
    assert found.missing == [
        f"{make_cell().label}: both sides are the same trials, so there is nothing to compare"
    ]
    assert found.exit_code == 3


def test_a_cell_without_a_measurement_is_named_and_no_pass() -> None:
    failed = make_result([], left_out={"failed": 2})
    found = held(make_result(STEADY), failed)
    assert found.missing == [f"{failed.cell.label}: no measured throughput in B (2 failed)"]
    assert found.exit_code == 3


@pytest.mark.parametrize(
    ("status", "code"), [("failed", 3), ("interrupted", 3), ("unrecorded", 3), ("invalid", 0)]
)
def test_trials_that_are_not_done_are_named(status: str, code: int) -> None:
    found = held(make_result(STEADY), make_result(faster(1.001), left_out={status: 1}))
    assert f"1 {status} trials of B" in " ".join([*found.missing, *found.notes])
    assert found.exit_code == code


def test_cells_that_can_not_be_told_apart_are_refused() -> None:
    both = (make_result(STEADY), make_result(STEADY, cell=make_cell(precision="bf16")))
    with pytest.raises(BadInput, match="alike in all else"):
        compare(side("A", *both), [side("B", *both)], Rules(across=["precision"]))


def test_several_sides_are_one_family() -> None:
    sides = [side(name, make_result(faster(by))) for name, by in (("B", 1.1), ("C", 0.9))]
    found = compare(side("A", make_result(STEADY)), sides, Rules())
    assert [(row.b_side, row.verdict.label) for row in found.rows][::2] == [
        ("B", "faster"),
        ("C", "slower"),
    ]


def on_a_machine_that_gets_slower(order: Sequence[Trial]) -> Comparison:
    """Of two cells that are equally fast, on a machine that loses 20% over these trials."""
    rng = np.random.default_rng(1)
    sides: dict[str, list[TrialResult]] = {}
    for place, trial in enumerate(order):
        speed = 1000 * (1 - 0.2 * place / len(order)) * math.exp(rng.normal(0, 0.001))
        (made,) = make_result([speed], started=[1.7e9 + 10 * place]).trials
        sides.setdefault(trial.cell.axes.precision, []).append(
            replace(made, seed=trial.seed, repeat=trial.repeat)
        )
    a, b = (make_result([], trials=sides[name]) for name in ("fp32", "bf16"))
    return held(a, b)


def test_a_ramp_over_the_sweep_biases_a_sequential_order_and_not_ours(tmp_path: Path) -> None:
    sweep = load(tmp_path, matrix={"precision": ["fp32", "bf16"]}, seeds=list(range(10)))
    ours = on_a_machine_that_gets_slower(sweep.trials()).rows[0].verdict
    assert ours.outcome != "worse"
    assert abs(ours.question.estimate.value) < 0.005
    assert ours.question.estimate.paired
    cell_by_cell = sorted(sweep.trials(), key=lambda trial: trial.cell.axes.precision, reverse=True)
    assert on_a_machine_that_gets_slower(cell_by_cell).rows[0].verdict.outcome == "worse"


class TestBy:
    CELLS = tuple(
        make_result(
            faster(1.3 if precision == "bf16" else 1.0),
            cell=make_cell(precision=precision, execution=execution),
        )
        for precision in ("fp32", "bf16")
        for execution in ("eager", "compile")
    )

    def test_values_of_an_axis_at_otherwise_equal_cells(self) -> None:
        found = compare_by(side("S", *self.CELLS), ["precision"], Rules())
        axes = [(row.a.cell.axes, row.b.cell.axes) for row in found.rows[::2]]
        assert [(a.precision, b.precision, a.execution == b.execution) for a, b in axes] == [
            ("fp32", "bf16", True)
        ] * 2
        assert words(found)[::2] == ["faster", "faster"]

    def test_an_axis_that_does_not_vary(self) -> None:
        with pytest.raises(BadInput, match=r"--by strategy: .*; allowed: execution or precision$"):
            compare_by(side("S", *self.CELLS), ["strategy"], Rules())

    def test_no_axis(self) -> None:
        with pytest.raises(BadInput, match="--by: found 'precison'; did you mean 'precision'"):
            compare_by(side("S", *self.CELLS), ["precison"], Rules())


class TestAccuracy:
    LOW, HIGH = (0.90, 0.91, 0.905, 0.902, 0.908), (0.93, 0.94, 0.936, 0.931, 0.937)

    def found(self, a: tuple[float, ...], b: tuple[float, ...], bits: str = "x") -> Comparison:
        return held(make_result(STEADY, metrics=a), make_result(STEADY, metrics=b, bits=bits))

    def test_less_accurate_fails_even_if_as_fast(self) -> None:
        found = self.found(self.HIGH, self.LOW)
        assert (words(found), found.exit_code) == (["same", "worse accuracy"], 1)

    def test_pairs_by_seed_show_that_it_is_the_same(self) -> None:
        assert words(self.found(self.LOW, tuple(value + 0.001 for value in self.LOW)))[1] == "same"

    def test_seeds_that_moved_by_the_same_step_are_not_certain(self) -> None:
        """Of 100 samples, one more is wrong with each of two seeds."""
        a, b = (
            make_result(STEADY[:2], metrics=metrics, bits=bits)
            for metrics, bits in (((0.95, 0.94), ""), ((0.93, 0.92), "x"))
        )
        assert words(held(a, b))[1] == "inconclusive"

    def test_few_seeds_show_nothing(self) -> None:
        found = held(
            make_result(STEADY[:1], metrics=[0.9]), make_result(STEADY[:1], metrics=[0.9], bits="x")
        )
        assert words(found)[1] == "inconclusive"

    def test_repeats_of_a_seed_are_no_seeds(self) -> None:
        a, b = (make_result(STEADY, metrics=self.LOW, bits=bits) for bits in ("", "x"))
        a, b = (
            replace(
                one, trials=[replace(trial, seed=0, repeat=n) for n, trial in enumerate(one.trials)]
            )
            for one in (a, b)
        )
        estimate = held(a, b).rows[1].verdict.question.estimate
        assert (estimate.count, estimate.standard_error) == (1, None)

    def test_the_same_bits_have_the_same_accuracy_however_few(self) -> None:
        found = held(make_result(STEADY[:1]), make_result(STEADY[:1]))
        assert words(found)[1] == "same"
        assert (found.matches[0].same_bits, found.matches[0].pairs) == (1, 1)
