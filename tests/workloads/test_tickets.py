from __future__ import annotations

from collections import Counter

from workloads.texts import Tickets
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


def test_hardly_any_ticket_occurs_twice() -> None:
    texts = [text for text, _ in tickets(4000, seed=0)]
    assert len(set(texts)) > 0.95 * len(texts)


def test_a_good_classifier_gets_most_tickets_right_but_not_all() -> None:
    # Imported here, because every process that collects tests would spend a second on it.
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    data = Tickets(rows=1500)
    rows, _ = data.samples()
    splits = data.split(*data.labels())
    classifier = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2)), LogisticRegression(C=10, max_iter=500)
    )
    (train, labels), (test, test_labels) = (
        zip(*(rows[index] for index in splits[name]), strict=True) for name in ("train", "test")
    )
    classifier.fit(train, labels)
    assert 0.75 < classifier.score(test, test_labels) < 0.97
