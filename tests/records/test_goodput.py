"""Where the wall time of trials went."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.records.across import in_memory_ranks
from harness.records.goodput import Goodput, goodput, total, whole_seconds
from harness.records.record import Failure, Interruption, Record
from tests.factories import make_record


def undisturbed() -> Record:
    """Return the record of a trial of 100 s, of which it trained 70."""
    phases = {"startup": 2.0, "data": 3.0, "build": 5.0, "warmup": 10.0, "train": 60.0}
    phases |= {"compile": 4.0, "evaluate": 6.0, "checkpoint": 1.0}
    return replace(make_record(), phases=phases, started=1000.0, ended=1100.0)


def test_every_second_of_the_wall_time_is_in_one_place() -> None:
    spent = goodput(undisturbed())
    assert spent == Goodput(
        trained=70.0, start=10.0, compile=4.0, evaluate=6.0, checkpoint=1.0, again=0.0, waiting=9.0
    )
    assert spent.wall == 100.0
    assert spent.share == 0.7


def test_steps_that_leave_fingerprints_train_too() -> None:
    record = undisturbed()
    phases = {**record.phases, "train": 20.0, "fingerprint": 40.0}
    spent = goodput(replace(record, phases=phases))
    assert spent is not None
    assert (spent.trained, spent.waiting) == (70.0, 9.0)


def test_a_job_waited_in_the_queue_before_its_first_trial() -> None:
    spent = goodput(replace(undisturbed(), queued_seconds=40.0))
    assert spent is not None
    assert (spent.queue, spent.wall, spent.share) == (40.0, 140.0, 0.5)


def test_deaths_cost_work_and_waiting() -> None:
    """Saved at 930 and killed at 950, then stopped by a signal, which costs no work."""
    record = undisturbed()
    deaths = [
        Failure(kind="Killed", message="ended by SIGKILL", at=950.0),
        Failure(kind="Interrupted", message="stopped", at=980.0),
    ]
    interruptions = [
        Interruption(step=5, at=930.0, signal=None, lost_seconds=40.0),
        Interruption(step=9, at=979.0, signal="SIGUSR2", lost_seconds=25.0),
    ]
    assert record.rank0 is not None
    ranks = [replace(record.ranks[0], interruptions=interruptions), *record.ranks[1:]]
    spent = goodput(
        replace(
            record,
            first_started=900.0,
            previous_failures=tuple(deaths),
            ranks=in_memory_ranks(ranks),
            rank0=replace(record.rank0, began_at=901.0),
        )
    )
    assert spent is not None
    assert spent.again == 20.0
    assert spent.wall == 200.0
    assert spent.share == pytest.approx(0.35)
    assert spent.waiting == pytest.approx(89.0)


def test_what_was_lost_before_the_first_save_was_done_twice() -> None:
    record = undisturbed()
    assert record.rank0 is not None
    spent = goodput(
        replace(
            record,
            first_started=900.0,
            previous_failures=(Failure(kind="Killed", message="ended by SIGKILL", at=960.0),),
            rank0=replace(record.rank0, began_at=1002.0),
        )
    )
    assert spent is not None
    assert spent.again == 60.0


def test_the_wait_for_an_attempt_is_no_work() -> None:
    """Killed at 960, started again at 990, and killed before it had saved anything."""
    record = undisturbed()
    deaths = [
        Failure(kind="Killed", message="ended by SIGKILL", at=960.0, began_at=900.0),
        Failure(kind="Killed", message="ended by SIGKILL", at=998.0, began_at=990.0),
    ]
    spent = goodput(replace(record, first_started=900.0, previous_failures=tuple(deaths)))
    assert spent is not None
    assert spent.again == 68.0


def test_a_save_after_the_last_sign_of_life_counts() -> None:
    """Saved at 962, two seconds after the heartbeat that dates the death."""
    record = undisturbed()
    saved = Interruption(step=5, at=962.0, signal=None, lost_seconds=38.0)
    ranks = [replace(record.ranks[0], interruptions=[saved]), *record.ranks[1:]]
    death = Failure(kind="Interrupted", message="its job ended", at=960.0, began_at=900.0)
    spent = goodput(
        replace(
            record,
            first_started=900.0,
            previous_failures=(death,),
            ranks=in_memory_ranks(ranks),
        )
    )
    assert spent is not None
    assert spent.again == 0.0


def test_attempts_before_the_trial_began_anew_do_not_count() -> None:
    """An invalid attempt is measured again from its beginning."""
    record = undisturbed()
    invalid = Failure(kind="Invalid", message="contention", at=990.0, began_at=900.0)
    spent = goodput(replace(record, previous_failures=(invalid,)))
    assert spent is not None
    assert spent == goodput(record)


def test_a_trial_that_was_interrupted_is_as_long_as_its_phases() -> None:
    record = undisturbed()
    assert whole_seconds(record) == 100.0
    saved = Interruption(step=5, at=962.0, signal="SIGUSR2", lost_seconds=38.0)
    ranks = [replace(record.ranks[0], interruptions=[saved]), *record.ranks[1:]]
    resumed = replace(record, started=1090.0, ranks=in_memory_ranks(ranks))
    assert whole_seconds(resumed) == 91.0


def test_a_trial_without_an_end_has_none() -> None:
    assert goodput(replace(undisturbed(), summary=None)) is None
    spent = goodput(undisturbed())
    assert spent is not None
    both = total([spent, spent])
    assert both is not None
    assert (both.wall, both.share) == (200.0, 0.7)
    assert total([]) is None
