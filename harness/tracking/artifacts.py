"""Collects the files that go with a trial's run in MLflow, without secrets and of bounded size.

They are written into a temporary folder, which is then uploaded as a whole: secrets have to be
removed from texts on the way, and the files of the trial stay as they are.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from harness.core.paths import TrialFolder
from harness.records.record import Record, reseal

LOG_BYTES = 2**20  # at most, of the end of each log
TRACE_BYTES = 2**26  # at most, of each of a profiler's traces
RECORD_FILE = "record.json"
ENVIRONMENT_FILE = "environment.json"


def collect_files(
    record: Record, trial_folder: TrialFolder, target: Path, clean: Callable[[str], str]
) -> None:
    """Write the files that go with a trial's run into the folder `target`.

    They are the record (`recall` reads it back), the environment, the end of each log, and what the
    profiler left. `clean` removes secrets from a text. A trial that failed early lacks some of
    them.
    """
    text = trial_folder.record_path.read_text(encoding="utf-8")
    cleaned = clean(text)
    if cleaned != text:
        cleaned = reseal(cleaned)  # or `recall` would take it for a record that somebody changed
    (target / RECORD_FILE).write_text(cleaned, encoding="utf-8")
    if record.rank0:
        text = json.dumps(asdict(record.rank0.environment), indent=1) + "\n"
        (target / ENVIRONMENT_FILE).write_text(clean(text), encoding="utf-8")
    for log in sorted(trial_folder.log_folder.glob("*.log")):
        (target / "logs").mkdir(exist_ok=True)
        (target / "logs" / log.name).write_text(clean(read_tail(log)), encoding="utf-8")
    _collect_profile(trial_folder, target, clean)


def _collect_profile(trial_folder: TrialFolder, target: Path, clean: Callable[[str], str]) -> None:
    """Copy a profiler's tables and traces, which only trials with `--profile` have.

    A trace that is too large is replaced by a note that says where it is.
    """
    for file in sorted(trial_folder.trace_folder.glob("rank*")):
        destination = target / trial_folder.trace_folder.name / file.name
        destination.parent.mkdir(exist_ok=True)
        size = file.stat().st_size
        if file.suffix == ".txt":
            destination.write_text(clean(file.read_text(encoding="utf-8")), encoding="utf-8")
        elif size <= TRACE_BYTES:
            shutil.copyfile(file, destination)
        else:
            note = destination.with_name(f"{file.name}.left-out.txt")
            note.write_text(
                f"{file.name} has {size} bytes, more than the {TRACE_BYTES} that are uploaded;"
                f" it is in {trial_folder.path.name}/{trial_folder.trace_folder.name}\n",
                encoding="utf-8",
            )


def read_tail(log: Path) -> str:
    """Return the last LOG_BYTES of a log, from the beginning of a line.

    A log that is cut begins with a line that says so. Bytes that are no UTF-8 are replaced.
    """
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_BYTES))
        content = file.read()
    text = content.decode("utf-8", errors="replace")
    if size <= LOG_BYTES:
        return text
    whole_lines = text.partition("\n")[2]
    return f"[the last {LOG_BYTES} of {size} bytes]\n{whole_lines}"
