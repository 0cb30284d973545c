"""Distances of two trials over their steps, and their plot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from harness.records.files import write_record
from harness.records.record import RankResult
from harness.records.series import Series
from harness.render.chart import png_bytes
from harness.render.divergence import draw_divergence
from harness.reproduce.snapshot import snapshot_path
from harness.reproduce.trajectory import Distance, course_of_runs, loss_distances


def write_run(folder: Path, losses: list[float], weight: float) -> None:
    """Leave what a run of one rank leaves, with a snapshot after step 2."""
    folder.mkdir()
    series = Series.pack(np.asarray(losses, dtype=np.float32))
    result = RankResult(rank=0, host="node1", pid=1, entered_at=0.0, loss=series)
    write_record(folder / "rank0.json", result)
    tensors = {"weight": torch.tensor([weight, 1.0]), "steps": torch.tensor(2)}
    save_file(tensors, snapshot_path(folder, 2))


def test_losses_and_parameters_are_apart_by_so_much(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [2.0, 1.0, 4.0], 1.0)
    write_run(tmp_path / "b", [2.0, 1.0 + 2**-23, 3.0], 1.0 + 2**-22)
    course = course_of_runs(tmp_path / "a", tmp_path / "b", (1, 1))
    assert course.losses[0] == Distance(step=1, relative=0.0, ulp=0)
    assert course.losses[1].ulp == 1
    assert course.losses[2].relative == pytest.approx(0.25)
    (parameters,) = course.parameters
    assert (parameters.step, parameters.ulp) == (2, 2)
    assert parameters.relative == pytest.approx(2**-22 / 2**0.5)
    figure = draw_divergence(course, "Distance of two trials: lr (0.1, 0.2)" * 5, 2)
    assert png_bytes(figure).startswith(b"\x89PNG")


def test_with_other_numbers_of_ranks_the_mean_loss_counts() -> None:
    one = np.array([[2.0, 3.0]], dtype=np.float32)
    two = np.array([[1.0, 3.0, 5.0], [3.0, 5.0, 5.0]], dtype=np.float32)
    distances = loss_distances(one, two)
    assert [distance.relative for distance in distances] == pytest.approx([0.0, 0.25])
