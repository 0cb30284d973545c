"""Compares an exported model with eager mode, sample by sample over a whole test set.

The tolerance follows from eager mode: its largest difference from the same model in fp64, over the
same samples, is the rounding error of this model. Another runtime adds in another order and rounds
about as much; a file with other weights or another computation differs by orders of magnitude more.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from harness.core.errors import BadInput, one_line
from harness.core.validation import finite
from harness.records.series import Numbers
from harness.serving.exporters import Served
from harness.serving.record import ExportParity, SampleDifference
from harness.spec.axes import Axes
from harness.training.model import place_batch
from workloads.base import Samples, Workload

# The tolerance in rounding errors of eager mode: the largest of many roundings varies with their
# order.
ROUNDINGS = 10.0
LISTED = 20  # samples that are named


@dataclass
class ExportComparison:
    """A model in eager mode, an exported one, and their differences so far."""

    eager: nn.Module
    served: Served
    exact: nn.Module | None  # the same model in fp64; None: its rounding is not needed
    differences: list[Numbers] = field(default_factory=list)  # of the samples of each batch
    rounding: float = 0.0  # the largest difference of eager mode from fp64
    scale: float = 0.0  # the largest absolute value in fp64

    def note_rounding(self, reference: Tensor, exact: Tensor) -> None:
        """Note how far eager mode's output is from fp64 where both are finite.

        The limits of eager mode's type count as infinite: logits are masked with them too
        (`torch.finfo(dtype).min`), and a tolerance that follows from them would allow anything.

        Whole numbers, such as predicted classes, are left out. Where two classes are nearly tied, fp64 may
        predict the other one, and a tolerance that follows from their numbers would allow anything too.
        """
        if not reference.is_floating_point():
            return
        is_counted = exact.isfinite() & (reference.abs() < torch.finfo(reference.dtype).max)
        if not is_counted.any():
            return
        expected, value = reference[is_counted].double(), exact[is_counted].double()
        self.rounding = max(self.rounding, float((expected - value).abs().max()))
        self.scale = max(self.scale, float(value.abs().max()))


class Compared(nn.Module):
    """Replaces the model in the evaluation of one batch, and returns the exported model's outputs."""

    def __init__(self, comparison: ExportComparison, samples: int) -> None:
        super().__init__()
        # Not as a submodule: an exported graph refuses to be set to evaluation mode.
        self._comparison = (comparison,)
        self.differences = np.zeros(samples)

    def forward(self, *inputs: Tensor) -> Any:
        """Call both models with the same inputs, and note how far their outputs differ."""
        (comparison,) = self._comparison
        expected, structure = tree_flatten(comparison.eager(*inputs))
        outputs = comparison.served(*inputs)
        for output, reference in zip(outputs, expected, strict=True):
            gap = sample_differences(output, reference, len(self.differences))
            self.differences = np.maximum(self.differences, gap)
        if comparison.exact is not None:
            exact_outputs = tree_leaves(comparison.exact(*map(_to_fp64, inputs)))
            for reference, exact in zip(expected, exact_outputs, strict=True):
                comparison.note_rounding(reference, exact)
        return tree_unflatten(outputs, structure)


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
    measured, because the model does not compute in fp64 or is in fp64 already.
    """
    comparison = ExportComparison(eager=eager, served=served, exact=None)
    if tolerance is None:
        if next(eager.parameters()).dtype == torch.float64:
            raise BadInput(
                "precision fp64: found no higher one to compare with; needed: --tolerance"
            )
        comparison.exact = copy.deepcopy(eager).double()
    rows, served_rows = [], []
    for start in range(0, len(samples), axes.batch_size):
        indices = range(start, min(start + axes.batch_size, len(samples)))
        batch = place_batch(samples.batch(indices), axes, device)
        rows.append(workload.evaluate(eager, batch).double().cpu())
        compared = Compared(comparison, len(indices))
        served_rows.append(_evaluate(workload, compared, batch, comparison).double().cpu())
        comparison.differences.append(compared.differences)
    allowed = tolerance
    if allowed is None:
        dtype = next(eager.parameters()).dtype
        allowed = ROUNDINGS * comparison.rounding + torch.finfo(dtype).eps * comparison.scale
    return _summarize(
        workload,
        torch.cat(rows),
        torch.cat(served_rows),
        np.concatenate(comparison.differences),
        allowed,
        comparison.rounding if tolerance is None else None,
    )


def _evaluate(
    workload: Workload, compared: Compared, batch: tuple[Tensor, ...], comparison: ExportComparison
) -> Tensor:
    """Evaluate a batch; raises BadInput if it is the model in fp64 that can't."""
    try:
        return workload.evaluate(compared, batch)
    except Exception as error:
        if comparison.exact is None or not _fails(comparison.exact, batch, workload):
            raise
        problem = one_line(error)
        raise BadInput(
            f"the model does not compute in fp64 ({problem}); needed: --tolerance"
        ) from error


def _fails(exact: nn.Module, batch: tuple[Tensor, ...], workload: Workload) -> bool:
    """Return whether evaluating the model in fp64 alone raises an error."""
    try:
        workload.evaluate(exact, tuple(map(_to_fp64, batch)))
    except Exception:
        return True
    return False


def _to_fp64(tensor: Tensor) -> Tensor:
    """Return fractions in fp64, and whole numbers as they are."""
    return tensor.double() if tensor.is_floating_point() else tensor


def _summarize(
    workload: Workload,
    rows: Tensor,
    served_rows: Tensor,
    differences: Numbers,
    allowed: float,
    rounding: float | None,
) -> ExportParity:
    """Summarize the rows of both models and the differences of all samples."""
    beyond = np.flatnonzero(~(differences <= allowed))
    changed = changed_predictions(workload, rows, served_rows)
    disagreements = [
        SampleDifference(index=int(index), difference=finite(float(differences[index])))
        for index in beyond[:LISTED]
    ]
    return ExportParity(
        samples=len(rows),
        metrics=_metrics(workload, rows),
        exported_metrics=_metrics(workload, served_rows),
        largest_difference=finite(float(differences.max())),
        rounding_error=rounding,
        tolerance=allowed,
        disagreeing=len(beyond),
        disagreements=disagreements,
        changed=len(changed),
        changed_indices=changed[:LISTED],
    )


def changed_predictions(workload: Workload, rows: Tensor, served_rows: Tensor) -> Sequence[int]:
    """Return the indices of samples whose predicted class changed; none for what is no classifier."""
    before, after = workload.predictions(rows), workload.predictions(served_rows)
    if before is None or after is None:
        return []
    indices: list[int] = (before[:, 1] != after[:, 1]).nonzero().flatten().tolist()
    return indices


def _metrics(workload: Workload, rows: Tensor) -> dict[str, float]:
    """Return the finite metrics of some rows; NaN in outputs may leave none."""
    metrics = workload.metrics(rows)
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
