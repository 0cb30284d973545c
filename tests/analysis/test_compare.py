"""Which cells may be compared, and the verdicts on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.analysis.compare import CellComparison, Rules, Side, compare, compare_by
from harness.analysis.questions import same_bits, throughput_question
from harness.analysis.result import CellResult, TrialRow, cell_result
from harness.analysis.sweep_result import attributions
from harness.core.errors import BadInput
from harness.gate.answer import describe_verdict
from harness.records.numbers import RATES
from harness.sweep.cell import Trial
from tests.factories import make_cell, make_record
from tests.support.results import make_result
from tests.support.sweeps import load

STEADY = [1000.0, 1001.0, 999.0, 1002.0, 998.0]


def side(name: str, *cells: CellResult) -> Side:
    return Side(name=name, cells=cells)


def compare_cells(a: CellResult, b: CellResult, *across: str) -> CellComparison:
    return compare(side("A", a), [side("B", b)], Rules(across=across))


def faster(by: float) -> list[float]:
    return [speed * by for speed in STEADY]


def labels(comparison: CellComparison) -> list[str]:
    return [verdict.label for verdict in comparison.verdicts]


@pytest.mark.parametrize(
    ("by", "label", "code"), [(1.1, "faster", 0), (0.9, "slower", 1), (1.0005, "same", 0)], ids=str
)
def test_exit_codes_follow_verdicts(by: float, label: str, code: int) -> None:
    comparison = compare_cells(make_result(STEADY), make_result(faster(by)))
    assert (labels(comparison), comparison.exit_code) == ([label, "same"], code)
    noisy = make_result([1000.0, 1100.0, 900.0]), make_result([1100.0, 900.0, 1050.0])
    comparison = compare_cells(*noisy)
    assert (labels(comparison)[0], comparison.exit_code) == ("inconclusive", 3)


DRIFTING = [1000.0, 900.0, 800.0, 700.0]


def test_interleaved_pairs_cancel_drift() -> None:
    faster_pairs = make_result([speed * 1.02 for speed in DRIFTING])
    comparison = compare_cells(make_result(DRIFTING), faster_pairs)
    assert labels(comparison)[0] == "faster"
    assert comparison.verdicts[0].estimate.paired
    assert comparison.notes == []


def test_means_are_those_of_the_pairs() -> None:
    """A seed that one side lacks is in neither mean."""
    fast = make_result([1000.0, 1000.0, 1000.0, 1000.0, 500.0])
    (row,) = compare_cells(fast, make_result([950.0] * 4)).verdicts[:1]
    assert row.mean_a == pytest.approx(1000)
    assert row.mean_b == pytest.approx(950)
    assert row.effect == pytest.approx(0.95)


def test_sides_that_ran_one_after_the_other_are_unpaired_and_noted() -> None:
    started = [1.8e9 + seed for seed in range(4)]
    later = make_result([speed * 1.02 for speed in DRIFTING], started=started)
    comparison = compare_cells(make_result(DRIFTING), later)
    assert not comparison.verdicts[0].estimate.paired
    assert labels(comparison)[0] == "inconclusive"
    assert "not interleaved" in comparison.notes[0]


def on_nodes(result: CellResult, *nodes: str) -> CellResult:
    """The result with a trial on each of these nodes."""
    pairs = zip(result.trials, nodes, strict=True)
    return replace(result, trials=[replace(trial, hosts=(node,)) for trial, node in pairs])


@pytest.mark.parametrize(
    ("nodes_a", "starts_a", "nodes_b", "starts_b", "is_paired"),
    [
        pytest.param("pqrst", [0, 21, 2, 23, 4], "pqrst", [20, 1, 22, 3, 24], True, id="blocks at once"),
        pytest.param("pqpq", [0, 1, 30, 31], "pqpq", [10, 11, 20, 21], True, id="two jobs of two blocks"),
        pytest.param("pqpq", [0, 1, 10, 11], "pqpq", [20, 21, 30, 31], False, id="cell after cell there"),
        pytest.param("pqrst", [0, 1, 2, 3, 4], "pqrst", [20, 21, 22, 23, 24], False, id="cell after cell"),
        pytest.param("ppp", [0, 30, 60], "qqq", [1, 31, 61], False, id="sweeps at once on two nodes"),
    ],
)  # fmt: skip
def test_pairs_ran_in_turn_on_the_same_nodes(
    nodes_a: str, starts_a: list[float], nodes_b: str, starts_b: list[float], is_paired: bool
) -> None:
    sides = []
    for nodes, starts in ((nodes_a, starts_a), (nodes_b, starts_b)):
        result = make_result([1000.0] * len(nodes), started=[1.7e9 + start for start in starts])
        sides.append(on_nodes(result, *nodes))
    assert compare_cells(sides[0], sides[1]).verdicts[0].estimate.paired is is_paired


def test_sweeps_at_once_are_no_pairs_where_their_nodes_are_unknown() -> None:
    a, b = make_result(STEADY), make_result(faster(0.98))
    other_sweep = replace(b, trials=[replace(trial, sweep="other") for trial in b.trials])
    assert compare_cells(a, b).verdicts[0].estimate.paired
    assert not compare_cells(a, other_sweep).verdicts[0].estimate.paired


def test_cells_of_other_sizes_are_pairs_if_one_has_the_nodes_of_the_other() -> None:
    a, b = make_result(STEADY), make_result(faster(1.02))
    larger = replace(b, trials=[replace(trial, hosts=("p", "q")) for trial in b.trials])
    row = compare_cells(on_nodes(a, *"ppppp"), larger).verdicts[0]
    assert row.estimate.paired
    elsewhere = replace(a, trials=[replace(trial, hosts=("q", "r")) for trial in a.trials])
    assert not compare_cells(elsewhere, larger).verdicts[0].estimate.paired


def test_a_gate_notes_an_interval_that_is_certain_for_its_own_cell_only() -> None:
    """At 2% alone, which among two cells' speeds and accuracies is not certain."""
    changed, unchanged = make_result(STEADY), make_result(STEADY, cell=make_cell(precision="bf16"))
    noisy = [speed * by for speed, by in zip(STEADY, (0.95, 0.98, 0.92, 0.96, 0.99), strict=True)]
    later = (make_result(noisy), make_result(faster(1.001), cell=unchanged.cell))
    rows = compare(side("A", changed, unchanged), [side("B", *later)], Rules()).verdicts
    sentences = [describe_verdict(row) for row in rows if row.metric.name == "samples/s"]
    assert 0.0125 < rows[0].estimate.p_change() < 0.05
    assert sentences[0].startswith("inconclusive: ")
    assert "certain for this cell alone but not over all of them" in sentences[0]
    assert "alone" not in sentences[1]


