"""Processes end when they should, and fork when they may."""

from __future__ import annotations

import hashlib
import threading
import time

from harness.core.processes import output_lines, wait_for_idle_threads


def work(ended: threading.Event) -> None:
    hashlib.pbkdf2_hmac("sha256", b"long", b"enough", 300_000)  # without the interpreter
    ended.set()


def test_threads_at_work_are_waited_for() -> None:
    ended = threading.Event()
    threading.Thread(target=work, args=[ended]).start()
    wait_for_idle_threads(60)
    assert ended.is_set()


def test_threads_that_only_wait_are_not() -> None:
    ended = threading.Event()
    waiting = threading.Thread(target=ended.wait)
    waiting.start()
    began = time.monotonic()
    wait_for_idle_threads(60)
    assert time.monotonic() - began < 30
    ended.set()
    waiting.join()


def test_threads_that_never_rest_are_not_waited_for_for_long() -> None:
    ended = threading.Event()

    def go_on() -> None:
        while not ended.is_set():
            work(threading.Event())

    restless = threading.Thread(target=go_on)
    restless.start()
    wait_for_idle_threads(0.05)
    assert not ended.is_set()
    ended.set()
    restless.join()


class TestOutputLines:
    def test_are_those_of_both_streams(self) -> None:
        command = ["sh", "-c", "echo out; echo; echo err >&2; exit 3"]
        assert output_lines(command, {}, 60.0) == ["out", "err"]

    def test_end_with_a_note_if_the_command_takes_too_long(self) -> None:
        command = ["sh", "-c", "echo out; exec sleep 60"]
        assert output_lines(command, {"PATH": "/bin:/usr/bin"}, 0.2) == ["out", "ended after 0.2 s"]
