"""Delivers a sweep to MLflow from a separate process, while this one runs trials.

Importing MLflow takes seconds and a delivery tens of milliseconds, which no trial waits for. The disk
is the queue: the process looks for records that are new. Run as a program,
`python -P -m harness.tracking.follow RESULTS FOLDER`, the module is that process. It delivers until
its standard input is closed, then everything once more, and ends with an exit code of `EXIT_CODES`;
what is wrong is its output. A hiccup of the tracker ends nothing: the next delivery brings what the
last one did not.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from harness.core.errors import BadInput, HarnessError, StorageError, one_line
from harness.core.import_path import import_variables, module_command
from harness.core.paths import Results, SweepFolder
from harness.core.processes import die_with_parent, end_process_group, parent_variables
from harness.tracking.connect import TrackerDown
from harness.tracking.tracker import Tracker, load_libraries

LOWEST_PRIORITY = 19  # of `nice`: trials that are measured come first
MIN_SECONDS = 5.0  # between two deliveries: short trials share one
MAX_SHARE = 0.05  # of the time that deliveries may take
MAX_SECONDS = 60.0  # between two deliveries, however long the last one took
FINISH_TIMEOUT = 1800.0  # seconds for the last delivery, which brings everything
OUTPUT_BYTES = 8192  # of the process's output, which is a line
EXIT_CODES = {0: None, 1: TrackerDown, 4: StorageError}  # what the last delivery has ended with
URI_VARIABLE = (
    "MLFLOW_TRACKING_URI"  # not an argument: `ps` shows those, and it may have a password
)


class Follower:
    """A process that delivers a sweep while this process runs its trials."""

    def __init__(self, results: Results, folder: SweepFolder, uri: str | None) -> None:
        """Prepare to deliver to the MLflow store `uri`, by default the results folder's database.

        Raises BadInput for a URI that no store can have.
        """
        self.tracker = Tracker(results, uri)
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, which loads MLflow at once, and return without waiting for it."""
        uri = "" if self.tracker.is_local else self.tracker.uri
        self.process = subprocess.Popen(
            [
                *module_command(sys.executable, "harness.tracking.follow"),
                str(self.tracker.results.path),
                str(self.folder.path),
            ],
            env={**os.environ, **import_variables(), **parent_variables(), URI_VARIABLE: uri},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def finish(self) -> None:
        """Have everything delivered, with the verdicts, and wait until that is done.

        This process delivers if that one has ended otherwise. Raises TrackerDown and StorageError.
        """
        if self.process is None:
            self.tracker.deliver(self.folder)
            return
        try:
            output, _ = self.process.communicate(timeout=FINISH_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise TrackerDown(
                f"MLflow: waited {FINISH_TIMEOUT:g} s for the process that delivers;"
                " harness collect delivers the rest"
            ) from None
        if self.process.returncode not in EXIT_CODES:
            self.tracker.deliver(self.folder)
            return
        error = EXIT_CODES[self.process.returncode]
        if error is not None:
            raise error(output.decode(errors="replace").strip())

    def close(self) -> None:
        """End the process."""
        if self.process is None:
            return
        end_process_group(self.process)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        self.process = None


def main() -> None:
    """Deliver until standard input is closed, and then everything."""
    die_with_parent()
    os.setpriority(os.PRIO_PROCESS, 0, LOWEST_PRIORITY)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not be taken for the answer
    load_libraries()
    results, folder = Results(Path(sys.argv[1])), SweepFolder(Path(sys.argv[2]))
    tracker = Tracker(results, os.environ[URI_VARIABLE] or None)
    deliver_new(tracker, folder)
    try:
        if folder.recorded_ids():
            tracker.deliver(folder)
    except Exception as error:
        text = str(error)
        if not isinstance(error, HarnessError):  # whatever MLflow and its HTTP client raise
            text = f"MLflow: {type(error).__name__}: {one_line(error)}"
        print(text[:OUTPUT_BYTES], file=answers, flush=True)
        sys.exit(4 if isinstance(error, StorageError) else 1)


def deliver_new(tracker: Tracker, folder: SweepFolder) -> None:
    """Deliver the trials that end until standard input is closed, at a pace that takes little time.

    What fails is delivered with the next ones.
    """
    delivered: dict[str, int] = {}  # the times of records by their trials
    wait = MIN_SECONDS
    while not select.select([sys.stdin], [], [], wait)[0]:  # nobody writes, so it is its end
        records = recorded(folder)
        new = [trial for trial, changed in records.items() if delivered.get(trial) != changed]
        wait = MIN_SECONDS
        if not new:
            continue
        began = time.monotonic()
        with suppress(Exception):  # the last delivery says what is wrong
            tracker.deliver_trials(folder, new)
            delivered |= records
        wait = min(MAX_SECONDS, max(MIN_SECONDS, (time.monotonic() - began) / MAX_SHARE))


def recorded(folder: SweepFolder) -> dict[str, int]:
    """Return when the record of each trial was written, in nanoseconds, by the trial."""
    times = {}
    with suppress(BadInput):
        for trial in folder.recorded_ids():
            with suppress(OSError):
                times[trial] = folder.trial_folder(trial).record_path.stat().st_mtime_ns
    return times


if __name__ == "__main__":
    main()
