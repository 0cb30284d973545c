"""Delivers trials to MLflow while another process runs more of them.

`python -P -m harness.tracking.delivery_worker`. The first line of its input says what to deliver:

    {"results": FOLDER, "uri": TRACKING_URI, "folder": FOLDER OF THE SWEEP}

and each further one which trials have ended. `is_last` is true in the last one, which has all:

    {"trials": [ID, ...], "is_last": BOOLEAN}

Each delivery is answered by a line, `{"is_last": BOOLEAN}` or `{"error": TEXT, "is_of_disk": BOOLEAN}`.
It ends after the last delivery, after an error, and with the process that has started it.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from harness.core.errors import HarnessError, StorageError, one_line
from harness.core.paths import Results, SweepFolder
from harness.core.processes import die_with_parent
from harness.tracking.connect import StoreLocked
from harness.tracking.pace import pace_of_deliveries
from harness.tracking.tracker import Tracker, load_libraries

LOWEST_PRIORITY = 19  # of `nice`: trials that are measured come first


def main() -> None:
    """Deliver what the process that has started this one asks for."""
    die_with_parent()
    os.setpriority(os.PRIO_PROCESS, 0, LOWEST_PRIORITY)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not be taken for an answer
    setup = json.loads(sys.stdin.readline())
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    # Read at once, so that the sender never waits.
    threading.Thread(target=read_requests, args=[requests], daemon=True).start()
    load_libraries()
    tracker = Tracker(Results(Path(setup["results"])), setup["uri"])
    serve(tracker, SweepFolder(Path(setup["folder"])), requests, answers)


def read_requests(requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Put all requests into the queue; the input is closed only by the end of its sender."""
    for line in sys.stdin:
        requests.put(json.loads(line))


def serve(
    tracker: Tracker,
    folder: SweepFolder,
    requests: queue.SimpleQueue[dict[str, Any]],
    answers: TextIO,
) -> None:
    """Deliver until the last delivery is made, or one has failed."""
    try:
        for is_last in deliveries(tracker, folder, requests):
            print(json.dumps({"is_last": is_last}), file=answers, flush=True)
    except HarnessError as error:
        content = {"error": str(error), "is_of_disk": isinstance(error, StorageError)}
        print(json.dumps(content), file=answers, flush=True)
    except Exception as error:  # whatever MLflow and its HTTP client raise
        traceback.print_exc()
        text = f"MLflow: {type(error).__name__}: {one_line(error)}"
        print(json.dumps({"error": text, "is_of_disk": False}), file=answers, flush=True)


def deliveries(
    tracker: Tracker, folder: SweepFolder, requests: queue.SimpleQueue[dict[str, Any]]
) -> Iterator[bool]:
    """Deliver trials at a pace that takes little time, and yield after each whether it is the last.

    Trials of a database that another program has locked follow with the next ones.
    """
    pace = pace_of_deliveries()
    undelivered: dict[str, None] = {}
    while True:
        try:
            request = requests.get(timeout=pace.seconds_left() if undelivered else None)
        except queue.Empty:
            request = {"trials": []}
        undelivered |= dict.fromkeys(request["trials"])
        if request.get("is_last"):
            tracker.deliver(folder, undelivered)
            yield True
            return
        if undelivered and pace.is_due():
            try:
                pace.add(tracker.deliver(folder, undelivered, in_passing=True).seconds)
                undelivered = {}
            except StoreLocked:
                pace.add(0.0)
            yield False


if __name__ == "__main__":
    main()
