"""A first Ctrl-C asks to stop, a second one ends."""

from __future__ import annotations

import signal
import threading

import pytest

from harness.launch import interrupt
from harness.launch.interrupt import deferred_interrupts

ANNOUNCEMENT = "Ctrl-C: running trials stop and save their state where they can; press Ctrl-C again to end them at once"


@pytest.mark.parametrize(
    ("signals", "same_request", "reasons"),
    [
        # A command that wraps ours passes on what the terminal has sent to both.
        ([signal.SIGINT, signal.SIGINT], 60.0, ["Ctrl-C", "Ctrl-C"]),
        # A second interrupt is raised at once.
        ([signal.SIGTERM, signal.SIGINT], 0.0, ["SIGTERM"]),
        ([signal.SIGTERM], 60.0, ["SIGTERM"]),
        ([signal.SIGHUP], 60.0, ["SIGHUP"]),
        ([signal.SIGUSR2], 60.0, ["SIGUSR2"]),
    ],
)
def test_a_first_signal_is_announced_once_and_raised_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
    signals: list[signal.Signals],
    same_request: float,
    reasons: list[str],
) -> None:
    monkeypatch.setattr(interrupt, "SAME_REQUEST", same_request)
    announced: list[str] = []
    found: list[str | None] = []

    def block() -> None:
        with deferred_interrupts(announced.append) as stop:
            assert stop.reason() is None
            for number in signals:
                signal.raise_signal(number)
                found.append(stop.reason())

    inherited = signal.signal(signals[0], signal.SIG_DFL)  # `nohup` has SIGHUP ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            block()
        assert signal.getsignal(signals[0]) is signal.SIG_DFL
    finally:
        signal.signal(signals[0], inherited)
    assert found == reasons
    if signals[0] == signal.SIGINT:
        assert announced == [ANNOUNCEMENT]


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
