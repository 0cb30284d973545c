"""Measures how far two trials are apart over their steps: tensors of snapshots, and losses.

One tensor is read at a time, so the memory needed does not grow with the model's depth.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from harness.analysis.rungs import TensorDistance, root_mean_square
from harness.core.errors import HarnessError
from harness.core.validation import finite
from harness.reproduce.snapshot import list_snapshots
from harness.reproduce.values import differing_elements, read_tensor


def distances(folder: Path, reference: Path, exact: Path | None) -> list[TensorDistance]:
    """Return the distance of every tensor of every snapshot, in the order of the steps.

    The arguments are folders of trials: the trial to judge, the reference, and the reference in fp64,
    None without one. With another batch size, an epoch has another number of steps, so the steps
    with snapshots of both are compared. Raises HarnessError if there are none, and for other
    tensors.
    """
    snapshots, references = list_snapshots(folder), list_snapshots(reference)
    common = [step for step in snapshots if step in references]
    if not common:
        raise HarnessError(
            f"found snapshots of steps {list(snapshots)}; needed: some of {list(references)}, as of"
            " the reference"
        )
    measured = []
    for step in common:
        exact_path = None if exact is None else list_snapshots(exact)[step]
        measured += _distances_at(step, snapshots[step], references[step], exact_path)
    return measured


def _distances_at(
    step: int, path: Path, reference_path: Path, exact_path: Path | None
) -> list[TensorDistance]:
    """Return the distances of all tensors of the snapshots after one step."""
    names = tensor_names(path)
    if names != tensor_names(reference_path):
        raise HarnessError(f"step {step}: found other tensors than the reference has")
    measured = []
    for name in names:
        exact = None if exact_path is None else read_tensor(exact_path, name)
        tensor = read_tensor(path, name)
        reference = read_tensor(reference_path, name)
        measured.append(distance(step, name, tensor, reference, exact))
    return measured


def distance(
    step: int,
    name: str,
    tensor: Tensor,
    reference: Tensor,
    exact: Tensor | None,
) -> TensorDistance:
    """Return how far a tensor is from the reference's, and both from the one in fp64."""
    is_alike = tensor.dtype == reference.dtype and tensor.shape == reference.shape
    differing = differing_elements(tensor, reference) if is_alike else tensor.numel()
    reference_dtype = None
    if reference.dtype != tensor.dtype:
        reference_dtype = _name_of(reference.dtype)
    error = reference_error = scale = None
    is_finite = True
    if exact is not None and exact.is_floating_point() and exact.shape == tensor.shape:
        exact = exact.double()
        # Torch subtracts, as numpy warns of the difference of two infinities.
        error = _rms(tensor.double() - exact)
        reference_error = _rms(reference.double() - exact)
        scale = _rms(exact)
        is_finite = error is not None
    return TensorDistance(
        step=step,
        name=name,
        dtype=_name_of(tensor.dtype),
        shape=tuple(tensor.shape),
        differing=differing,
        error=error,
        reference_error=reference_error,
        scale=scale,
        is_finite=is_finite,
        reference_dtype=reference_dtype,
    )


def _rms(tensor: Tensor) -> float | None:
    """Return the root mean square of a tensor's elements, None if it is not finite."""
    return finite(root_mean_square(tensor.numpy()))


def _name_of(dtype: torch.dtype) -> str:
    """Return what torch calls a type, without `torch.`."""
    return str(dtype).removeprefix("torch.")


def tensor_names(path: Path) -> list[str]:
    """Return the names of a snapshot's tensors, sorted."""
    with safe_open(path, framework="pt") as file:
        return sorted(file.keys())
