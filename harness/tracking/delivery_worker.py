"""Delivers to MLflow what another process asks for: `python -m harness.tracking.delivery_worker SOCKET
RESULTS URI`.

Each request is a `DeliveryRequest`, and the answer to it a `Delivery` or the error that a delivery
has raised. It ends when the other process does, or closes the connection.
"""

from __future__ import annotations

import socket
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from harness.core.errors import HarnessError, StorageError, one_line
from harness.core.paths import Results
from harness.tracking.connect import StoreLocked, TrackerDown
from harness.tracking.deliverer import DeliveryRequest
from harness.tracking.tracker import Delivery, Tracker


def main() -> None:
    """Connect to SOCKET, and deliver whatever is asked for there."""
    path, results, uri = sys.argv[1:]
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(path)
    tracker = Tracker(Results(Path(results)), uri)
    with Connection(stream.detach()) as connection:
        serve(tracker, connection)


def serve(tracker: Tracker, connection: Connection[Any, Any]) -> None:
    """Answer requests until the connection is closed."""
    while True:
        try:
            request = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        connection.send(answer(tracker, request))


def answer(tracker: Tracker, request: DeliveryRequest) -> Delivery | HarnessError:
    """Return what a delivery did, or the error that it has raised."""
    try:
        return tracker.deliver_trials(request.folder, request.trials, in_passing=request.in_passing)
    except StoreLocked as error:
        return StoreLocked(error)
    except StorageError as error:
        return StorageError(error)
    except HarnessError as error:
        return TrackerDown(error)
    except Exception as error:  # whatever MLflow and its HTTP client raise
        traceback.print_exc()
        return TrackerDown(f"MLflow: {type(error).__name__}: {one_line(error)}")


if __name__ == "__main__":
    main()
