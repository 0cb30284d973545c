"""A first Ctrl-C asks to stop, a second one ends."""

from __future__ import annotations

import signal
import threading

import pytest

from harness.launch import interrupt
from harness.launch.interrupt import deferred_interrupts

ANNOUNCEMENT = (
    "Ctrl-C: running trials save their state and stop; press Ctrl-C again to end them at once"
)


class Interrupted:
    """A block in which signals come, and what was seen in it."""

    def __init__(self, *signals: int) -> None:
        self.signals = signals
        self.announced: list[str] = []
        self.reasons: list[str | None] = []

    def run(self) -> None:
        with deferred_interrupts(self.announced.append) as stop:
            self.reasons.append(stop.reason())
            for number in self.signals:
                signal.raise_signal(number)
                self.reasons.append(stop.reason())


def test_a_first_interrupt_is_announced_once_and_raised_at_the_end() -> None:
    """A command that wraps ours passes on what the terminal has sent to both."""
    block = Interrupted(signal.SIGINT, signal.SIGINT)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        block.run()
    assert block.reasons == [None, "Ctrl-C", "Ctrl-C"]
    assert block.announced == [ANNOUNCEMENT]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2])
def test_what_schedulers_and_terminals_send_asks_too(number: signal.Signals) -> None:
    block = Interrupted(number)
    inherited = signal.signal(number, signal.SIG_DFL)  # `nohup` has SIGHUP ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            block.run()
    finally:
        signal.signal(number, inherited)
    assert block.reasons == [None, number.name]


def test_a_second_interrupt_is_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupt, "SAME_REQUEST", 0.0)
    block = Interrupted(signal.SIGTERM, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        block.run()
    assert block.reasons == [None, "SIGTERM"]


def test_an_ignored_signal_stays_ignored() -> None:
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with deferred_interrupts(print):
            signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, previous)


def test_without_an_interrupt_nothing_is_raised_in_any_thread() -> None:
    reasons: list[str | None] = []

    def run() -> None:
        with deferred_interrupts(print) as stop:
            reasons.append(stop.reason())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    run()
    assert reasons == [None, None]
