"""One rank of one arm of a gate: trains in its arm's turns, and waits between them.

`harness.gate.pairs` forks it as the module `harness.gate.turn_worker` with the arguments FOLDER
SOCKET ARM. It speaks JSON lines over the socket, so the arm may be of another revision than the gate.
A rank sends

- `{"protocol": PROTOCOL, "side": ARM, "rank": N}` when it starts,
- `{"ready": true, "batch_size": N}` when it is built; the batch size is that of all ranks; a script
  whose samples nobody counts adds `"unit": "steps/s"` and has a batch size of 1,
- `{"seconds": [...], "losses": DIGEST}` when a turn is over, and `{"failure": TEXT}` when it fails,

and receives `{"steps": N}` for each turn. It ends when the connection is cut.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import traceback
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from harness.core.errors import HarnessError, one_line
from harness.core.paths import TrialFolder
from harness.core.processes import die_with_parent
from harness.gate.arms import PROTOCOL
from harness.records.assignment import read_assignment
from harness.sweep.cell import Cell
from harness.training.build import TrialParts
from harness.training.entry import joined, prepare_rank
from harness.training.ranks import Ranks
from harness.training.script import ScriptObserver, execute, observe
from harness.training.state import TrainingState
from harness.training.train import Hooks, Segment, Trainer

FOREVER = 7 * 24 * 3600.0  # seconds that a rank may wait for other ranks, between turns


class TurnSocket:
    """The connection to the gate."""

    def __init__(self, path: str) -> None:
        """Connect to the socket at `path`."""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._lines = self._socket.makefile("r", encoding="utf-8")

    def close(self) -> None:
        """Close the connection."""
        self._lines.close()
        self._socket.close()

    def send(self, **message: Any) -> None:
        """Send a message as a line of JSON."""
        line = json.dumps(message) + "\n"
        self._socket.sendall(line.encode())

    def wait_for_turn(self) -> int:
        """Return the steps of the next turn; raises EOFError when there is none."""
        line = self._lines.readline()
        if not line:
            raise EOFError
        steps: int = json.loads(line)["steps"]
        return steps


class TakingTurns(Hooks):
    """Makes the harness's training loop train in turns and report each turn, without evaluations."""

    evaluates = False

    def __init__(self, turns: TurnSocket) -> None:
        self._turns = turns
        self._turn_start = 0  # the steps that were done when the turn began
        self._turn_stop = 0  # and that will be done when it ends

    def before_segment(self, state: TrainingState, stop: int) -> int:
        """Wait for a turn if the last one is over; no segment goes beyond its turn."""
        if state.step >= self._turn_stop:
            steps = self._turns.wait_for_turn()
            self._turn_start = state.step
            self._turn_stop = state.step + steps
        return min(stop, self._turn_stop)

    def after_segment(self, state: TrainingState, segment: Segment) -> None:
        """Report the step times of a turn that is over, in seconds, and a digest of its losses.

        The gate compares the digests of both arms to see whether they compute the same bits.
        """
        if state.step < self._turn_stop:
            return
        seconds = state.series["seconds"][self._turn_start :]
        losses = self._digest_results(state, self._turn_start)
        self._turns.send(seconds=seconds, losses=losses)

    def _digest_results(self, state: TrainingState, start: int) -> str:
        """Return a digest of the losses of the steps from `start` on."""
        losses = state.series["loss"][start:]
        content = np.asarray(losses, dtype=np.float32).tobytes()
        return hashlib.sha256(content).hexdigest()


class ScriptTurns(TakingTurns):
    """Makes a script train in turns: between two of its steps it waits for the next one."""

    def __init__(self, turns: TurnSocket, observed: ScriptObserver, cell: Cell) -> None:
        """Take turns with a script whose global batch is the cell's unless it reports its own."""
        super().__init__(turns)
        self._observed = observed
        self._cell = cell
        self._is_ready = False

    def before_segment(self, state: TrainingState, stop: int) -> int:
        """Report that the script is ready after its first step, and wait for a turn if the last is over."""
        if not state.step:
            return 1  # in which it builds everything
        if not self._is_ready:
            batch_size = self._cell.axes.batch_size
            unit = self._cell.throughput_unit
            reported = self._observed.samples_per_step
            if reported:
                global_batch = reported * self._observed.ranks.world_size
                batch_size = max(1, round(global_batch))
                unit = "samples/s"
            self._turns.send(ready=True, batch_size=batch_size, unit=unit)
            self._is_ready = True
        return super().before_segment(state, stop)

    def after_segment(self, state: TrainingState, segment: Segment) -> None:
        """Report a turn that is over; the first step comes before all of them."""
        if self._is_ready:
            super().after_segment(state, segment)

    def _digest_results(self, state: TrainingState, start: int) -> str:
        """Return a digest of the losses, or of the parameters where some of them are not known.

        The loss of the last step may be reported only after it, and so after the turn.
        """
        reported = state.series["loss"][start:-1]
        if not reported or np.isnan(reported).any():
            return self._observed.digest_parameters()
        return super()._digest_results(state, start)


def main() -> None:
    """Train in turns until the connection is cut; a failure is reported over it."""
    parser = argparse.ArgumentParser(prog="python -m harness.gate.turn_worker", description=__doc__)
    parser.add_argument("folder", type=Path, help="holds trial.json")
    parser.add_argument("socket")
    parser.add_argument("arm")
    options = parser.parse_args()
    die_with_parent()
    ranks = Ranks.from_environment()
    turns = TurnSocket(options.socket)
    turns.send(protocol=PROTOCOL, side=options.arm, rank=ranks.rank)
    try:
        train_in_turns(TrialFolder(options.folder), ranks, turns)
    except EOFError:
        os._exit(0)  # at once, as in `harness.training.worker`: other ranks may have ended
    except Exception as error:
        traceback.print_exc()
        message = f"{type(error).__name__}: {one_line(error)}"
        turns.send(failure=f"rank {ranks.rank} on {ranks.host}: {message}")
    os._exit(1)


def train_in_turns(folder: TrialFolder, ranks: Ranks, turns: TurnSocket) -> None:
    """Build the trial of `trial.json`, report that it is ready, and train in turns.

    Ends with EOFError when the connection is cut.
    """
    cell = read_assignment(folder.assignment_path).trial.cell
    if cell.workload.is_script:
        run_script_in_turns(folder, ranks, turns)
    with joined(folder, ranks, FOREVER) as (assignment, workload, mesh):
        state = TrainingState()
        parts = TrialParts(assignment, workload, folder, mesh, state)
        trainer = Trainer(parts, state, TakingTurns(turns))
        turns.send(ready=True, batch_size=parts.axes.batch_size)
        trainer.run()
        total_steps = parts.total_steps
        del parts, trainer  # the process group ends after them
    raise RuntimeError(f"trained all of its {total_steps} steps")


def run_script_in_turns(folder: TrialFolder, ranks: Ranks, turns: TurnSocket) -> NoReturn:
    """Run the script of `trial.json` in turns, the first step before all of them.

    By then it has built everything and reported its samples. Raises HarnessError if it ends.
    """
    assignment = prepare_rank(folder)
    observed = ScriptObserver(assignment, folder, ranks, TrainingState())
    observed.hooks = ScriptTurns(turns, observed, assignment.trial.cell)
    with observe(observed):
        execute(assignment, folder)
    raise HarnessError(
        f"{observed.cell.workload.uses} ended after {observed.state.step} steps, before the gate had measured"
        " enough; let it train longer, as with `arguments: --steps {steps}` and `length: 2000 steps`"
    )


if __name__ == "__main__":
    main()
