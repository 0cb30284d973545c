"""Errors that a user can do something about: shown as one line. Everything else keeps its traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class HarnessError(Exception):
    """Base of errors that are shown to the user as one line; the command ends with `exit_code`."""

    exit_code = 1


class BadInput(HarnessError):
    """A spec, profile, data file, record or flag that can't be used.

    The message names the file, the key, what was found and what is allowed.
    """

    exit_code = 2


class Inconclusive(HarnessError):
    """A question that the measurements can't answer."""

    exit_code = 3


class NonFiniteLoss(HarnessError):
    """The loss became NaN or infinite, on `rank` before all others."""

    def __init__(self, message: str, rank: int = 0) -> None:
        super().__init__(message)
        self.rank = rank


class NotApplied(HarnessError):
    """A setting had no effect: what ran is not what the sweep asks for."""


class Interrupted(HarnessError):
    """A signal stopped all ranks at the same step, at which the trial can resume. Ranks exit with its code."""

    exit_code = 75  # EX_TEMPFAIL in sysexits.h


class BadCheckpoint(HarnessError):
    """A checkpoint that is incomplete, or of another trial."""


def did_you_mean(value: object, allowed: Iterable[str]) -> str:
    """Return the hint that ends an error about a word: the nearest allowed word, if one is near, then all of them."""
    choices = sorted(allowed)
    listed = ", ".join(choices) or "nothing"
    nearest = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.6)
    if nearest:
        return f"did you mean {nearest[0]!r}? allowed: {listed}"
    return f"allowed: {listed}"


def one_line(text: object, limit: int = 300) -> str:
    """Return `text` without line breaks and unprintable characters, cut to at most `limit` characters."""
    joined = " ".join(str(text).split())
    flat = "".join(character for character in joined if character.isprintable())
    if len(flat) <= limit:
        return flat
    return flat[: limit - 1] + "…"


def last_log_line(log: Path) -> str:
    """Return the last line of a log that holds more than a rule of = or -, `none` if there is none."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "none"
    for line in reversed(lines):
        if line.strip(" =-"):
            return one_line(line)
    return "none"


def parse_percentage(text: str, option: str) -> float:
    """Return 0.02 for `2%`, for the option of that name.

    Raises BadInput, also for a bare number, which could be meant as a percentage or as a fraction.
    """
    number, percent, remainder = text.partition("%")
    try:
        value = float(number) / 100
    except ValueError:
        value = -1.0
    if remainder or not percent or not 0 < value < 1:
        raise BadInput(
            f"{option}: found {text!r}; allowed: a percentage above 0% and below 100%, as in 1% or 0.5%"
        )
    return value
