"""What an explanation says of profiles, here of arms without processes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.core.errors import BadInput
from harness.core.paths import SweepFolder
from harness.gate.against import CellOutcome, Conditions, GateOptions, GateOutcome
from harness.gate.arms import ArmTurn, TrainingArm
from harness.gate.explain import SLOWEST_RANK, check_comparable, profile_pairs
from harness.gate.explanation import (
    SLOW_STEPS,
    Explanation,
    PartDifference,
    by_likelihood,
    read_explanation,
    write_explanation,
)
from harness.gate.paired import PairedResult
from harness.measure.step_parts import COMPILED, DATA_WAIT
from harness.measure.timeline import StepPart
from harness.render.explain import as_json, describe_cause, explain_command, headline, show
from tests.factories import make_cell

CELL = make_cell()


class ProfiledArm(TrainingArm):
    """An arm whose steps have known parts, in milliseconds by rank, and a little noise."""

    def __init__(self, ranks: Sequence[Sequence[StepPart]], rng: np.random.Generator) -> None:
        super().__init__("arm", Path("launch.log"))
        self.ranks = ranks
        self.rng = rng

    def train(self, steps: int) -> ArmTurn:
        return self.profile(steps, steps)

    def profile(self, steps: int, first: int) -> ArmTurn:
        noise = self.rng.normal(1.0, 0.002, size=steps)
        own = [sum(sum(part.seconds) + sum(part.waited) for part in parts) for parts in self.ranks]
        seconds = (max(own) * noise).tolist()
        profiled = noise[first:].tolist()
        parts = [[repeated(part, profiled) for part in of_rank] for of_rank in self.ranks]
        total = sum(seconds)
        return ArmTurn(
            seconds=seconds, reported=[total], elapsed=[total], delay=0.0, losses="", parts=parts
        )


def repeated(part: StepPart, factors: Sequence[float]) -> StepPart:
    """A part of several steps, from that of a single one."""
    return replace(
        part,
        seconds=[sum(part.seconds) * factor for factor in factors],
        waited=[sum(part.waited) * factor for factor in factors] if part.waited else (),
        calls=part.calls * len(factors),
        shapes={text: calls * len(factors) for text, calls in part.shapes.items()},
    )


def part(
    name: str, milliseconds: float, waited: float = 0.0, calls: int = 1, **shapes: int
) -> StepPart:
    return StepPart(
        name=name,
        kind="collective" if waited else "operator",
        seconds=[milliseconds / 1e3],
        waited=[waited / 1e3] if waited else (),
        calls=calls,
        shapes=shapes,
    )


def explanation(a: Sequence[Sequence[StepPart]], b: Sequence[Sequence[StepPart]]) -> Explanation:
    rng = np.random.default_rng(0)
    arms: dict[str, TrainingArm] = {"a": ProfiledArm(a, rng), "b": ProfiledArm(b, rng)}
    return profile_pairs({"a": CELL, "b": CELL}, lambda keys: nullcontext(arms), 0.0, rng)


def test_differences_add_up_to_the_whole_and_the_largest_is_first() -> None:
    common = [part("aten::mm", 5.0), part("aten::relu", 2.0), part("tiny", 0.001)]
    found = explanation([[*common, part("copies", 1.0)]], [[*common, part("copies", 3.0, calls=4)]])
    first = found.parts[0]
    assert first.name == "copies"
    assert first.seconds == pytest.approx(0.002, rel=0.05)
    assert first.is_certain
    total = math.fsum(each.seconds for each in [*found.parts, found.left_over])
    assert total == pytest.approx(found.whole.seconds)
    assert [first.a_calls, first.b_calls] == pytest.approx([1, 4])
    assert "most of it: copies, +" in headline(found)
    assert {each.name for each in found.parts} >= {"aten::mm", "aten::relu", SLOW_STEPS}
    assert "tiny" not in {each.name for each in found.parts}


def test_the_wait_for_a_slower_rank_is_told_apart_from_the_collective() -> None:
    even = [part("aten::mm", 4.0), part("all_reduce", 0.5, waited=1.0)]
    slow = [part("aten::mm", 6.0), part("all_reduce", 0.5, waited=1.0)]
    waiting = [part("aten::mm", 4.0), part("all_reduce", 0.5, waited=3.0)]
    found = {each.name: each for each in explanation([even, even], [waiting, slow]).parts}
    assert found[SLOWEST_RANK].seconds == pytest.approx(1e-3, rel=0.05)  # of one rank of two
    assert found["aten::mm"].seconds == pytest.approx(1e-3, rel=0.05)
    assert abs(found["all_reduce"].seconds) < 1e-4


def difference(**keys: object) -> PartDifference:
    base = PartDifference(name="aten::mm", kind="operator", a=1e-3, b=2e-3, low=5e-4, high=2e-3)
    return replace(base, **keys)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("part", "cause"),
    [
        (difference(a_calls=3, b_calls=3), ""),
        (
            difference(a_calls=1, b_calls=2, a_shapes={"4×4": 1}, b_shapes={"4×4": 1, "8×8": 1}),
            "1 → 2 calls a step, of 8×8",
        ),
        (
            difference(a_calls=1, b_calls=1, a_shapes={"4×4": 1}, b_shapes={"8×8": 1}),
            "shapes 4×4 → 8×8",
        ),
        (
            difference(a_calls=0, b_calls=1, b_shapes={"8×8, 8, 8×4, 4, 8×8, 8": 1}),
            "0 → 1 calls a step, of 8×8, 8, 8×4, 4 and 2 more",
        ),
        (
            difference(
                name="all_reduce",
                kind="collective",
                a_calls=1,
                b_calls=4,
                a_shapes={"400": 1},
                b_shapes={"100": 4},
            ),
            "1 → 4 calls a step, of the same 400 numbers in other pieces",
        ),
        (
            difference(
                name="all_reduce",
                kind="collective",
                a_calls=1,
                b_calls=2,
                a_shapes={"400": 1},
                b_shapes={"400": 1, "100": 1},
            ),
            "1 → 2 calls a step, of 400 → 500 numbers",
        ),
        (
            difference(
                name="all_reduce",
                kind="collective",
                a_calls=1,
                b_calls=2,
                a_shapes={"400": 0.5, "": 0.5},
                b_shapes={"400": 2},
            ),
            "1 → 2 calls a step",
        ),
        (
            difference(name=COMPILED, a_calls=1, b_calls=2),
            "graph breaks: 1 → 2 calls a step, more compiled regions",
        ),
        (difference(name=SLOW_STEPS, most_of_it=DATA_WAIT), f"mostly {DATA_WAIT}"),
    ],
)
def test_the_cause_is_told_where_calls_or_shapes_differ(part: PartDifference, cause: str) -> None:
    assert describe_cause(part) == cause


def test_what_is_called_more_often_comes_before_what_merely_moves() -> None:
    calls = {"a_calls": 1.0, "b_calls": 2.0}
    disturbed = difference(name=SLOW_STEPS, b=9e-3, low=-1e-3, high=2e-2)
    moves = difference(low=1e-4, high=19e-4)
    copies = difference(name="copies", b=15e-4, low=-1e-3, high=2e-3, **calls)
    parts = [disturbed, moves, copies]
    assert sorted(parts, key=by_likelihood) == [copies, moves, disturbed]
    uncertain = difference(low=-1e-4)
    assert sorted([disturbed, uncertain], key=by_likelihood) == [uncertain, disturbed]
    waits = difference(name=DATA_WAIT, b=3e-3, low=19e-4, high=21e-4)
    assert sorted([*parts, waits], key=by_likelihood)[0] == waits, "which has no calls to count"
    shapes = difference(name="shapes", a_shapes={"4×4": 1}, b_shapes={"8×8": 1}, low=-1e-3)
    assert sorted([*parts, shapes], key=by_likelihood)[0] == shapes


@pytest.mark.parametrize(
    ("milliseconds", "share"),
    [(0.9, "most of it"), (0.7, "the largest part"), (-2.0, "the largest part")],
)
def test_most_of_it_is_more_than_half_in_the_same_direction(
    milliseconds: float, share: str
) -> None:
    whole = difference(a=10e-3, b=11.5e-3)
    seconds = milliseconds / 1e3
    first = difference(a=5e-3, b=5e-3 + seconds, low=seconds - 1e-5, high=seconds + 1e-5)
    found = explanation([[part("aten::mm", 5.0)]], [[part("aten::mm", 6.0)]])
    text = headline(replace(found, whole=whole, parts=[first]))
    assert text.endswith(f"; {share}: aten::mm, {milliseconds:+.3f} ms a step")


def test_cells_that_cannot_take_turns_are_refused() -> None:
    other = replace(CELL, axes=replace(CELL.axes, num_threads=CELL.axes.num_threads + 1))
    with pytest.raises(BadInput, match="A and B: found num_threads=1 and num_threads=2; allowed: "):
        check_comparable(CELL, other)
    with pytest.raises(BadInput, match="environment"):
        check_comparable(CELL, replace(CELL, environment={"A": "1"}))


@pytest.mark.parametrize(
    ("options", "cluster", "command"),
    [
        (GateOptions(revision="main"), "local", f"main . s.yaml --revisions --cell {CELL.id}"),
        (GateOptions(stack="old"), "local", f"old . s.yaml --stacks --cell {CELL.id}"),
        (
            GateOptions(revision="a b", settings=["length.steps=5"], data=["d"]),
            "two.yaml",
            f"'a b' . s.yaml --revisions --cell {CELL.id} --set length.steps=5 --data d"
            " --cluster two.yaml",
        ),
    ],
)
def test_a_gate_names_the_command_that_explains_a_cell(
    options: GateOptions, cluster: str, command: str
) -> None:
    slower = CellOutcome(cell=CELL, measured=PairedResult(verdict="slower"))
    conditions = Conditions(hardware="", torch="", certificate="")
    outcome = GateOutcome(options=options, conditions=conditions, commit="", cells=[slower])
    assert outcome.slower_cells == [slower]
    assert explain_command(outcome, slower, "s.yaml", cluster) == f"harness explain {command}"


def test_an_explanation_is_shown_and_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = explanation([[part("aten::mm", 5.0)]], [[part("aten::mm", 6.0, calls=2)]])
    show(found)
    shown = capsys.readouterr().out
    assert "\naten::mm: 1 → 2 calls a step\n" in shown, "whole, below the table"
    assert "the whole difference" in shown
    assert "█" in shown
    content = json.loads(as_json(found))
    assert content["parts"][0]["name"] == "aten::mm"
    assert content["summary"] == headline(found)


def test_a_long_name_is_cut_off_before_any_number(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of a GPU's kernels have thousands of characters."""
    name = "void at::native::kernel<" + "at::native::functor, " * 200 + "float>"
    found = explanation([[part(name, 5.0)]], [[part(name, 6.0, calls=2)]])
    show(found)
    shown = capsys.readouterr().out
    row = next(line for line in shown.splitlines() if line.startswith("kernel<functor, "))
    assert f"{1000 * found.parts[0].seconds:+.3f}" in row
    assert "functor, float>: 1 → 2 calls a step\n" in shown
    assert json.loads(as_json(found))["parts"][0]["name"] == name


def test_an_explanation_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    assert read_explanation(folder) is None
    a = [[part("aten::mm", 5.0, **{"4×4": 1})]]
    found = explanation(a, [[part("aten::mm", 6.0, **{"8×8": 1})]])
    write_explanation(folder, found)
    again = read_explanation(folder)
    assert again is not None
    assert as_json(again) == as_json(found)
    assert again.parts[0].does_other_work
    path = folder.explanation_path
    path.write_text(path.read_text(encoding="utf-8").replace("aten::mm", "aten::mv"), "utf-8")
    with pytest.raises(BadInput, match="it was changed after it was written; harness explain A B"):
        read_explanation(folder)
