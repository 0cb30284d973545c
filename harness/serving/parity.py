"""Compares an exported model with eager mode, sample by sample over a whole test set.

The tolerance follows from eager mode: its largest difference from the same model in fp64, over the
same samples, is the rounding error of this model. Another runtime adds in another order and rounds
about as much; a file with other weights or another computation differs by orders of magnitude more.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from harness.core.errors import BadInput
from harness.core.validation import finite
from harness.records.series import Numbers
from harness.serving.models import Served
from harness.serving.record import ExportParity
from harness.spec.axes import Axes
from harness.training.model import place_batch
from workloads.base import Samples, Workload

# The tolerance in rounding errors of eager mode: the largest of many roundings varies with their
# order.
ROUNDINGS = 10.0


class ComparedModel(nn.Module):
    """Replaces the model in an evaluation: returns the exported model's outputs, and notes differences."""

    def __init__(self, eager: nn.Module, served: Served, exact: nn.Module | None) -> None:
        super().__init__()
        # Not as submodules: an exported graph refuses to be set to evaluation mode.
        self._models = (eager, served, exact)
        self.differences = np.zeros(0)  # of the samples of the last batch
        self.rounding = 0.0  # the largest difference of eager mode from fp64
        self.scale = 0.0  # the largest absolute value in fp64

    def forward(self, *inputs: Tensor) -> Any:
        """Call all models with the same inputs."""
        eager, served, exact = self._models
        expected, structure = tree_flatten(eager(*inputs))
        outputs = served(*inputs)
        for output, reference in zip(outputs, expected, strict=True):
            gap = sample_differences(output, reference, len(self.differences))
            self.differences = np.maximum(self.differences, gap)
        if exact is not None:
            exact_inputs = [_to_fp64(tensor) for tensor in inputs]
            for reference, value in zip(expected, tree_leaves(exact(*exact_inputs)), strict=True):
                self._note_rounding(reference, value)
        return tree_unflatten(outputs, structure)

    def _note_rounding(self, reference: Tensor, exact: Tensor) -> None:
        """Note how far eager mode's output is from fp64 where both are finite.

        The limits of eager mode's type count as infinite: logits are masked with them too
        (`torch.finfo(dtype).min`), and a tolerance that follows from them would allow anything. So would
        one that follows from whole numbers such as predicted classes, where two are nearly tied.
        """
        if not reference.is_floating_point():
            return
        is_counted = exact.isfinite() & (reference.abs() < torch.finfo(reference.dtype).max)
        if is_counted.any():
            expected, value = reference[is_counted].double(), exact[is_counted].double()
            self.rounding = max(self.rounding, float((expected - value).abs().max()))
            self.scale = max(self.scale, float(value.abs().max()))


def sample_differences(output: Tensor, reference: Tensor, samples: int) -> Numbers:
    """Return the largest absolute difference of each sample's outputs, float64, shape (samples,).

    It is infinite where only one of two numbers is finite, and where shapes differ. Outputs without
    a dimension of samples count for all samples.
    """
    if output.shape != reference.shape:
        return np.full(samples, math.inf)
    left, right = output.detach().double(), reference.detach().double()
    is_same = (left == right) | (left.isnan() & right.isnan())
    gap = torch.where(is_same, 0.0, (left - right).abs()).nan_to_num(nan=math.inf, posinf=math.inf)
    if not gap.numel():
        return np.zeros(samples)
    if gap.ndim == 0 or len(gap) != samples:
        return np.full(samples, float(gap.max()))
    by_sample: Numbers = gap.reshape(samples, -1).amax(1).cpu().numpy()
    return by_sample


def _to_fp64(tensor: Tensor) -> Tensor:
    """Return fractions in fp64, and whole numbers as they are."""
    return tensor.double() if tensor.is_floating_point() else tensor


@torch.no_grad()
def compare(
    workload: Workload,
    eager: nn.Module,
    served: Served,
    samples: Samples,
    axes: Axes,
    device: torch.device,
    tolerance: float | None,
) -> ExportParity:
    """Evaluate all of `samples` with both models, in batches of the cell's size.

    `tolerance` is the largest difference that is allowed; None is ROUNDINGS times eager mode's own
    rounding error, and one rounding at the scale of the outputs. Raises BadInput if that can't be
    measured, because the model is in fp64 already.
    """
    dtype = next(eager.parameters()).dtype
    exact = None
    if tolerance is None:
        if dtype == torch.float64:
            raise BadInput(
                "precision fp64: found no higher one to compare with; needed: --tolerance"
            )
        exact = copy.deepcopy(eager).double()
    compared = ComparedModel(eager, served, exact)
    rows, served_rows, differences = [], [], []
    for start in range(0, len(samples), axes.batch_size):
        indices = range(start, min(start + axes.batch_size, len(samples)))
        batch = place_batch(samples.batch(indices), axes, device)
        compared.differences = np.zeros(len(indices))
        rows.append(workload.evaluate(eager, batch).double().cpu())
        served_rows.append(workload.evaluate(compared, batch).double().cpu())
        differences.append(compared.differences)
    if tolerance is None:
        tolerance = ROUNDINGS * compared.rounding + torch.finfo(dtype).eps * compared.scale
    by_sample = np.concatenate(differences)
    return ExportParity(
        samples=len(samples),
        metrics=_metrics(workload, torch.cat(rows)),
        exported_metrics=_metrics(workload, torch.cat(served_rows)),
        largest_difference=finite(float(by_sample.max())),
        tolerance=tolerance,
        disagreeing=np.flatnonzero(~(by_sample <= tolerance)).tolist(),
    )


def _metrics(workload: Workload, rows: Tensor) -> dict[str, float]:
    """Return the finite metrics of some rows; NaN in outputs may leave none."""
    metrics = workload.metrics(rows)
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
