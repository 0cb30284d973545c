"""The training of an MLP or a CNN in JAX, as a loop that takes its turn beside those of torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch import nn

from harness.records.assignment import Assignment
from harness.training.entry import load_workload
from harness.training.ranks import derive_seed, seed_everything
from tests.support.tree import TOP
from workloads.base import load_splits


class JaxLoop:
    """JAX in a process of its own, which rests while it is not its turn.

    It begins with torch's initial parameters, and has the batches of the harness in the same order.
    It computes in double precision where the cell does. As a context, it ends the process. Dropout
    has to be off: no other library draws torch's masks.
    """

    def __init__(self, assignment: Assignment, folder: Path) -> None:
        is_fp64 = assignment.trial.cell.axes.precision == "fp64"
        self.log_path = folder / "stderr.log"
        folder.mkdir(parents=True, exist_ok=True)
        _write_inputs(assignment, folder)
        with self.log_path.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.programs.perf.jax_worker", str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=TOP,
                env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": str(int(is_fp64))},
            )
        self.versions: dict[str, str] = self._read()

    def train(self, steps: int) -> None:
        """Train so many more steps."""
        self._ask({"steps": steps})

    @property
    def losses(self) -> list[float]:
        """Return the loss of every step so far."""
        losses: list[float] = self._ask({})["losses"]
        return losses

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the answer; raises RuntimeError if the process has ended."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        """Return the next answer."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            log = self.log_path.read_text(encoding="utf-8")
            raise RuntimeError(f"the process of JAX has ended: {log.strip()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def largest_difference(losses: Sequence[float], others: Sequence[float]) -> float:
    """Return the largest difference of two losses of one step, as a share of the second one.

    Only steps that both have count.
    """
    count = min(len(losses), len(others))
    values, references = np.asarray(losses[:count]), np.asarray(others[:count])
    return float(np.max(np.abs(values - references) / references))


def _write_inputs(assignment: Assignment, folder: Path) -> None:
    """Write what the process trains with, as the harness would begin the same trial."""
    trial = assignment.trial
    workload = load_workload(assignment)
    samples = load_splits(workload).train
    images, labels = samples.batch(range(len(samples)))
    seed_everything(trial.seed)
    model = workload.build_model()
    dtype = np.float64 if trial.cell.axes.precision == "fp64" else np.float32
    parameters = {name: value.numpy().astype(dtype) for name, value in model.state_dict().items()}
    recipe = {
        "model": trial.cell.workload.uses,
        "batch_size": trial.cell.axes.batch_size,
        "order_seed": derive_seed(trial.seed),
    }
    (folder / "recipe.json").write_text(json.dumps(recipe), encoding="utf-8")
    np.savez(folder / "parameters.npz", **parameters)
    np.savez(
        folder / "arrays.npz",
        images=images.numpy().astype(dtype),
        labels=labels.numpy(),
        learning_rates=np.asarray(_learning_rates(assignment, model), dtype=dtype),
    )


def _learning_rates(assignment: Assignment, model: nn.Module) -> list[float]:
    """Return the learning rate of each step, as torch's schedule has them."""
    workload = load_workload(assignment)
    optimizer = workload.optimizer(model)
    steps = assignment.trial.cell.length.in_steps(0)  # the length is in steps
    schedule = workload.schedule(optimizer, steps)
    if schedule is None:
        return [optimizer.param_groups[0]["lr"]] * steps
    rates = []
    for _ in range(steps):
        rates.append(float(schedule.get_last_lr()[0]))
        optimizer.step()  # without gradients; a schedule warns if no step came before its own
        schedule.step()
    return rates
