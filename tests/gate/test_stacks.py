"""Gates and bisects over stacks: what is compared, what is said of it, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.errors import BadInput
from harness.core.paths import TrialFolder
from harness.core.worktree import Tree
from harness.gate import bisect_stacks as bisecting
from harness.gate import explain as explaining
from harness.gate import stacks as gating
from harness.gate.against import CellOutcome, GateOptions, GateOutcome
from harness.gate.bisect import BisectOptions
from harness.gate.bisect_stacks import StackBisection, StackBisectOutcome, stacks_between
from harness.gate.explain import ExplainOptions
from harness.gate.judge import BisectFinding
from harness.gate.paired import PairedResult
from harness.gate.ranks import StackTree, present_stack, rank_requests
from harness.launch.stack import ReadyStack
from harness.render import bisect as bisect_view
from harness.render import gate as view
from harness.spec.cell import Cell, Trial
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep, load_sweep
from tests.gate.test_gate import CONDITIONS, paired

VERSIONS = {"a": "1.0", "b": "1.0", "c": "2.0", "d": "2.0", "e": "2.1"}


def test_a_profiles_python_path_reaches_both_sides(tmp_path: Path) -> None:
    sweep = load(tmp_path, "")
    trees = gating.stack_trees(sweep, [], Profile(environment={"PYTHONPATH": "/site"}))
    assert trees[None].stack.python_path.endswith(":/site")


def load(folder: Path, axes: str) -> Sweep:
    path = folder / "sweep.yaml"
    stacks = "".join(f"  {name}: {{python: /envs/{name}/bin/python}}\n" for name in VERSIONS)
    path.write_text(f"name: demo\nworkloads: {{mlp: {{}}}}\nstacks:\n{stacks}{axes}")
    return load_sweep(path)


def tree(name: str, **packages: str) -> StackTree:
    stack = replace(present_stack(name, {"torch": "2.13.0", **packages}), python=f"/envs/{name}")
    return StackTree.of(stack, Path("/base"))


@pytest.fixture
def any_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every stack of a sweep for one that ranks can run under."""

    def ready(sweep: Sweep, cells: list[Cell], **_: bool) -> Mapping[str, ReadyStack]:
        names = [str(cell.axes.stack) for cell in cells if cell.axes.stack]
        return {name: tree(name, toy=VERSIONS[name]).stack for name in names}

    monkeypatch.setattr(gating, "ready_stacks", ready)


@pytest.mark.usefixtures("any_stack")
@pytest.mark.parametrize(
    ("axes", "pairs"),
    [
        ("", [("a", gating.PRESENT)]),
        ("axes: {stack: c}\n", [("a", "c")]),
        ("matrix: {stack: [a, c, null]}\n", [("a", "c"), ("a", gating.PRESENT)]),
    ],
    ids=["none", "one", "several"],
)
def test_cells_are_measured_under_their_own_stack_against_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, axes: str, pairs: list[tuple[str, str]]
) -> None:
    measured = []

    def fake_measure(
        cell: Cell, seed: int, trees: Mapping[str, StackTree], *_: object
    ) -> PairedResult:
        measured.append((trees["a"].stack.name, trees["b"].stack.name))
        return paired("same")

    monkeypatch.setattr("harness.gate.against.measure", fake_measure)
    options = GateOptions(stack="a")
    outcome = gating.gate_stacks(
        load(tmp_path, axes), Profile(), options, CONDITIONS, lambda cell, text: None
    )
    assert measured == pairs
    assert outcome.exit_code == 0
    assert outcome.conditions.torch == "2.13.0"
    if "c" in outcome.package_changes:
        assert outcome.package_changes["c"] == ["toy 1.0 → 2.0"]


@pytest.mark.usefixtures("any_stack")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("aa", "--against-stack aa: found no such stack in "),
        ("a", "--against-stack a: found no cell with another stack; allowed: a sweep with cells"),
    ],
)
def test_a_gate_without_two_stacks_is_refused(tmp_path: Path, name: str, message: str) -> None:
    sweep = load(tmp_path, "axes: {stack: a}\n")
    with pytest.raises(BadInput, match=message):
        gating.gate_stacks(
            sweep, Profile(), GateOptions(stack=name), CONDITIONS, lambda cell, text: None
        )


def test_a_gates_answer_names_the_stack_and_the_packages(tmp_path: Path) -> None:
    (cell,) = load(tmp_path, "axes: {stack: c}\n").cells
    outcome = GateOutcome(
        options=GateOptions(stack="a"),
        conditions=CONDITIONS,
        commit="",
        cells=[CellOutcome(cell=cell, measured=paired("slower", 0.95))],
        package_changes={"c": [f"p{number} 1 → 2" for number in range(20)]},
    )
    assert "trains 5.0% slower than stack a (4.0% to 6.0%)" in view.sentence(
        outcome, cell_of(outcome)
    )
    (line,) = view.describe_packages(outcome)
    assert line.startswith("packages that differ, a → c: p0 1 → 2, p1 1 → 2, ")
    assert line.endswith(" and 8 more")
    assert "samples/s of stack a and of the cells' own stacks" in view._caption(outcome)
    assert len(json.loads(view.as_json(outcome))["package_changes"]["c"]) == 20
    assert "packages that differ, a → c" in view.markdown(outcome, "demo")


def cell_of(outcome: GateOutcome) -> CellOutcome:
    (cell_outcome,) = outcome.cells
    return cell_outcome


