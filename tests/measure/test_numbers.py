"""The numbers of a trial are computed once, when its record is assembled."""

from __future__ import annotations

from dataclasses import replace

from harness.api import whole_seconds
from harness.records.record import Failure, Interruption, Record
from tests.factories import make_record, with_ranks


def undisturbed() -> Record:
    """Return the record of a trial of 100 s, of which it trained 70."""
    phases = {"startup": 2.0, "warmup": 10.0, "train": 60.0, "evaluate": 6.0}
    return with_ranks(make_record(), phases=phases, started=1000.0, ended=1100.0)


def test_the_share_that_trained_is_that_of_the_steps() -> None:
    numbers = undisturbed().numbers
    assert (numbers["wall_s"], numbers["ettr"]) == (100.0, 0.7)
    assert "ettr" not in with_ranks(undisturbed(), summary=None).numbers


def test_attempts_count_and_the_pauses_between_them_do_not() -> None:
    """Stopped after 40 s, and continued when the user came back 900 s later."""
    stopped = Failure(kind="Interrupted", message="stopped", began_at=60.0, at=100.0)
    record = with_ranks(undisturbed(), previous_failures=(stopped,))
    assert (record.numbers["wall_s"], record.numbers["ettr"]) == (140.0, 0.5)


def test_phases_of_different_ranks_are_never_longer_than_the_wall_time() -> None:
    record = with_ranks(undisturbed(), phases={"warmup": 50.0, "train": 80.0})
    assert record.numbers["ettr"] == 1.0


def test_attempts_before_the_trial_began_again_do_not_count() -> None:
    """An invalid attempt is measured again from its beginning."""
    invalid = Failure(kind="Invalid", message="contention", at=990.0, began_at=900.0)
    record = undisturbed()
    assert with_ranks(record, previous_failures=(invalid,)).numbers == record.numbers


def test_a_trial_that_was_interrupted_is_as_long_as_its_phases() -> None:
    record = undisturbed()
    assert whole_seconds(record) == 100.0
    saved = Interruption(step=5, at=962.0, signal="SIGUSR2", lost_seconds=38.0)
    resumed = with_ranks(record, [replace(record.ranks[0], interruptions=[saved])])
    assert whole_seconds(replace(resumed, started=1090.0)) == 78.0