def test_other_hardware_is_refused_unless_it_is_the_question() -> None:
    here, elsewhere = make_result(STEADY), make_result(faster(2.0), hardware="Other-CPU")
    refusal = r"hardware: Test-CPU-2-cores \(A\), Other-CPU \(B\); .*--across hardware"
    with pytest.raises(BadInput, match=refusal):
        compare_cells(here, elsewhere)
    comparison = compare_cells(here, elsewhere, "hardware")
    assert labels(comparison)[0] == "faster"
    assert comparison.differences == ["hardware: Test-CPU-2-cores (A), Other-CPU (B)"]


def test_other_code_is_named() -> None:
    before = make_result(STEADY, environment={"harness.commit": ["c0ffee"]})
    after = make_result(STEADY, environment={"harness.commit": ["d00d"]})
    differences = compare_cells(before, after).differences
    assert differences == ["harness.commit: c0ffee (A), d00d (B)"]


def test_other_cells_are_refused_with_their_differences() -> None:
    bf16 = make_result(faster(1.5), cell=make_cell(precision="bf16", execution="compile"))
    refusal = "their first cells differ in .*precision.*--across execution,precision$"
    for across in ((), ("execution",)):
        with pytest.raises(BadInput, match=refusal):
            compare_cells(make_result(STEADY), bf16, *across)
    assert labels(compare_cells(make_result(STEADY), bf16, "execution", "precision"))[0] == "faster"


def test_other_data_is_refused() -> None:
    cell = make_cell()
    identity = {**cell.workload.identity, "files": {"data.path": "f00d"}}
    cell = replace(cell, workload=replace(cell.workload, identity=identity))
    other = make_result(faster(1.001), cell=cell)
    with pytest.raises(BadInput, match="--across data"):
        compare_cells(make_result(STEADY), other)
    assert compare_cells(make_result(STEADY), other, "data").exit_code == 0


