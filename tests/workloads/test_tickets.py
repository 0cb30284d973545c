from __future__ import annotations

from collections import Counter

from workloads.tickets import ticket_labels, tickets


def test_tickets_repeat_with_their_seed() -> None:
    assert tickets(100, seed=3) == tickets(100, seed=3)
    assert tickets(100, seed=3) != tickets(100, seed=4)
    assert ticket_labels(100, seed=3) == [label for _, label in tickets(100, seed=3)]


def test_classes_are_balanced() -> None:
    assert Counter(label for _, label in tickets(300, seed=0)) == {
        "account": 100,
        "billing": 100,
        "technical": 100,
    }
