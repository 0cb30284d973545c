"""Checks of a new model: what it registers, where it computes, and what its outputs depend on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from harness.core.errors import BadInput, NotApplied
from harness.core.text import listed
from harness.preflight.advice import USE_DEVICE_OF_INPUTS, advise, describe
from harness.preflight.probe import Probe
from harness.preflight.report import CheckFinding, passed, problem, skipped
from harness.training.evaluate import check_names
from harness.training.model import check_training_mode
from harness.training.ranks import seed_everything
from workloads.base import Batch

RELATIVE_TOLERANCE = 1e-3  # of rows that are computed in another order
ABSOLUTE_TOLERANCE = 1e-4
TOLERATED_ROWS = 0.1  # the share of rows that may differ: near ties flip a predicted class
EVALUATED = 512  # test samples that metrics are computed of
NOT_A_NUMBER = (
    "look for 0/0, log of a negative number, or a mean over nothing in evaluate and metrics"
)
REGISTERED_BY_TORCH = ("_modules", "_parameters", "_buffers")


def check_forward(probe: Probe) -> CheckFinding:
    """Check that a loss can be computed, and that it is a finite scalar with a gradient."""
    try:
        loss = probe.loss(probe.build(), probe.batch)
    except Exception as error:  # of the user's code, whose message is shown
        return problem(describe(error), advise(error))
    if loss.ndim:
        return problem(
            f"the loss has shape {tuple(loss.shape)}", "return the mean over the batch: a scalar"
        )
    if not loss.isfinite():
        return problem(
            f"the loss of a new model is {loss.item()}",
            "look for log(0), a division by 0, or inputs that are not scaled",
        )
    if not loss.requires_grad:
        return problem("the loss has no gradient", advise(RuntimeError("does not require grad")))
    return passed(f"the loss of a new model is {loss.item():.4g}")


def check_registered(probe: Probe) -> CheckFinding:
    """Check that every layer and parameter is registered, so that it is trained and moved."""
    model = probe.build()
    hidden = sorted(set(_unregistered(model)))
    if hidden:
        return problem(
            f"{listed(hidden)} holds layers that are not registered",
            "put layers into nn.ModuleList or nn.ModuleDict, parameters into nn.ParameterList: a"
            " plain list hides them from parameters(), to() and state_dict()",
        )
    return passed(f"{len(list(model.modules()))} modules are registered")


def _unregistered(model: nn.Module) -> Iterator[str]:
    """Yield the attributes that hold modules or parameters which the model does not register."""
    registered = {id(member) for member in (*model.modules(), *model.parameters())}
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute in REGISTERED_BY_TORCH:
                continue
            items: Iterable[object] = ()
            if isinstance(value, dict):
                items = value.values()
            elif isinstance(value, list | tuple | set):
                items = value
            for item in items:
                if isinstance(item, nn.Module | nn.Parameter) and id(item) not in registered:
                    yield f"{name}.{attribute}".removeprefix(".")


class DeviceMismatch(RuntimeError):
    """An operation got tensors of two devices."""


class DeviceWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises DeviceMismatch for an operation on tensors of two devices.

    Kernels of the device `meta`, which compute shapes only, do not all raise an error. Scalars may be
    of any device, and copies may cross devices.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the operation if its tensors are of one device."""
        devices = set()
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor) and leaf.ndim:
                devices.add(leaf.device.type)
        if len(devices) > 1 and func is not torch.ops.aten.copy_.default:
            raise DeviceMismatch(f"{func} got tensors on {' and '.join(sorted(devices))}")
        return func(*args, **(kwargs or {}))


def check_devices(probe: Probe) -> CheckFinding:
    """Check that the model computes where its parameters and inputs are.

    No GPU is needed: the model is moved to the device `meta`, which has shapes and no values.
    """
    try:
        model = probe.build().to("meta")
        batch = tuple(tensor.to("meta") for tensor in probe.batch)
        with DeviceWatch():  # type: ignore[no-untyped-call]
            probe.workload.loss(model, batch)
    except DeviceMismatch as error:
        return problem(
            f"the model makes tensors that stay on the CPU: {error}".replace("meta", "the GPU"),
            USE_DEVICE_OF_INPUTS,
        )
    except Exception as error:  # the code reads values, which `meta` does not have
        return skipped(f"the loss depends on values: {describe(error)}")
    return passed("everything is computed where the inputs are")


def check_layout(probe: Probe) -> CheckFinding:
    """Check that samples may have any layout in memory.

    A sliced or transposed batch has gaps between its rows, which `view` does not support.
    """
    model = probe.build()
    strided = tuple(functional.pad(tensor, (0, 1))[..., :-1] for tensor in probe.batch)
    try:
        probe.rows(model, strided)
    except Exception as error:
        return problem(f"samples with gaps in memory: {describe(error)}", advise(error))
    return passed("samples may have any layout in memory")