def test_trials_of_different_versions_in_one_cell_are_named() -> None:
    environment = {
        "software.torch": ["2.13.0", "2.11.0"],
        "software.python": ["3.11.7"],
        "variables.OMP_NUM_THREADS": ["1", "2"],  # which no trial need share
        "hardware.driver": ["1", "2"],
    }
    mixed = replace(make_result(faster(1.001)), environment=environment)
    assert mixed.mixed == {"software.torch": ["2.11.0", "2.13.0"], "hardware.driver": ["1", "2"]}
    # Both sides read the same, and are still no side of one version.
    comparison = compare_cells(replace(make_result(STEADY), environment=environment), mixed)
    label = mixed.cell.label
    assert comparison.differences == []
    for letter in "AB":
        note = f"{label}: trials of {letter} are of different software.torch: 2.11.0 and 2.13.0"
        assert note in comparison.notes


def test_a_cell_that_one_side_lacks_is_named_and_no_pass() -> None:
    both = (make_result(STEADY), make_result(STEADY, cell=make_cell(precision="bf16")))
    comparison = compare(side("A", *both), [side("B", make_result(faster(1.001)))], Rules())
    assert comparison.missing == [f"{both[1].cell.label}: only in A"]
    assert comparison.exit_code == 3


def test_trials_against_themselves_are_named_and_no_pass() -> None:
    comparison = compare_cells(make_result(STEADY), make_result(STEADY))
    assert "both sides are the same trials" in comparison.missing[0]
    assert comparison.exit_code == 3


@pytest.mark.parametrize(
    ("status", "code"), [("failed", 3), ("interrupted", 3), ("unrecorded", 3), ("invalid", 0)]
)
def test_trials_that_are_not_done_are_named(status: str, code: int) -> None:
    partial = make_result(faster(1.001), left_out={status: 1})
    comparison = compare_cells(make_result(STEADY), partial)
    assert f"1 {status} trial of B" in " ".join([*comparison.missing, *comparison.notes])
    assert comparison.exit_code == code


def test_ambiguous_cells_are_refused() -> None:
    both = (make_result(STEADY), make_result(STEADY, cell=make_cell(precision="bf16")))
    with pytest.raises(BadInput, match="differ in nothing else"):
        compare(side("A", *both), [side("B", *both)], Rules(across=["precision"]))


def on_a_machine_that_gets_slower(order: Sequence[Trial]) -> CellComparison:
    """Compare two equally fast cells on a machine that loses 20% over these trials."""
    rng = np.random.default_rng(1)
    sides: dict[str, list[TrialRow]] = {}
    for position, trial in enumerate(order):
        speed = 1000 * (1 - 0.2 * position / len(order)) * math.exp(rng.normal(0, 0.001))
        (made,) = make_result([speed], started=[1.7e9 + 10 * position]).trials
        sides.setdefault(trial.cell.axes.precision, []).append(
            replace(made, seed=trial.seed, repeat=trial.repeat)
        )
    a, b = (make_result([], trials=sides[name]) for name in ("fp32", "bf16"))
    return compare_cells(a, b)


def test_a_slowing_machine_biases_a_sequential_order_but_not_blocks(tmp_path: Path) -> None:
    sweep = load(tmp_path, matrix={"precision": ["fp32", "bf16"]}, seeds=list(range(10)))
    ours = on_a_machine_that_gets_slower(sweep.trials()).verdicts[0]
    assert ours.outcome != "worse"
    assert abs(ours.estimate.value) < 0.005
    assert ours.estimate.paired
    cell_by_cell = sorted(sweep.trials(), key=lambda trial: trial.cell.axes.precision, reverse=True)
    assert on_a_machine_that_gets_slower(cell_by_cell).verdicts[0].outcome == "worse"


