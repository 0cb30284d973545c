"""Shows `harness status logs`: what a rank of a trial wrote, or what started the ranks.

It works while the trial runs and after it, for local trials as for those of jobs, because all logs
are in the folder of the trial. They are printed as they are, without markup, so that the output can
be piped. On a terminal, control characters show as symbols.
"""

from __future__ import annotations

import codecs
import difflib
import os
import secrets
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep

from harness.core.errors import BadInput, did_you_mean
from harness.core.logs import open_log
from harness.core.paths import Results, SweepFolder, TrialFolder
from harness.records.store import is_locked

FOLLOW_SECONDS = 0.5  # between two looks at a growing file
CHUNK_BYTES = 2**20  # of a log that are in memory at a time
# ESC shows as ␛, and so on: Unicode has a picture of each control character below the space, and
# none of those from 0x7f to 0x9f. Line breaks, tabs and a progress bar's returns are harmless.
CONTROL_PICTURES = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\r\t"}
CONTROL_PICTURES |= dict.fromkeys(range(0x7F, 0xA0), "\N{REPLACEMENT CHARACTER}")
MAX_SUGGESTIONS = 3  # ids of trials that an error names


def find(results: Results, trial_id: str, sweep: str | None) -> TrialFolder:
    """Return the folder of a trial, in the sweep that is named, or in any if `sweep` is None.

    Raises BadInput unless exactly one sweep has a trial of this id.
    """
    if sweep is None:
        root = results.runs
        pattern = "*/*/trial.json"
    else:
        root = results.sweep_folder(sweep).path
        pattern = "*/trial.json"
    # A trial that has started has a `trial.json`; its logs may be empty yet.
    trial_ids: set[str] = set()
    matches: list[Path] = []
    for path in root.glob(pattern):
        trial_ids.add(path.parent.name)
        if path.parent.name == trial_id:
            matches.append(path.parent)
    if not trial_ids:
        raise BadInput(
            f"{trial_id}: no such trial in {root}; allowed: none, as no trial has started; set"
            " --results to look elsewhere"
        )
    if not matches:
        ids = sorted(trial_ids)
        # A low cutoff: the hash in an id makes the ids of similar cells rather unlike.
        near = difflib.get_close_matches(trial_id, ids, n=MAX_SUGGESTIONS, cutoff=0.3)
        examples = ", ".join(near or ids[:MAX_SUGGESTIONS])
        raise BadInput(
            f"{trial_id}: no such trial in {root}; allowed: a trial that has started, such as"
            f" {examples}"
        )
    if len(matches) > 1:
        sweeps = ", ".join(sorted(folder.parent.name for folder in matches))
        raise BadInput(
            f"{trial_id}: found in several sweeps, {sweeps}; allowed: name one of them with --sweep"
        )
    return TrialFolder(matches[0])


def show(trial_folder: TrialFolder, rank: int | None, *, follow: bool) -> None:
    """Print a rank's log, or without a rank the launcher's.

    With `follow`, print what is added until this attempt has ended, or until nobody runs its sweep any
    more. A log that is empty is reported on standard error, with those that are not.

    Raises BadInput if there is no such log, and if it leads out of the trial's folder.
    """
    path = trial_folder.launch_log if rank is None else trial_folder.rank_log(rank)
    # With `follow`, a log that is not there yet is waited for: its rank may just be starting.
    if not os.path.lexists(path) and not follow:
        logs = trial_folder.log_folder.glob("*.log")
        raise BadInput(f"{path}: no such log; {did_you_mean(path.name, _names(logs))}")
    printer = _Printer(path)
    with _without_ci_commands():
        printer.print_new()
        while follow and _is_running(trial_folder):
            sleep(FOLLOW_SECONDS)
            printer.print_new()
    if printer.position == 0:
        logs = trial_folder.log_folder.glob("*.log")
        filled = _names(log for log in logs if log.lstat().st_size > 0)
        listed = ", ".join(filled) or "none"
        print(f"harness: {path} is empty; logs with content: {listed}", file=sys.stderr)


def _names(logs: Iterable[Path]) -> list[str]:
    """Return the names of files, in order."""
    return sorted(log.name for log in logs)


def _is_running(trial_folder: TrialFolder) -> bool:
    """Return whether the attempt that started last has left no record yet, and still may.

    A record that is older than the assignment is that of an earlier attempt. Without a job, there
    will be none once no process holds the sweep: the command that ran the trial was killed.
    """
    record_path = trial_folder.record_path
    if record_path.exists():
        assigned_at = trial_folder.assignment_path.stat().st_mtime_ns
        if record_path.stat().st_mtime_ns >= assigned_at:
            return False
    sweep_folder = SweepFolder(trial_folder.path.parent)
    return is_locked(sweep_folder) or sweep_folder.jobs_path.exists()


@contextmanager
def _without_ci_commands() -> Iterator[None]:
    """Have GitHub's runner take no line of the log for a command, such as `::error::`.

    Anything that a rank prints could otherwise annotate the pull request or set variables of the
    job. The runner heeds no command until it reads a word that nobody can foresee.
    """
    if os.environ.get("GITHUB_ACTIONS") != "true":
        yield
        return
    word = secrets.token_hex(16)
    print(f"::stop-commands::{word}", flush=True)
    try:
        yield
    finally:
        print(f"\n::{word}::", flush=True)


class _Printer:
    """Prints what a log has got since it was last looked at, whatever its size."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = 0  # the byte up to which it is printed
        # It keeps half a character for the next time. What is no UTF-8 is replaced.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def print_new(self) -> None:
        """Print the log from where it was left; one that does not exist yet is empty.

        Raises BadInput for what is no file in the trial's folder.
        """
        try:
            with open_log(self.path) as file:
                file.seek(self.position)
                while chunk := file.read(CHUNK_BYTES):
                    self.position += len(chunk)
                    sys.stdout.write(_printable(self._decoder.decode(chunk)))
        except FileNotFoundError:
            return
        except OSError as error:
            problem = error.strerror or str(error)
            raise BadInput(
                f"{self.path}: {problem}; allowed: a file in the trial's folder"
            ) from None
        sys.stdout.flush()


def _printable(text: str) -> str:
    """Return the text as it is for a pipe, and without control sequences for a terminal.

    A program that a rank runs could otherwise change the terminal of whoever looks at its log.
    """
    return text.translate(CONTROL_PICTURES) if sys.stdout.isatty() else text
