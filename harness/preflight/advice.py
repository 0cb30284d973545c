"""Says what to do about errors of torch whose own words name a symptom and no cause."""

from __future__ import annotations

import re

from harness.core.errors import one_line

MESSAGE_LENGTH = 200  # characters of an error that are shown

USE_FLOAT_INPUTS = (
    "convert the inputs to float32 where the samples are made; pixels of 0 to 255 are to be"
    " divided by 255 as well"
)
USE_LONG_LABELS = "cross_entropy takes classes as int64: labels.long()"
USE_LABELS_IN_RANGE = (
    "labels count from 0 to the number of classes less one: renumber them, or give the last layer"
    " as many outputs as there are classes"
)
USE_INDICES = "an embedding takes token numbers: int64, and smaller than its number of rows"
USE_RESHAPE = (
    "use .reshape() or .flatten(1): .view() needs samples whose values follow each other in memory"
)
KEEP_GRAPH = (
    "something cuts the loss off from the parameters: .detach(), .item(), torch.no_grad(), argmax,"
    " or a loss that is computed in NumPy"
)
USE_DEVICE_OF_INPUTS = (
    "create tensors on the device of the inputs (device=x.device), or register them with"
    " register_buffer, so that they move with the model"
)

# Patterns of torch's messages, and what usually is behind them. The first that matches counts.
ADVICE = (
    (r"on the same device|is not on the expected device", USE_DEVICE_OF_INPUTS),
    (r"target dtype to be Long|expected scalar type Long", USE_LONG_LABELS),
    (r"Target -?\d+ is out of bounds", USE_LABELS_IN_RANGE),
    (r"argument #1 'indices'|index out of range in self", USE_INDICES),
    (r"must have the same dtype|should be the same|expected scalar type", USE_FLOAT_INPUTS),
    (r"view size is not compatible", USE_RESHAPE),
    (r"does not require grad", KEEP_GRAPH),
)
LOOK_AT_SHAPES = "compare the shape of a batch with what the model's layers expect"


def describe(error: Exception) -> str:
    """Return an error's type and message in one line."""
    return one_line(f"{type(error).__name__}: {error}", MESSAGE_LENGTH)


def advise(error: Exception) -> str:
    """Return what to do about an error that the workload raised."""
    message = str(error)
    for pattern, advice in ADVICE:
        if re.search(pattern, message):
            return advice
    if "shape" in message or "size" in message:
        return LOOK_AT_SHAPES
    return "the traceback is in the log that -v names"