class TestBy:
    CELLS = tuple(
        make_result(faster(by), cell=make_cell(precision=precision, execution=execution))
        for precision, by in (("fp32", 1.0), ("bf16", 1.3))
        for execution in ("eager", "compile")
    )

    def test_values_of_an_axis_at_otherwise_equal_cells(self) -> None:
        comparison = compare_by(side("S", *self.CELLS), ["precision"], Rules())
        axes = [(match.a.cell.axes, match.b.cell.axes) for match in comparison.matches]
        assert [(a.precision, b.precision, a.execution == b.execution) for a, b in axes] == [
            ("fp32", "bf16", True)
        ] * 2
        assert labels(comparison)[::2] == ["faster", "faster"]

    def test_an_axis_that_does_not_vary(self) -> None:
        refusal = "--by strategy: .*; its cells differ in execution, precision$"
        with pytest.raises(BadInput, match=refusal):
            compare_by(side("S", *self.CELLS), ["strategy"], Rules())

    def test_axes_that_change_together_follow(self) -> None:
        cells = []
        for strategy, count in (("single", 1), ("ddp", 2), ("fsdp2", 2)):
            cells.append(make_result(STEADY, cell=make_cell(strategy=strategy, world_size=count)))
        comparison = compare_by(side("S", *cells), ["strategy"], Rules())
        axes = [(match.a.cell.axes, match.b.cell.axes) for match in comparison.matches]
        pairs = [(a.strategy, b.strategy) for a, b in axes]
        assert pairs == [("single", "ddp"), ("single", "fsdp2")]


class TestAccuracy:
    LOW = (0.90, 0.91, 0.905, 0.902, 0.908)
    HIGH = (0.93, 0.94, 0.936, 0.931, 0.937)
    ABOVE = tuple(value + 0.001 for value in LOW)

    @pytest.mark.parametrize(
        ("a", "b", "label", "code"),
        [
            (HIGH, LOW, "worse accuracy", 1),  # even if it is as fast
            (LOW, ABOVE, "same", 0),  # as pairs by seed show
            ((0.95, 0.94), (0.93, 0.92), "inconclusive", 3),  # of two seeds, by the same step
        ],
    )
    def test_accuracies_are_compared_by_seed(
        self, a: tuple[float, ...], b: tuple[float, ...], label: str, code: int
    ) -> None:
        speeds = STEADY[: len(a)]
        sides = make_result(speeds, metrics=a), make_result(speeds, metrics=b, bits="x")
        comparison = compare_cells(*sides)
        assert labels(comparison)[1] == label
        assert comparison.exit_code == code

    @pytest.mark.parametrize(("seeds", "label"), [(2, "inconclusive"), (5, "same")])
    def test_equal_values_are_as_certain_as_the_samples_are_many(
        self, seeds: int, label: str
    ) -> None:
        """Of 200 samples each is a step of 0.5%, and with other bits the next seed may differ by one."""
        sides: list[CellResult] = []
        for bits in ("", "x"):
            cell = make_result(STEADY[:seeds], metrics=[1.0] * seeds, bits=bits)
            trials = [replace(trial, test_samples=200) for trial in cell.trials]
            sides.append(replace(cell, trials=trials))
        assert labels(compare_cells(sides[0], sides[1]))[1] == label

    def test_repeats_of_a_seed_count_once(self) -> None:
        sides = []
        for bits in ("", "x"):
            cell = make_result(STEADY, metrics=self.LOW, bits=bits)
            trials = [replace(trial, seed=0, repeat=n) for n, trial in enumerate(cell.trials)]
            sides.append(replace(cell, trials=trials))
        estimate = compare_cells(sides[0], sides[1]).verdicts[1].estimate
        assert (estimate.count, estimate.standard_error) == (1, None)

    def test_the_same_bits_have_the_same_accuracy_however_few(self) -> None:
        comparison = compare_cells(make_result(STEADY[:1]), make_result(STEADY[:1]))
        assert labels(comparison)[1] == "same"
        assert same_bits(comparison.matches[0].pairs) == 1


