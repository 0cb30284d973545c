"""What code tells whoever waits for it: a command its user, on stderr, and a training script the harness.

This module imports no library, so that `harness.report` costs nothing where there is no harness.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Listener = Callable[[str], None]


# By default nothing is shown, as where the harness is called from Python.
_listener: ContextVar[Listener] = ContextVar("progress", default=lambda text: None)


def report_progress(text: str) -> None:
    """Tell what is being done now; it replaces what was told before."""
    _listener.get()(text)


@contextmanager
def progress_shown_by(listener: Listener) -> Iterator[None]:
    """Have `listener` called with what is being done within the block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def print_message(text: str) -> None:
    """Print why nothing seems to happen, or what has happened, in a line that stays."""
    print(f"harness: {text}", file=sys.stderr, flush=True)


@contextmanager
def progress_of(subject: str) -> Iterator[None]:
    """Have what is told within the block begin with its subject."""
    listener = _listener.get()
    with progress_shown_by(lambda text: listener(f"{subject}: {text}")):
        yield


# Gets the loss, the number of samples and the metrics of a call.
ReportListener = Callable[[Any, int | None, Mapping[str, Any]], None]
_report_listeners: list[ReportListener] = []  # those of the trial that this process runs, if any


def report(*, loss: Any = None, samples: int | None = None, **metrics: Any) -> None:
    """Report the training loss and the samples of a step at this rank, or metrics of an evaluation.

    `loss` is a number or a tensor with one element, which is read later, so that no step waits for
    its device. `samples` are those of this rank; of several calls in a step they are added up, and the
    mean of the losses counts. A metric has a name of your choice, as in `report(accuracy=0.9)`.

    Outside of a trial of the harness it does nothing.
    """
    for listener in _report_listeners:
        listener(loss, samples, metrics)


@contextmanager
def listening(listener: ReportListener) -> Iterator[None]:
    """Have `listener` called by every `report` within the block."""
    _report_listeners.append(listener)
    try:
        yield
    finally:
        _report_listeners.remove(listener)
