"""Points of a matrix, and functions of them that are evaluated once for what they read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.spec.axes import Axes, find_conflict
from harness.spec.expansion import Expansion, Point, PointMemo

COLUMNS: list[list[dict[str, Any]]] = [
    [{"strategy": name} for name in ("single", "ddp", "fsdp2")],
    [{"world_size": 1, "rank_batch_size": 8}, {"world_size": 2, "rank_batch_size": 6}],
    [{"lr": rate / 10} for rate in range(1, 6)],
    [{"comm_hook": "none"}, {"comm_hook": "bf16"}],
    [{"env.OMP_DYNAMIC": "true"}, {"env.OMP_DYNAMIC": None}],
    [{"options.hidden": [64]}, {"options.hidden": [8]}],
]
EXPANSION = Expansion({"batch_size": 64, "env.B": "0"}, COLUMNS, ["OMP_DYNAMIC", "B", "C"])
POINTS = sum(1 for _ in EXPANSION)


def test_a_point_has_a_value_of_every_axis() -> None:
    points = list(EXPANSION)
    assert len(points) == 3 * 2 * 5 * 2 * 2 * 2
    assert (points[0]["options.hidden"], points[1]["options.hidden"]) == ([64], [8])
    last = dict(points[-1])
    assert last.pop("options.hidden") == [8]
    assert [last.pop(f"env.{name}") for name in ("OMP_DYNAMIC", "B", "C")] == [None, "0", None]
    expected = Axes(batch_size=12, strategy="fsdp2", world_size=2, lr=0.5, comm_hook="bf16")
    assert list(last.items()) == list(expected.values.items())
    assert points[-1].axes == expected


def count_calls(function: Callable[[Point], Any]) -> int:
    """Return how often a memo calls a function, whose results must be those of plain points."""
    calls = []

    def counted(point: Point) -> Any:
        calls.append(point)
        return function(point)

    memo = PointMemo(EXPANSION, counted)
    assert [memo(point) for point in EXPANSION] == [function(point) for point in EXPANSION]
    return len(calls)


@pytest.mark.parametrize(
    ("read", "most_calls"),
    [
        (lambda point: None, 1),
        (lambda point: point.axes.strategy, 3 + 1),
        # Strategy and world size, and hooks where they have no effect; learning rates never.
        (lambda point: find_conflict(point.axes), 3 * 2 * 2 + 3),
        (lambda point: point.axes.data_parallel_size, 3 * 2 + 2),
        (lambda point: point.axes.batch_size, 3 * 2 + 2),
        (lambda point: point["comm_hook"], 2 + 1),
        (lambda point: point["env.B"] or point.environment, 2 + 1),
        (lambda point: dict(point.settings), 2 + 1),
        (lambda point: point.axes.values["lr"], 5 + 1),
        # What is read only on occasion is read too.
        (lambda point: point.axes.lr if point.axes.strategy == "ddp" else 0, 3 * 5 + 3),
    ],
)
def test_a_function_is_evaluated_for_what_it_reads(
    read: Callable[[Point], Any], most_calls: int
) -> None:
    assert count_calls(read) <= most_calls


@pytest.mark.parametrize(
    "copy",
    [
        dict,
        lambda values: {**values},
        lambda values: values | {"a": 1},
        lambda values: {"a": 1} | values,
        lambda values: values.copy(),
        lambda values: sorted(values.items(), key=str),
        lambda values: list(values.values()),
        lambda values: json.dumps(values, default=str),
        lambda values: values.get("lr"),
        lambda values: values == {**values, "lr": 0.1},
        lambda values: {name: values[name] for name in values},
    ],
)
def test_no_way_to_read_a_rules_values_escapes(copy: Callable[[dict[str, Any]], Any]) -> None:
    assert count_calls(lambda point: copy(point.axes.values)) <= POINTS


def test_all_of_the_axes_at_once() -> None:
    assert count_calls(lambda point: vars(point.axes).copy()) <= POINTS
    assert count_calls(lambda point: hash(replace(point.axes, lr=None))) <= POINTS
    assert count_calls(lambda point: point.axes.changed) <= POINTS
