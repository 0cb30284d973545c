"""How much of the wall time of trials trained."""

from __future__ import annotations

from dataclasses import replace

from harness.records.across import in_memory_ranks
from harness.records.goodput import Goodput, goodput, total, whole_seconds
from harness.records.record import Failure, Interruption, Record
from tests.factories import make_record


def undisturbed() -> Record:
    """Return the record of a trial of 100 s, of which it trained 70."""
    phases = {"startup": 2.0, "warmup": 10.0, "train": 20.0, "fingerprint": 40.0, "evaluate": 6.0}
    return replace(make_record(), phases=phases, started=1000.0, ended=1100.0)


def test_the_share_is_that_of_the_steps() -> None:
    spent = goodput(undisturbed())
    assert spent == Goodput(trained=70.0, wall=100.0)
    assert spent.share == 0.7
    assert total([spent, spent]) == Goodput(trained=140.0, wall=200.0)
    assert total([]) is None
    assert goodput(replace(undisturbed(), summary=None)) is None


def test_attempts_count_and_the_pauses_between_them_do_not() -> None:
    """Stopped after 40 s, and continued when the user came back 900 s later."""
    stopped = Failure(kind="Interrupted", message="stopped", began_at=60.0, at=100.0)
    spent = goodput(replace(undisturbed(), first_started=60.0, previous_failures=(stopped,)))
    assert spent == Goodput(trained=70.0, wall=140.0)


def test_phases_of_different_ranks_are_never_longer_than_the_wall_time() -> None:
    spent = goodput(replace(undisturbed(), phases={"warmup": 50.0, "train": 80.0}))
    assert spent is not None
    assert spent.share == 1.0


def test_attempts_before_the_trial_began_anew_do_not_count() -> None:
    """An invalid attempt is measured again from its beginning."""
    invalid = Failure(kind="Invalid", message="contention", at=990.0, began_at=900.0)
    record = undisturbed()
    assert goodput(replace(record, previous_failures=(invalid,))) == goodput(record)


def test_a_trial_that_was_interrupted_is_as_long_as_its_phases() -> None:
    record = undisturbed()
    assert whole_seconds(record) == 100.0
    saved = Interruption(step=5, at=962.0, signal="SIGUSR2", lost_seconds=38.0)
    ranks = [replace(record.ranks[0], interruptions=[saved]), *record.ranks[1:]]
    resumed = replace(record, started=1090.0, ranks=in_memory_ranks(ranks))
    assert whole_seconds(resumed) == 78.0
