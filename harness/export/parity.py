"""Compares an exported model with eager mode over a whole test set.

The tolerance follows from eager mode: its largest difference from the same model in fp64, over the
same samples, is the rounding error of this model. Another runtime adds in another order and rounds
about as much; a file with other weights or another computation differs by orders of magnitude more.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from harness.export.calls import TrainedModel
from harness.export.models import Served
from harness.export.record import ExportParity
from workloads.base import Workload

# The tolerance in rounding errors of eager mode: the largest of many roundings varies with their
# order.
ROUNDINGS = 10.0


class Comparison:
    """Replaces what the model returns by what the exported model does, and notes differences."""

    def __init__(self, served: Served, exact: nn.Module) -> None:
        self.served = served
        self.exact = exact  # the model in fp64
        self.largest_difference = 0.0
        self.rounding = 0.0  # the largest difference of eager mode from fp64
        self.scale = 0.0  # the largest absolute value in fp64

    def replace_output(self, model: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> Any:
        """Return what the exported model returns for the same inputs; a hook of the model."""
        expected, structure = tree_flatten(output)
        outputs = self.served(*inputs)
        for value, reference in zip(outputs, expected, strict=True):
            difference = largest_difference(value, reference)
            self.largest_difference = max(self.largest_difference, difference)
        exact_inputs = []
        for tensor in inputs:
            if tensor.is_floating_point():
                tensor = tensor.double()
            exact_inputs.append(tensor)
        exact = tree_leaves(self.exact(*exact_inputs))
        for reference, value in zip(expected, exact, strict=True):
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
        limit = torch.finfo(reference.dtype).max
        is_counted = exact.isfinite() & (reference.abs() < limit)
        if not is_counted.any():
            return
        expected = reference[is_counted].double()
        value = exact[is_counted].double()
        rounding = (expected - value).abs().max()
        scale = value.abs().max()
        self.rounding = max(self.rounding, float(rounding))
        self.scale = max(self.scale, float(scale))


def largest_difference(output: Tensor, reference: Tensor) -> float:
    """Return the largest absolute difference of two outputs.

    It is infinite where only one of two numbers is finite, and where shapes differ.
    """
    if output.shape != reference.shape:
        return math.inf
    left = output.detach().double()
    right = reference.detach().double()
    if left.numel() == 0:
        return 0.0
    are_both_nan = left.isnan() & right.isnan()
    is_same = (left == right) | are_both_nan
    differences = (left - right).abs()
    gaps = torch.where(is_same, 0.0, differences)
    gaps = gaps.nan_to_num(nan=math.inf, posinf=math.inf)
    return float(gaps.max())


@torch.no_grad()
def compare(trained: TrainedModel, served: Served) -> ExportParity:
    """Evaluate the whole test set with both models, in batches of the cell's size.

    Allowed are ROUNDINGS times eager mode's own rounding error, and one rounding at the scale of the
    outputs.
    """
    exact = copy.deepcopy(trained.model).double()
    comparison = Comparison(served, exact)
    rows = []
    served_rows = []
    count = len(trained.samples)
    size = trained.axes.batch_size
    for start in range(0, count, size):
        indices = range(start, min(start + size, count))
        rows.append(trained.evaluate(indices))
        with trained.model.register_forward_hook(comparison.replace_output):
            served_rows.append(trained.evaluate(indices))
    parameter = next(trained.model.parameters())
    eps = torch.finfo(parameter.dtype).eps
    return ExportParity(
        samples=count,
        metrics=_metrics(trained.workload, torch.cat(rows)),
        exported_metrics=_metrics(trained.workload, torch.cat(served_rows)),
        largest_difference=comparison.largest_difference,
        tolerance=ROUNDINGS * comparison.rounding + eps * comparison.scale,
    )


def _metrics(workload: Workload, rows: Tensor) -> dict[str, float]:
    """Return the finite metrics of some rows; NaN in outputs may leave none."""
    finite = {}
    for name, value in workload.metrics(rows).items():
        if math.isfinite(value):
            finite[name] = float(value)
    return finite
