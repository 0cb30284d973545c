"""Settings in one process: each does what it says, and says so when it can't."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.core.errors import NotApplied
from harness.measure.clock import HostClock
from harness.spec.axes import Axes
from harness.training.execution import Compiler
from harness.training.loader import make_loader
from harness.training.model import build_model, place_batch
from harness.training.order import BatchOrder
from harness.training.precision import Scaler, autocast
from harness.training.profiler import trace_steps
from harness.training.step import TrainStep
from harness.training.strategies import strategy_class
from tests.support.line import LineFit, Options
from tests.support.training import CPU, SINGLE_MESH, make_assignment, make_trainer
from workloads.base import Batch, Splits, TensorSamples, Workload
from workloads.cnn import CNN
from workloads.options import CNNOptions, Settings
from workloads.sources import Digits


def prepared(workload: Workload, **axes: Any) -> nn.Module:
    chosen = Axes(**{"batch_size": 32, **axes})
    strategy = strategy_class(chosen.strategy)(chosen, SINGLE_MESH)
    model = build_model(workload, chosen, CPU)
    return strategy.prepare(model, workload, Compiler(chosen, Path("unused")), HostClock())


def line() -> LineFit:
    return LineFit(Options(), Settings())


def test_activation_checkpointing_computes_blocks_again_in_backward() -> None:
    counts = []
    for asked in (False, True):
        model = prepared(line(), activation_checkpointing=asked)
        calls: list[int] = []
        first = model.get_submodule("inner.layers.0")
        first.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        model(torch.randn(4, 8)).sum().backward()
        counts.append(len(calls))
        assert set(model.state_dict()) == set(line().build_model().state_dict())
    assert counts == [1, 2]


def test_channels_last_reorders_convolutions_and_images() -> None:
    cnn = CNN(CNNOptions(width=4), Digits())
    axes = Axes(batch_size=32, channels_last=True)
    model = prepared(cnn, channels_last=True)
    kernels = [p for p in model.parameters() if p.ndim == 4]
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in kernels)
    images, labels = place_batch((torch.randn(2, 3, 8, 8), torch.zeros(2)), axes, CPU)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels.shape == (2,)


class Colour(CNN):
    """Of images with more channels than one, so that their order in memory matters."""

    def splits(self) -> Splits:
        samples = TensorSamples((torch.randn(64, 3, 8, 8), torch.zeros(64, dtype=torch.long)))
        return Splits(train=samples, test=samples)

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 10))


def test_a_traced_step_gets_its_images_as_a_recorded_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    laid_out = []
    trainer = make_trainer(
        make_assignment(steps=2, channels_last=True), Colour(CNNOptions(), Digits()), tmp_path
    )
    run_step = TrainStep.run

    def run_and_note(train_step: TrainStep, batch: Batch) -> Tensor:
        laid_out.append(batch[0].is_contiguous(memory_format=torch.channels_last))
        return run_step(train_step, batch)

    monkeypatch.setattr(TrainStep, "run", run_and_note)
    trainer.run()
    trace_steps(trainer.parts, trainer.state, 1)
    assert laid_out == [True] * 4  # two recorded, one to warm the profiler up, one traced


def test_channels_last_without_convolutions_is_refused() -> None:
    with pytest.raises(
        NotApplied, match="channels_last=true had no effect: the model has no convolution"
    ):
        prepared(line(), channels_last=True)


def test_resident_samples_come_in_the_loaders_order() -> None:
    order = BatchOrder(samples=12, batch_size=4, seed=3, dp_rank=0, dp_size=1)
    samples = TensorSamples((torch.arange(12),))
    ways = [
        [
            (indices, batch[0].tolist())
            for indices, _, batch in make_loader(samples, order, axes, seed=0, device=CPU)
        ]
        for axes in (Axes(batch_size=4), Axes(batch_size=4, input="resident"))
    ]
    assert ways[0] == ways[1]
    assert len(ways[0]) == 3


def test_resident_samples_must_be_movable() -> None:
    class Fixed:
        def __len__(self) -> int:
            return 4

        def batch(self, indices: Any) -> Any:
            return (torch.as_tensor(indices),)

    order = BatchOrder(samples=4, batch_size=2, seed=0, dp_rank=0, dp_size=1)
    with pytest.raises(
        NotApplied, match=r"input=resident can't be had: Fixed has no method to\(device\)"
    ):
        make_loader(Fixed(), order, Axes(batch_size=2, input="resident"), seed=0, device=CPU)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", None), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_autocast_computes_in_the_precision(precision: Any, dtype: torch.dtype | None) -> None:
    with autocast(Axes(batch_size=1, precision=precision), CPU):
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype == (dtype or torch.float32)


def test_a_loss_scale_falls_where_gradients_overflow_and_the_step_is_skipped() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scaler = Scaler(Axes(batch_size=1, precision="fp16"), CPU)
    scaler.backward((parameter.half() * float("inf")).sum())
    assert not scaler.step(optimizer, max_grad_norm=None)
    assert torch.equal(parameter, torch.ones(2))
    optimizer.zero_grad()
    scaler.backward(parameter.half().sum())
    assert scaler.step(optimizer, max_grad_norm=None)
    assert parameter[0].item() == pytest.approx(0.9)
    account = scaler.account()
    assert account is not None
    assert (account.scale, account.skipped_steps) == (2.0**15, 1)
    again = Scaler(Axes(batch_size=1, precision="fp16"), CPU)
    again.restore(scaler.state())
    assert again.account() == account


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_gradients_are_clipped_to_the_norm_before_the_step(precision: Any) -> None:
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler = Scaler(Axes(batch_size=1, precision=precision), CPU)
    halved = parameter.half() if precision == "fp16" else parameter
    scaler.backward((halved * torch.tensor([0.375, 0.5])).sum())
    scaler.step(optimizer, max_grad_norm=0.1)
    assert parameter.tolist() == pytest.approx([-0.06, -0.08], abs=1e-5)
