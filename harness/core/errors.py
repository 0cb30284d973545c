"""What can go wrong by somebody's choice. Everything else keeps its traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class HarnessError(Exception):
    """Shown to the user as one line; `exit_code` is what the command line ends with."""

    exit_code = 1


class BadInput(HarnessError):
    """A spec, profile, data file, record or flag that can't be used: names it, what was found and what is allowed."""

    exit_code = 2


class Inconclusive(HarnessError):
    """What was asked can't be told from what was measured."""

    exit_code = 3


class NonFiniteLoss(HarnessError):
    """The loss became NaN or infinite; `rank` saw it first."""

    def __init__(self, message: str, rank: int = 0) -> None:
        super().__init__(message)
        self.rank = rank


class NotApplied(HarnessError):
    """A setting was asked for and did not take effect: what was asked is not what ran."""


class Interrupted(HarnessError):
    """A signal stopped all ranks at the same step, from which the trial can go on; what a rank's process ends with."""

    exit_code = 75  # EX_TEMPFAIL in sysexits.h


class BadCheckpoint(HarnessError):
    """A checkpoint that is not whole, or not of this trial."""


def did_you_mean(found: object, allowed: Iterable[str]) -> str:
    """The hint that ends an error about a word: the nearest allowed one, then all of them."""
    words = sorted(allowed)
    near = difflib.get_close_matches(str(found), words, n=1, cutoff=0.6)
    return (
        (f"did you mean {near[0]!r}? " if near else "")
        + "allowed: "
        + (", ".join(words) or "nothing")
    )


def one_line(text: object, limit: int = 300) -> str:
    """`text` without line breaks and what can't be printed, and not longer than `limit` characters."""
    flat = "".join(letter for letter in " ".join(str(text).split()) if letter.isprintable())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def last_log_line(log: Path) -> str:
    """The last line of a log that says something, or `none`."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "none"
    return one_line(next((line for line in reversed(lines) if line.strip(" =-")), "none"))


def parse_percentage(text: str, option: str) -> float:
    """0.02 from `2%`; raises BadInput, also for a bare number, which could be meant as either."""
    number, percent, rest = text.partition("%")
    try:
        value = float(number) / 100
    except ValueError:
        value = -1.0
    if rest or not percent or not 0 < value < 1:
        raise BadInput(
            f"{option}: found {text!r}; allowed: a percentage above 0% and below 100%, as in 1% or 0.5%"
        )
    return value
