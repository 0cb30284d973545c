"""Takes snapshots: parameters, buffers and workload state of a trial at a few steps.

Rank 0 writes one file a step. Steps are spaced evenly on a logarithmic scale, since errors grow
fastest at the start, and include the last step.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.torch import save_file
from torch import Tensor

from harness.reproduce.recorder import Recorder
from harness.training.build import TrialParts
from harness.training.digests import dense_copy, named_tensors, workload_state
from harness.training.state import TrainingState
from harness.training.train import Segment

MOST_SNAPSHOTS = 6
# Of all snapshots of a trial together: 2 GiB in fp32, 4 GiB in fp64.
MOST_ELEMENTS = 2**29


def snapshot_steps(total_steps: int, elements: int) -> list[int]:
    """Return the steps after which snapshots are taken, ascending, including the last one.

    `elements` is the size of a snapshot; a large model has fewer snapshots.
    """
    most = MOST_ELEMENTS // max(1, elements)
    count = min(MOST_SNAPSHOTS, max(1, most))
    if count == 1:
        return [total_steps]
    spaced = np.geomspace(1, total_steps, count).round()
    unique = np.unique(spaced.astype(int))
    steps: list[int] = unique.tolist()
    return steps


def snapshot_path(folder: Path, step: int) -> Path:
    """Return the path of the snapshot after a step."""
    return folder / f"snapshot{step}.safetensors"


def list_snapshots(folder: Path) -> dict[int, Path]:
    """Return the snapshots in a trial's folder by step, ascending."""
    paths = {}
    for path in folder.glob("snapshot*.safetensors"):
        paths[int(path.stem.removeprefix("snapshot"))] = path
    return dict(sorted(paths.items()))


class SnapshotRecorder(Recorder):
    """Takes snapshots in addition to the trace."""

    def __post_init__(self) -> None:
        super().__post_init__()
        elements = sum(tensor.numel() for _, tensor in _named_tensors(self.parts))
        self._snapshot_steps = snapshot_steps(self.parts.total_steps, elements)

    def before_segment(self, state: TrainingState, stop: int) -> int:
        """Return the next step with a snapshot, if it comes before `stop`."""
        later = [step for step in self._snapshot_steps if step > state.step]
        next_stop = min([stop, *later])
        return super().before_segment(state, next_stop)

    def after_segment(self, state: TrainingState, segment: Segment) -> None:
        super().after_segment(state, segment)
        if state.step not in self._snapshot_steps:
            return
        tensors = {}
        # Rank 0 writes the unsharded tensors, but every rank must take part.
        for name, tensor in _named_tensors(self.parts):
            tensors[name] = dense_copy(tensor)
        if self.parts.mesh.rank == 0:
            path = snapshot_path(self._folder, state.step)
            save_file(tensors, path)


def _named_tensors(parts: TrialParts) -> Sequence[tuple[str, Tensor]]:
    """Return parameters, buffers and the workload's state by name; every rank must call this."""
    tensors: list[tuple[str, Tensor]] = []
    tensors += parts.model.named_parameters()
    tensors += parts.model.named_buffers()
    for name, tensor in named_tensors(workload_state(parts.workload)):
        tensors.append((f"workload state {name}", tensor))
    return tensors