class TestSideBySide:
    ORDERS = (
        # Of 2 lanes: four blocks are shuffled.
        ("ABBABAAB", 2, True),
        ("AABBABBA", 2, True),
        ("AAAABBBB", 2, False),  # nothing tells the second half of the time from B
        ("AABB" * 4, 2, True),
        ("AAABBB" * 2 + "ABAB" + "AAABBB" * 2, 2, True),
        ("A" * 8 + "B" * 8 + "AB", 2, False),  # no two blocks are so far apart
        ("AABB" * 2, 1, False),  # alone, both of a pair come before the next pair
    )

    @pytest.mark.parametrize(("order", "lanes", "paired"), ORDERS)
    def test_trials_are_pairs_where_their_order_was_drawn(
        self, order: str, lanes: int, paired: bool
    ) -> None:
        a, b = [self.result(order, letter, lanes) for letter in "AB"]
        question = throughput_question(a, b, 0.01)
        assert question is not None
        assert question.estimate.paired is paired

    def result(self, order: str, letter: str, lanes: int) -> CellResult:
        """Return a cell whose trials began where its letter stands in the order."""
        starts = [1.7e9 + place for place, other in enumerate(order) if other == letter]
        result = make_result([1000.0] * len(starts), started=starts)
        return beside(result, lanes)

    def test_other_lanes_are_noted(self) -> None:
        comparison = compare_cells(make_result(STEADY), beside(make_result(faster(0.9)), 8))
        assert labels(comparison)[0] == "slower"
        assert "A and B ran next to other numbers of trials" in " ".join(comparison.notes)
        alike = compare_cells(beside(make_result(STEADY), 8), beside(make_result(STEADY), 8))
        assert alike.notes == []

    def test_lanes_are_an_axis_of_the_attribution(self) -> None:
        """Where trials of one block had other lanes: else they is part of the block."""
        results = []
        for number, (size, speed) in enumerate(((32, 1.0), (64, 1.5))):
            shares = [0.8 if (seed + number) % 2 else 1.0 for seed in range(6)]
            cell = make_result([1e3 * speed * x for x in shares], cell=make_cell(batch_size=size))
            trials = []
            for trial, share in zip(cell.trials, shares, strict=True):
                trials.append(replace(trial, lanes=1 if share == 1.0 else 4))
            results.append(replace(cell, trials=trials))
        (attribution,) = attributions(side("A", *results)).values()
        ratios = {tuple(effect.levels.items()): effect.ratio for effect in attribution.effects}
        assert ratios == {
            (("batch_size", 64),): pytest.approx(1.5),
            (("lanes", "4"),): pytest.approx(0.8),
        }


def in_steps(result: CellResult) -> CellResult:
    """Return a cell of a script that reports no samples."""
    trials = []
    for trial in result.trials:
        numbers = dict(trial.numbers)
        numbers[RATES["steps/s"]] = numbers.pop(RATES["samples/s"])
        trials.append(replace(trial, numbers=numbers))
    return replace(result, trials=trials)


def test_a_verdict_names_the_unit_in_which_the_script_was_measured() -> None:
    comparison = compare_cells(in_steps(make_result(STEADY)), in_steps(make_result(faster(1.1))))
    speed = comparison.matches[0].speed
    assert speed is not None
    assert (speed.metric.name, speed.label) == ("steps/s", "faster")
    assert describe_verdict(speed).startswith("faster: steps/s 1,000")


def test_steps_and_samples_are_not_compared() -> None:
    comparison = compare_cells(in_steps(make_result(STEADY)), make_result(faster(1.1)))
    assert comparison.matches[0].speed is None
    (problem,) = comparison.missing
    assert problem.endswith("is in steps/s in A and samples/s in B, which can't be compared")
    assert comparison.exit_code == 3


def beside(result: CellResult, lanes: int) -> CellResult:
    """Return a cell whose trials ran in so many lanes."""
    if lanes == 1:
        return result
    trials = [replace(trial, lanes=lanes) for trial in result.trials]
    return replace(result, trials=trials)


def test_of_a_script_that_reports_no_metric_nothing_is_missing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n", encoding="utf-8")
    (cell,) = load(tmp_path, workloads={"mine": {"uses": "train.py"}}, matrix={}).cells
    record = make_record(cell)
    assert record.rank0 is not None
    assert cell_result(cell, [record]).target == record.rank0.target
    silent = replace(record, rank0=replace(record.rank0, evaluations=()))
    assert cell_result(cell, [silent]).target is None


def test_several_sides_are_one_family() -> None:
    sides = [side(name, make_result(faster(by))) for name, by in (("B", 1.1), ("C", 0.9))]
    comparison = compare(side("A", make_result(STEADY)), sides, Rules())
    verdicts = [(match.b_side, match.verdicts[0].label) for match in comparison.matches]
    assert verdicts == [("B", "faster"), ("C", "slower")]
