"""What records say of the nodes that trials ran on."""

from __future__ import annotations

from dataclasses import replace

from harness.records.nodes import node_times, speeds_by_trials
from harness.records.record import Record
from tests.factories import make_cell, make_record

CELLS = [make_cell(), make_cell(precision="bf16"), make_cell(batch_size=32)]


def on_node(record: Record, node: str, seconds: float) -> Record:
    assert record.summary is not None
    return replace(record, summary=replace(record.summary, node_seconds={node: seconds}))


def test_trials_of_a_block_count_once_whatever_their_cells_take() -> None:
    """Every other seed runs on n2, where all takes 1.5 times as long; one cell takes 20 times another."""
    times = []
    for seed in range(8):
        node, factor = ("n2", 1.5) if seed % 2 else ("n1", 1.0)
        for number, cell in enumerate(CELLS):
            seconds = 0.01 * 20**number * factor * (1 + 0.001 * seed)
            trial = node_times(on_node(make_record(cell, seed=seed), node, seconds))
            assert trial is not None
            times.append(trial)
    slow, fast = speeds_by_trials(times)
    assert (slow.node, slow.count, slow.is_slow) == ("n2", 4, True)
    assert slow.low < 1 / 1.5 < slow.high
    assert (fast.node, fast.is_slow) == ("n1", False)


def test_trials_that_are_not_to_be_believed_say_nothing() -> None:
    assert node_times(make_record(status="invalid")) is None
    assert node_times(make_record(status="failed")) is None
    measured = node_times(make_record())
    assert measured is not None
    assert list(measured.seconds) == ["node1"]
