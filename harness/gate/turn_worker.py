"""One rank of one side: trains so many steps when it is told to, and waits meanwhile.

`torchrun -m harness.gate.turn_worker FOLDER SOCKET SIDE`. It speaks JSON lines over the socket, so that the side can be of
another revision than whoever gives the turns.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness.core.errors import one_line
from harness.core.paths import TrialFolder
from harness.core.processes import die_with_parent
from harness.records.restore import restore
from harness.spec.cell import Assignment
from harness.training.loader import Fetched
from harness.training.ranks import Ranks, choose_device, process_group
from harness.training.train import Trace, Training
from harness.training.worker import load_workload

PROTOCOL = 1
FOREVER = 7 * 24 * 3600.0  # seconds that a rank may wait for the others, who wait for their turn


class Turns:
    """The line to whoever gives the turns."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.lines = self.socket.makefile("r", encoding="utf-8")

    def close(self) -> None:
        self.lines.close()
        self.socket.close()

    def tell(self, **words: Any) -> None:
        self.socket.sendall((json.dumps(words) + "\n").encode())

    def wait(self) -> int:
        """The steps of the next turn; raises EOFError when there is none."""
        line = self.lines.readline()
        if not line:
            raise EOFError
        return int(json.loads(line)["steps"])


class TurnTraining(Training):
    """The harness's own loop, block by block; it evaluates nothing."""

    turns: Turns
    left = 0  # steps of this turn
    begun = 0  # the step that the turn began with

    def _stretch(self, batches: Iterator[Fetched], stop: int) -> None:
        if not self.left:
            self.left, self.begun = self.turns.wait(), self.step
        before = self.step
        super()._stretch(batches, min(stop, self.step + self.left))
        self.left -= self.step - before
        if not self.left:
            losses = np.asarray(self.trace.losses[self.begun :], dtype=np.float32)
            digest = hashlib.sha256(losses.tobytes()).hexdigest()
            self.turns.tell(seconds=self.trace.step_seconds[self.begun :], losses=digest)

    def _evaluate(self) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.gate.turn_worker", description=__doc__)
    parser.add_argument("folder", type=Path, help="holds trial.json")
    parser.add_argument("socket")
    parser.add_argument("side")
    given = parser.parse_args()
    die_with_parent()
    ranks = Ranks.from_environment()
    turns = Turns(given.socket)
    turns.tell(protocol=PROTOCOL, side=given.side, rank=ranks.rank)
    try:
        play(TrialFolder(given.folder), ranks, turns)
    except EOFError:
        os._exit(0)  # as `harness.training.worker`: nothing must wait for other ranks
    except Exception as error:
        traceback.print_exc()
        turns.tell(
            failure=f"rank {ranks.rank} on {ranks.host}: {type(error).__name__}: {one_line(error)}"
        )
    os._exit(1)


def play(folder: TrialFolder, ranks: Ranks, turns: Turns) -> None:
    """Build what `trial.json` says, say so, and train in turn; raises EOFError when the line is cut."""
    assignment = restore(Assignment, json.loads(folder.assignment_path.read_text(encoding="utf-8")))
    torch.set_num_threads(assignment.trial.cell.axes.num_threads)
    device = choose_device(assignment.device, ranks)
    needed = assignment.trial.cell.axes.strategy != "single"
    with process_group(ranks, device, needed=needed, timeout=FOREVER):
        training = TurnTraining(
            assignment, load_workload(assignment), folder, ranks, device, Trace()
        )
        training.turns = turns
        turns.tell(ready=True)
        training.run()
    raise RuntimeError(f"trained all of its {training.steps} steps")


if __name__ == "__main__":
    main()