def test_packages_are_compared_without_the_harness() -> None:
    changes = gating.changed_packages(
        tree("a", toy="1.0", gone="3"), tree("b", toy="1.1", **{gating.HARNESS: "0.1"})
    )
    assert changes == ["gone 3 → none", "toy 1.0 → 1.1"]


@pytest.mark.parametrize("first_bad", range(1, 8))
@pytest.mark.parametrize("broken", [(), (3,), (3, 4)], ids=str)
def test_a_bisection_ends_at_the_first_bad_stack_or_at_those_it_could_not_try(
    first_bad: int, broken: tuple[int, ...]
) -> None:
    names = [f"s{number}" for number in range(8)]
    bisection = StackBisection(names)
    tried = []
    while (name := bisection.next_stack) is not None:
        tried.append(name)
        number = names.index(name)
        if number in broken:
            bisection.mark(name, "skip")
        else:
            bisection.mark(name, "bad" if number >= first_bad else "good")
    assert len(tried) == len(set(tried)) <= 3 + len(broken)
    assert names[first_bad] in bisection.suspects
    last_good = max(number for number in range(first_bad) if number not in broken)
    first_known = min(number for number in range(first_bad, 8) if number not in broken)
    assert bisection.last_good == names[last_good]
    assert bisection.suspects == names[last_good + 1 : first_known + 1]


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        (("x", "c"), "GOOD x: found no such stack in "),
        (("c", "a"), "BAD a: found no later stack than GOOD c in "),
        (("c", "c"), "BAD c: found no later stack than GOOD c in "),
    ],
)
def test_ends_that_are_not_in_order_are_refused(
    tmp_path: Path, ends: tuple[str, str], message: str
) -> None:
    sweep = load(tmp_path, "")
    assert stacks_between(sweep, "b", "d") == ["b", "c", "d"]
    with pytest.raises(BadInput, match=message):
        stacks_between(sweep, *ends)


class Listener:
    """Collects what it is shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def on_comparison_start(self, comparison: str) -> None:
        self.shown.append(comparison)

    def on_progress(self, text: str) -> None: ...

    def on_stack_end(self, name: str, finding: BisectFinding) -> None:
        self.shown.append(f"{name} {finding.mark}")


class ByVersion:
    """A judge that calls a stack with another version of `toy` than that of GOOD bad."""

    def compare(self, a: StackTree, b: StackTree) -> BisectFinding:
        is_bad = a.stack.packages["toy"][0] != b.stack.packages["toy"][0]
        return BisectFinding(mark="bad" if is_bad else "good", description="5% slower")

    def classify(self, good: StackTree, tree: StackTree, bad: StackTree) -> BisectFinding:
        return self.compare(good, tree)

    def narrowed(self, bad: BisectFinding) -> ByVersion:
        return self


@pytest.mark.usefixtures("any_stack")
def test_a_bisect_names_the_stack_and_what_is_other_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bisecting, "make_judge", lambda *_, **__: ByVersion())
    sweep = load(tmp_path, "")
    listener = Listener()
    outcome = bisecting.bisect_stacks(
        sweep, sweep.cells[0], Profile(), BisectOptions(good="a", bad="e"), listener
    )
    assert listener.shown == [
        "e against a", "e bad", "c between the ends", "c bad", "b between the ends", "b good", "c against b",
    ]  # fmt: skip
    assert (outcome.exit_code, list(outcome.suspects)) == (0, ["c"])
    lines = bisect_view.stack_lines(outcome)
    assert lines[:3] == [
        "c is the first bad stack",
        "packages that differ, b → c: toy 1.0 → 2.0",
        "against b: 5% slower",
    ]
    assert json.loads(bisect_view.as_json(outcome))["suspects"] == ["c"]
    unsure: StackBisectOutcome = replace(
        outcome, against_previous=None, suspects=["c", "d"], package_changes=[["toy 1 → 2"], []]
    )
    assert unsure.exit_code == 3
    assert bisect_view.stack_lines(unsure)[:3] == [
        "The first bad stack is one of these 2:",
        "  c: toy 1 → 2",
        "  d: none",
    ]


def test_a_cell_of_a_stack_is_not_measured_under_the_interpreter_of_the_harness(
    tmp_path: Path,
) -> None:
    """As by a gate over revisions, whose trees have no stack."""
    cell = load(tmp_path, "axes: {stack: c}\n").cells[0]
    plain = Tree(name="here", top=tmp_path, path=tmp_path)
    with pytest.raises(
        BadInput, match="found a cell of the stack c; allowed: cells without a stack"
    ):
        rank_requests(
            Trial(cell=cell, seed=0),
            plain,
            TrialFolder(tmp_path),
            tmp_path,
            Profile(),
            module="harness.gate.turn_worker",
            variables={},
        )


@pytest.mark.usefixtures("any_stack")
def test_cells_of_stacks_are_explained_under_their_own(tmp_path: Path) -> None:
    sweep = load(tmp_path, "matrix: {stack: [a, c]}\n")
    options = ExplainOptions(a="stack=a", b="stack=c", arms="cells", budget_seconds=1.0)
    with explaining._trees(sweep, None, Profile(), options, tmp_path) as (cells, trees):
        assert [cells[key].axes.stack for key in "ab"] == ["a", "c"]
        interpreters = []
        for key in "ab":
            arm_tree = trees[key]
            assert isinstance(arm_tree, StackTree)
            interpreters.append(arm_tree.stack.python)
    assert interpreters == ["/envs/a", "/envs/c"]
