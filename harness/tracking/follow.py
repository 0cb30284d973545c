"""Delivers sweeps to MLflow from a separate process, while this one runs trials or watches jobs.

Importing MLflow takes seconds and a delivery tens of milliseconds, which no trial waits for. The disk
is the queue: the process looks for records that are new. Run as a program,
`python -P -m harness.tracking.follow RESULTS FOLDER…`, the module is that process. It delivers until
its standard input is closed, then everything once more, and ends with exit code 1 where that fails;
what is wrong is its output. A hiccup of the tracker ends nothing: the next delivery brings what the
last one did not.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from harness.core.errors import HarnessError, one_line
from harness.core.import_path import import_variables, module_command
from harness.core.paths import Results, SweepFolder
from harness.core.processes import die_with_parent, end_process_group, parent_variables
from harness.tracking.tracker import Tracker

LOWEST_PRIORITY = 19  # of `nice`: trials that are measured come first
MIN_SECONDS = 5.0  # between two deliveries: short trials share one
MAX_SHARE = 0.05  # of the time that deliveries may take
MAX_SECONDS = 60.0  # between two deliveries, however long the last one took
FINISH_TIMEOUT = 1800.0  # seconds for the last delivery, which brings everything
# Not an argument: `ps` shows those, and it may have a password.
URI_VARIABLE = "MLFLOW_TRACKING_URI"


class Follower:
    """A process that delivers sweeps within a `with` block, and everything at its end.

    Nothing that goes wrong with it raises: the records are on disk.
    """

    def __init__(
        self,
        results: Results,
        folders: Sequence[SweepFolder],
        uri: str | None,
    ) -> None:
        """Start the process, which loads MLflow at once, and return without waiting for it.

        `uri` is that of an MLflow store, by default the results folder's database. Raises BadInput for a
        URI that no store can have.
        """
        Tracker(results, uri)
        self.trouble: str | None = None  # what MLflow failed with, once the block has ended
        folder_paths = [str(folder.path) for folder in folders]
        command = module_command(sys.executable, "harness.tracking.follow")
        self.process = subprocess.Popen(
            [*command, str(results.path), *folder_paths],
            env={
                **os.environ,
                **import_variables(),
                **parent_variables(),
                URI_VARIABLE: uri or "",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Have everything delivered, with the verdicts, also after an error; wait until that is done."""
        try:
            output, _errors = self.process.communicate(timeout=FINISH_TIMEOUT)
            if self.process.returncode:
                reason = output.decode(errors="replace").strip()
                self.trouble = reason or (
                    f"MLflow: the process that delivers ended with {self.process.returncode};"
                    " harness collect delivers the rest"
                )
        except subprocess.TimeoutExpired:
            self.trouble = (
                f"MLflow: waited {FINISH_TIMEOUT:g} s for the process that delivers;"
                " harness collect delivers the rest"
            )
        finally:
            end_process_group(self.process)


def main() -> None:
    """Deliver until standard input is closed, and then everything."""
    die_with_parent()
    folders = [SweepFolder(Path(name)) for name in sys.argv[2:]]
    os.setpriority(os.PRIO_PROCESS, 0, LOWEST_PRIORITY)
    # This process leads a session, and Linux may share its cores out by sessions.
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(LOWEST_PRIORITY), encoding="ascii")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not be taken for the answer
    with suppress(ImportError):  # a delivery says what is wrong
        import mlflow  # noqa: F401
    results = Results(Path(sys.argv[1]))
    tracker = Tracker(results, os.environ[URI_VARIABLE] or None)
    deliver_new(tracker, folders)
    try:
        for folder in folders:
            if folder.recorded_ids():
                tracker.deliver(folder)
    except Exception as error:
        text = str(error)
        if not isinstance(error, HarnessError):  # a defect, which fails no run
            text = f"MLflow: {type(error).__name__}: {one_line(error)}"
        print(text, file=answers, flush=True)
        sys.exit(1)


def deliver_new(tracker: Tracker, folders: Sequence[SweepFolder]) -> None:
    """Deliver the trials that end until standard input is closed, at a pace that takes little time.

    What fails is delivered with the next ones.
    """
    delivered: set[Path] = set()  # paths of records, of which each attempt has its own
    wait = MIN_SECONDS
    while True:
        readable, _, _ = select.select([sys.stdin], [], [], wait)
        if readable:  # nobody writes, so it is its end
            return
        began = time.monotonic()
        for folder in folders:
            new = {}
            for trial in folder.recorded_ids():
                path = folder.trial_folder(trial).record_path
                if path not in delivered:
                    new[path] = trial
            with suppress(Exception):  # the last delivery says what is wrong
                if new:
                    tracker.deliver_trials(folder, new.values())
                delivered.update(new)
        delivery_seconds = time.monotonic() - began
        wait = min(MAX_SECONDS, max(MIN_SECONDS, delivery_seconds / MAX_SHARE))


if __name__ == "__main__":
    main()
