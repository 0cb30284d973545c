"""Advises on errors of torch whose messages name a symptom and no cause."""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path

import torch

import harness
from harness.core.errors import one_line

MESSAGE_LENGTH = 200  # characters of an error that are shown
HARNESS = Path(harness.__file__).parent
TORCH = Path(torch.__file__).parent
STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))

USE_FLOAT_INPUTS = (
    "convert the inputs to float32 where the samples are made; divide pixels of 0 to 255 by 255"
    " as well"
)
USE_LONG_LABELS = "cross_entropy takes classes as int64: labels.long()"
USE_LABELS_IN_RANGE = (
    "labels count from 0 to the number of classes less one: renumber them, or give the last layer"
    " as many outputs as there are classes"
)
READ_SEVERAL_CLASSES = (
    "look at how labels are read, and at what was filtered out: a model that always gives the same"
    " answer would be right"
)
USE_INDICES = "an embedding takes token numbers: int64, and smaller than its number of rows"
USE_RESHAPE = (
    "use .reshape() or .flatten(1): .view() needs samples whose values follow each other in memory"
)
KEEP_GRAPH = (
    "something disconnects the loss from the parameters: .detach(), .item(), torch.no_grad(), argmax,"
    " or a loss that is computed in NumPy"
)
USE_DEVICE_OF_INPUTS = (
    "create tensors on the device of the inputs (device=x.device), or register them with"
    " register_buffer, so that they move with the model"
)

# Patterns of torch's messages, and their usual causes. The first that matches counts.
ADVICE = (
    (r"on the same device|is not on the expected device", USE_DEVICE_OF_INPUTS),
    (r"target dtype to be Long|expected scalar type Long", USE_LONG_LABELS),
    (r"Target -?\d+ is out of bounds|found label -?\d+; allowed: 0 to", USE_LABELS_IN_RANGE),
    (r"argument #1 'indices'|index out of range in self", USE_INDICES),
    (r"must have the same dtype|should be the same|expected scalar type", USE_FLOAT_INPUTS),
    (r"view size is not compatible", USE_RESHAPE),
    (r"does not require grad", KEEP_GRAPH),
)
LOOK_AT_SHAPES = "compare the shape of a batch with what the model's layers expect"


def describe(error: Exception) -> str:
    """Return an error's type and message in one line, and the line of the workload that caused it."""
    message = one_line(f"{type(error).__name__}: {error}", MESSAGE_LENGTH)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_of_workload(frame.filename):
            return f"{message} ({Path(frame.filename).name}:{frame.lineno}, in {frame.name})"
    return message


def _is_of_workload(filename: str) -> bool:
    """Return whether a file may be a user's: not Python's, torch's or the harness's."""
    path = Path(filename)
    if path.is_relative_to(HARNESS) or path.is_relative_to(TORCH):
        return False
    is_installed = "site-packages" in path.parts
    return path.exists() and (is_installed or not path.is_relative_to(STANDARD_LIBRARY))


def advise(error: Exception) -> str:
    """Return what to do about an error that the workload raised."""
    message = str(error)
    for pattern, advice in ADVICE:
        if re.search(pattern, message):
            return advice
    if "shape" in message or "size" in message:
        return LOOK_AT_SHAPES
    return "run the code of that line alone, with one batch of the training set"
