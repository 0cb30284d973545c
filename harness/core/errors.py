"""Errors that a user can do something about: shown as one line.

Everything else keeps its traceback. The command line ends with the exit code of the error's class:
1 a failed trial or gate, 2 bad input, 3 inconclusive, 75 interrupted.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable

MAX_MESSAGE = 1000  # characters of an error
ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")  # such as torch's for bold text


class HarnessError(Exception):
    """Base of errors that are shown to the user as one line; the command ends with `exit_code`."""

    exit_code = 1

    def __init__(self, message: object = "") -> None:
        """Make the error of a message, which may quote files, paths and other programs.

        Its line breaks and control characters are removed, wherever it is shown then.
        """
        super().__init__(one_line(message, MAX_MESSAGE))


class BadInput(HarnessError):
    """A spec, profile, data file, record or flag that can't be used.

    The message names the file, the key, what was found and what is allowed.
    """

    exit_code = 2


class BadFile(BadInput):
    """A file that the harness has written and can't use: damaged, changed, or of another schema.

    The message ends with the remedy. A command that reads many such files may name one of them,
    leave it out and go on.
    """


class FileUnavailable(BadFile):
    """A file that the file system does not hand out now; it may well be whole.

    Unlike other bad files, it must not be removed or replaced for that.
    """


class Inconclusive(HarnessError):
    """A question that the measurements can't answer.

    They are too few, or vary too much. Not a failure: CI may decide by the exit code whether that
    blocks a change.
    """

    exit_code = 3


class NonFiniteLoss(HarnessError):
    """The loss became NaN or infinite, on `rank` before all others."""

    def __init__(self, message: str, rank: int = 0) -> None:
        """Make the error; all ranks raise it, `rank` is the one that caused it."""
        super().__init__(message)
        self.rank = rank


class NotApplied(HarnessError):
    """A setting had no effect: what ran is not what the sweep asks for.

    Without it the trial would count as a measurement of that setting, and an equal number would
    look like a result.
    """


class CodeChanged(HarnessError):
    """The code of a workload was edited between the plan of a trial and its start.

    The trial would be recorded as one of a cell that it is not.
    """


class DataChanged(HarnessError):
    """A data file of a workload changed between the plan of a trial and its end.

    The trial would be recorded as one of a cell that it is not.
    """


class Interrupted(HarnessError):
    """A signal stopped all ranks at the same step, at which the trial can resume.

    Ranks exit with its code, which tells the launcher that this is no failure.
    """

    exit_code = 75  # EX_TEMPFAIL in sysexits.h: try again later


class StorageError(HarnessError):
    """A disk that is full, over its quota or failing; the message names the file and what is free.

    See `harness.core.files`.
    """


MOST_LISTED = 24  # words beside one that is near


def did_you_mean(value: object, allowed: Iterable[str], listed_words: Collection[str] = ()) -> str:
    """Return the hint that ends an error about a word: the nearest allowed word, then all of them.

    As in `did you mean 'eager'? allowed: compile, eager`; without the question if no word is near,
    and without the list if it is long. Where too many words are allowed, `listed_words` are listed.
    """
    choices = sorted(allowed)
    hint = f"allowed: {', '.join(listed_words or choices) or 'nothing'}"
    nearest = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.6)
    if not nearest:
        return hint
    question = f"did you mean {nearest[0]!r}?"
    return question if len(choices) > MOST_LISTED else f"{question} {hint}"


def one_line(text: object, limit: int = 300) -> str:
    """Return `text` in one line of at most `limit` characters, all of them printable.

    Texts of other libraries, and of files, may hold escape sequences that change a terminal. A text
    that was cut ends in an ellipsis.
    """
    plain = ESCAPE_SEQUENCE.sub("", str(text))
    joined = " ".join(plain.split())
    flat = "".join(character for character in joined if character.isprintable())
    if len(flat) <= limit:
        return flat
    return flat[: limit - 1] + "…"


def parse_percentage(text: str, option: str) -> float:
    """Return 0.02 for `2%` and for `2`; `option` is the name of the option for errors.

    Raises BadInput, also for a number below 1 without the sign, which could be meant as a percentage
    or as a fraction.
    """
    number, percent, remainder = text.partition("%")
    try:
        percentage = float(number)
    except ValueError:
        percentage = -1.0  # out of bounds, so refused below with the same message
    allowed = "allowed: a percentage above 0% and below 100%, as in 1% or 0.5%"
    if remainder or not 0 < percentage < 100:
        raise BadInput(f"{option}: found {text!r}; {allowed}")
    if not percent and percentage < 1:
        meant = f"did you mean '{100 * percentage:g}%' or '{percentage:g}%'?"
        raise BadInput(f"{option}: found {text!r}; {meant} {allowed}")
    return percentage / 100
