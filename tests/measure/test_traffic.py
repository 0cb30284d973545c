"""Memory traffic, against bytes that were counted by hand."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.measure.traffic import Traffic, bytes_per_sample, optimizer_bytes, tensor_bytes
from tests.support.line import LineFit, Options
from workloads.mlp import MLP
from workloads.options import MLPOptions
from workloads.sources import Digits

F32 = 4  # bytes


class Sum(LineFit):
    """A linear layer whose outputs are summed: as few operators as can be."""

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        result: Tensor = model(batch[0]).sum()
        return result


def counted(call: Callable[[], Any]) -> int:
    with Traffic() as traffic:
        call()
    return int(traffic.bytes)


class TestOperators:
    def test_a_product_moves_its_three_matrices(self) -> None:
        a, b = torch.ones(3, 5), torch.ones(5, 7)
        assert counted(lambda: a @ b) == F32 * (3 * 5 + 5 * 7 + 3 * 7)

    def test_views_move_nothing(self) -> None:
        a = torch.ones(6, 4)
        assert (
            counted(
                lambda: (
                    a.t(),
                    a.view(24),
                    a[1:3],
                    a.expand(2, 6, 4),
                    a.detach(),
                    a.chunk(2),
                    a.unbind(),
                )
            )
            == 0
        )

    def test_an_operand_that_is_used_twice_is_read_once(self) -> None:
        a = torch.ones(10)
        assert counted(lambda: a * a) == F32 * (10 + 10)

    def test_in_place_reads_and_writes(self) -> None:
        a, b = torch.ones(10), torch.ones(10)
        assert counted(lambda: a.add_(b)) == F32 * (10 + 10 + 10)

    def test_overwriting_reads_nothing_of_what_was_there(self) -> None:
        a, b = torch.ones(10), torch.ones(10, dtype=torch.float64)
        assert counted(lambda: a.zero_()) == F32 * 10
        assert counted(lambda: a.bernoulli_(0.5)) == F32 * 10
        assert counted(lambda: a.copy_(b)) == F32 * 10 + 8 * 10
        assert counted(lambda: torch.add(a, a, out=torch.ones(10))) == F32 * (10 + 10) + F32 * 10

    def test_factories_write_what_they_fill_and_reserving_memory_moves_nothing(self) -> None:
        a = torch.ones(10)
        assert counted(lambda: torch.ones_like(a)) == F32 * 10
        assert counted(lambda: (torch.empty_like(a), torch.empty(10), a.new_empty(3))) == 0

    def test_a_gather_reads_the_rows_it_takes(self) -> None:
        table, rows = torch.ones(1000, 8), torch.tensor([3, 5])
        assert counted(lambda: nn.functional.embedding(rows, table)) == 2 * 8 + 2 * F32 * 2 * 8

    def test_broadcasting_reads_an_element_once(self) -> None:
        expanded = torch.ones(1).expand(50)
        assert tensor_bytes(expanded) == F32
        assert tensor_bytes(torch.ones(0, 3)) == 0
        assert counted(lambda: expanded * 2) == F32 * (1 + 50)

    def test_lists_of_tensors(self) -> None:
        a, b = torch.ones(4), torch.ones(6)
        assert counted(lambda: torch.cat([a, b])) == 2 * F32 * 10
        assert counted(lambda: torch._foreach_add_([a, b], 1.0)) == 2 * F32 * 10


def test_of_a_linear_layer() -> None:
    """Forward: W, b, x and y by addmm, y and the sum by sum. Backward: one 1 becomes expanded, then
    dW = gᵀx reads g (one element) and x, writes W's size; db sums g. The sum's first gradient is a
    ones_like of a scalar."""
    batch, n, m = 16, 8, 3
    module = nn.Linear(n, m)
    forward = (n * m + m + batch * n + batch * m) + (batch * m + 1)
    backward = 1 + (1 + batch * n + n * m) + (1 + m)
    measured = bytes_per_sample(Sum(Options(), None).loss, module, (torch.ones(batch, n),))
    assert measured == F32 * (forward + backward) / batch


def test_of_the_mlp() -> None:
    """Without dropout, written out operator by operator."""
    workload = MLP(MLPOptions(dropout=0.0), Digits())
    workload.splits()
    module, batch = workload.build_model(), 32
    samples = workload.splits().train.batch(range(batch))
    widths = workload.widths
    layers = list(pairwise(widths))
    total = 0
    for number, (n, m) in enumerate(layers):
        is_last, is_first = number == len(layers) - 1, number == 0
        total += n * m + m + batch * n + batch * m  # addmm
        total += 0 if is_last else 2 * batch * m  # ReLU
        total += batch * m + batch * n + n * m  # dW = gᵀ x
        total += 0 if is_first else batch * m + n * m + batch * n  # dx = g W
        total += batch * m + m  # db
        total += 0 if is_last else 3 * batch * m  # threshold_backward reads g and the result
    classes, labels = widths[-1], 2 * batch  # a label has 8 bytes, two of ours
    total += 2 * batch * classes  # log_softmax
    total += batch * classes + labels + 2  # nll_loss writes the loss and the total weight
    total += 1  # the first gradient
    total += 1 + batch * classes + labels + 1 + batch * classes  # nll_loss_backward
    total += 3 * batch * classes  # log_softmax_backward reads g and the result
    assert bytes_per_sample(workload.loss, module, samples) == F32 * total / batch


def test_leaves_everything_as_it_was() -> None:
    workload = MLP(MLPOptions(batch_norm=True), Digits())
    samples = workload.splits().train.batch(range(32))
    module = workload.build_model()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    random = torch.random.get_rng_state()
    measured = bytes_per_sample(workload.loss, module, samples)
    assert measured is not None
    assert measured > 0
    assert module.training
    assert torch.equal(torch.random.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_lower_precision_moves_other_bytes() -> None:
    workload = MLP(MLPOptions(), Digits())
    samples = workload.splits().train.batch(range(64))
    module = workload.build_model()
    full = bytes_per_sample(workload.loss, module, samples)

    def half_loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return workload.loss(model, batch)

    half = bytes_per_sample(half_loss, module, samples)
    assert full != half


def test_lack_of_memory_is_no_error() -> None:
    class Large(LineFit):
        def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
            raise torch.OutOfMemoryError("there is not enough")

    module = nn.Linear(8, 1)
    assert bytes_per_sample(Large(Options(), None).loss, module, (torch.ones(2, 8),)) is None


@pytest.mark.parametrize(
    ("make", "tensors"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), 3),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 5),
        (lambda p: torch.optim.Adam(p, lr=0.1, fused=True), 7),
        (lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True), 9),
    ],
)
def test_of_optimizers(make: Callable[[Any], torch.optim.Optimizer], tensors: int) -> None:
    """Parameters are read and written, gradients read, each state read and written."""
    module = nn.Linear(8, 3)
    optimizer = make(module.parameters())
    module(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    assert optimizer_bytes(optimizer) == tensors * F32 * (8 * 3 + 3)