def check_independence(probe: Probe) -> CheckFinding:
    """Check that the output for a sample does not depend on the others in its batch.

    It does where dimensions are confused, as by a `view` that takes samples for features. Batch norm
    uses the whole batch too, but not in evaluation.
    """
    model = probe.build()
    rows = probe.rows(model, probe.batch)
    if len(rows) != len(probe.batch[0]):
        return problem(
            f"evaluate() returned {len(rows)} rows for {len(probe.batch[0])} samples",
            "return one row for each sample of the batch",
        )
    order = torch.arange(len(rows)).flip(0)
    reversed_rows = probe.rows(model, _select(probe.batch, order))
    half = torch.arange(len(rows) // 2)
    half_rows = probe.rows(model, _select(probe.batch, half))
    for compared, expected in ((reversed_rows, rows[order]), (half_rows, rows[half])):
        if _share_of_rows_that_differ(compared, expected) > TOLERATED_ROWS:
            return problem(
                "what the model says of a sample depends on the other samples of its batch",
                "look for view, reshape, softmax, mean or norm over dimension 0, the one that"
                " counts samples",
            )
    return passed("each sample is computed for itself")


def _select(batch: Batch, indices: Tensor) -> Batch:
    """Return some samples of a batch, in the order of `indices`."""
    return tuple(tensor[indices.to(tensor.device)] for tensor in batch)


def _share_of_rows_that_differ(a: Tensor, b: Tensor) -> float:
    """Return the share of rows of two matrices that differ by more than rounding."""
    if not len(a):
        return 0.0
    close = torch.isclose(a, b, rtol=RELATIVE_TOLERANCE, atol=ABSOLUTE_TOLERANCE, equal_nan=True)
    differs = ~close.reshape(len(a), -1).all(dim=1)
    return float(differs.double().mean())


def check_evaluation(probe: Probe) -> CheckFinding:
    """Check that an evaluation draws no random numbers and changes nothing."""
    model = probe.build()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    seed_everything(probe.seed, 1)
    rows = probe.rows(model, probe.batch)
    seed_everything(probe.seed, 2)
    again = probe.rows(model, probe.batch)
    changed = [
        name for name, buffer in model.named_buffers() if not torch.equal(buffer, buffers[name])
    ]
    if changed:
        return problem(
            f"an evaluation changes {listed(changed)}",
            "a part of the model is in training mode while it is evaluated: call no .train() in"
            " forward or evaluate, and pass training=self.training to functions",
        )
    if not torch.equal(rows, again):
        return problem(
            "two evaluations of the same samples differ",
            "dropout is active while it is evaluated: use nn.Dropout, or pass training=self.training"
            " to functional.dropout",
        )
    return passed("the same samples are always evaluated alike")


def check_metrics(probe: Probe) -> CheckFinding:
    """Check that the metrics have the target, and that a new model has a value of it.

    Of a large test set, samples at equal distances are evaluated.
    """
    size = len(probe.splits.test)
    indices = [position * size // EVALUATED for position in range(EVALUATED)]
    if size <= EVALUATED:
        indices = list(range(size))
    rows = probe.test_rows(probe.build(), indices)
    seen = f"{len(indices):,} test samples"
    if bool(rows.reshape(len(rows), -1).isnan().all(dim=0).any()):
        return problem(f"evaluate() returns NaN for all of {seen}", NOT_A_NUMBER)
    try:
        metrics = probe.workload.metrics(rows)
    except Exception as error:  # some are not defined over a part of the test set
        if len(indices) < size:
            return skipped(f"metrics() of {seen}: {describe(error)}")
        raise
    try:
        check_names(probe.workload, metrics)
    except BadInput as error:
        return problem(str(error), "return it from metrics(), or let `target` name another one")
    value = metrics[probe.workload.target.name]
    if math.isnan(value):
        return problem(f"{probe.workload.target.name} of {seen} is NaN", NOT_A_NUMBER)
    return passed(f"{probe.workload.target.name} of {seen} is {value:.4g} in a new model")


def check_mode(probe: Probe) -> CheckFinding:
    """Check that the model is built to be trained, and that a loss changes no module's mode."""
    model = probe.build()
    try:
        check_training_mode(probe.workload, model)
    except NotApplied as error:
        return problem(str(error), "call model.train() in build_model, before any part is frozen")
    before = {name: part.training for name, part in model.named_modules()}
    probe.loss(model, probe.batch)
    now = {name: part.training for name, part in model.named_modules()}
    switched = [name or "the model" for name in before if now[name] != before[name]]
    if switched:
        return problem(
            f"the loss switches {listed(switched)} between training and evaluation mode",
            "call no .train() or .eval() in loss or forward: dropout and batch norm would train as if"
            " they were evaluated, or the other way round",
        )
    frozen = [name or "the model" for name, is_training in before.items() if not is_training]
    if frozen:
        return passed(
            f"computing a loss switches nothing; built in evaluation mode: {listed(frozen)}"
        )
    return passed("computing a loss leaves the model in training mode")
