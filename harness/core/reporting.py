"""What a training script may tell the harness that runs it: `harness.report(loss=…, samples=…)`.

This module imports no library, so that the call costs nothing where there is no harness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

# Gets the loss, the number of samples and the metrics of a call.
Listener = Callable[[Any, int | None, Mapping[str, Any]], None]
_listeners: list[Listener] = []  # those of the trial that this process runs, if any


def report(*, loss: Any = None, samples: int | None = None, **metrics: Any) -> None:
    """Report the training loss and the samples of a step at this rank, or metrics of an evaluation.

    `loss` is a number or a tensor with one element, which is read later, so that no step waits for
    its device. `samples` are those of this rank; of several calls in a step they are added up, and the
    mean of the losses counts. A metric has a name of your choice, as in `report(accuracy=0.9)`.

    Outside of a trial of the harness it does nothing.
    """
    for listener in _listeners:
        listener(loss, samples, metrics)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Have `listener` called by every `report` within the block."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
