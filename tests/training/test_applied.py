"""Settings in one process: each does what it says, and says so when it can't."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from harness.core.errors import NotApplied
from harness.measure.clock import StepClock
from harness.sweep.axes import Axes
from harness.training.execution import (
    Compiler,
    Scaler,
)
from harness.training.loader import make_loader
from harness.training.model import build_model, checkpoint_activations, place_batch
from harness.training.order import BatchOrder
from harness.training.state import TrainingState
from harness.training.strategies import Strategy
from tests.support.line import LineFit, Options
from tests.support.training import CPU, SINGLE_RANK, make_assignment, make_trainer
from workloads.base import Splits, TensorSamples, Workload, load_splits
from workloads.cnn import CNN
from workloads.cnn_settings import CNNOptions
from workloads.images import Digits
from workloads.settings import Settings


def prepare_model(workload: Workload, **settings: Any) -> nn.Module:
    """Return the module that training steps would call."""
    axes = Axes(**{"batch_size": 32, **settings})
    strategy = Strategy(axes, SINGLE_RANK, StepClock(CPU))
    model = build_model(workload, axes, CPU)
    if axes.activation_checkpointing:
        checkpoint_activations(workload, model)
    return strategy.prepare(model, workload, Compiler(axes, Path("unused"), TrainingState()))


def line_fit() -> LineFit:
    """Return the test workload as it is by default."""
    return LineFit(Options(), Settings())


def test_activation_checkpointing_computes_layers_again_in_backward() -> None:
    counts = []
    for enabled in (False, True):
        model = prepare_model(line_fit(), activation_checkpointing=enabled)
        calls: list[int] = []
        linear = model.get_submodule("inner.layers.0")
        linear.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        model(torch.randn(4, 8)).sum().backward()
        counts.append(len(calls))
        assert set(model.state_dict()) == set(line_fit().build_model().state_dict())
    assert counts == [1, 2]


@pytest.mark.parametrize("changes", ["batch norm", "what the forward uses"])
def test_activation_checkpointing_changes_buffers_once(changes: str) -> None:
    """Of a layer that changes them in its forward, which runs twice a step."""
    workload: Workload = CNN(CNNOptions(width=4, batch_norm=True), Digits())
    inputs = load_splits(workload).train.batch(range(4))[0]
    if changes == "what the forward uses":
        workload, inputs = LineFit(Options(memory=True), Settings()), torch.randn(4, 8)
    states = []
    for enabled in (False, True):
        torch.manual_seed(1)
        model = prepare_model(workload, activation_checkpointing=enabled)
        for _ in range(2):
            model(inputs).sum().backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        states.append([*model.buffers(), *(grad for grad in gradients if grad is not None)])
    assert len(states[0]) == len(states[1]) > 2
    for plain, recomputed in zip(*states, strict=True):
        assert torch.equal(plain, recomputed)


def test_channels_last_reorders_convolutions_and_images() -> None:
    cnn = CNN(CNNOptions(width=4), Digits())
    axes = Axes(batch_size=32, channels_last=True)
    model = prepare_model(cnn, channels_last=True)
    kernels = [p for p in model.parameters() if p.ndim == 4]
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in kernels)
    images, labels = place_batch((torch.randn(2, 3, 8, 8), torch.zeros(2)), axes, CPU)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels.shape == (2,)


def test_channels_last_without_convolutions_is_refused() -> None:
    with pytest.raises(
        NotApplied, match="channels_last=true had no effect: the model has no convolution"
    ):
        prepare_model(line_fit(), channels_last=True)


def test_resident_samples_come_in_the_loaders_order() -> None:
    order = BatchOrder(samples=12, batch_size=4, seed=3, dp_rank=0, dp_size=1)
    samples = TensorSamples((torch.arange(12),))
    fetched: dict[str, list[tuple[list[int], list[int]]]] = {"loader": [], "resident": []}
    for name, batches in fetched.items():
        axes = Axes(batch_size=4, input=name)  # type: ignore[arg-type]
        for indices, batch in make_loader(samples, order, axes, seed=0, device=CPU):
            batches.append((indices.tolist(), batch[0].tolist()))
    assert fetched["resident"] == fetched["loader"]
    assert len(fetched["loader"]) == 3


def test_losses_of_cuda_graphs_are_copied(tmp_path: Path) -> None:
    """A replay writes its loss into the memory of the last one."""
    trainer = make_trainer(make_assignment(steps=2), line_fit(), tmp_path)
    kept: list[Tensor] = []

    def keep_loss(moment: str, micro_step: int, value: Any) -> None:
        if moment == "loss":
            kept.append(value)

    train_step = trainer.parts.train_step
    train_step.observe = keep_loss
    _, batch = next(iter(trainer.parts.loader))
    for are_replayed in (False, True):
        train_step.copies_losses = are_replayed
        loss = train_step.run(batch)
        assert loss == kept[-1]
        assert (loss.data_ptr() == kept[-1].data_ptr()) != are_replayed


def test_graphs_that_torch_does_not_replay_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch itself says so in a log that is off, and trains as without CUDA graphs."""
    counters: defaultdict[str, Counter[str]] = defaultdict(Counter)
    counters["stats"]["unique_graphs"] = 2
    monkeypatch.setattr("torch._dynamo.utils.counters", counters)
    axes = Axes(batch_size=4)
    compiler = Compiler(axes, tmp_path, TrainingState())
    monkeypatch.setattr(compiler, "_is_eager", False)
    assert compiler.account()["compile_graph_breaks"] == 0
    counters["inductor"]["cudagraph_skips"] = 3
    assert compiler.account()["compile_graph_breaks"] == 3


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
    assert scaler.account() == {"loss_scale": 2.0**15, "loss_scale_skipped_steps": 1}


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_gradients_are_clipped_to_the_norm_before_the_step(precision: Any) -> None:
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler = Scaler(Axes(batch_size=1, precision=precision), CPU)
    halved = parameter.half() if precision == "fp16" else parameter
    scaler.backward((halved * torch.tensor([0.375, 0.5])).sum())
    scaler.step(optimizer, max_grad_norm=0.1)
    assert parameter.tolist() == pytest.approx([-0.06, -0.08], abs=1e-5)


class LearnedScale(LineFit):
    """Trains a factor of its loss, which its model does not have."""

    def optimizer(self, model: nn.Module) -> Optimizer:
        return torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(1))], lr=0.1)


def test_a_parameter_outside_the_model_is_refused(tmp_path: Path) -> None:
    found = r"LearnedScale: found an optimizer with a parameter that is not the"
    with pytest.raises(NotApplied, match=found):
        make_trainer(make_assignment(steps=1), LearnedScale(Options(), Settings()), tmp_path)


class DrawnSplits(LineFit):
    """Chooses its test samples by chance."""

    def splits(self) -> Splits:
        whole = super().splits()
        assert isinstance(whole, Splits)
        order = torch.from_numpy(np.random.permutation(len(whole.train)))
        assert isinstance(whole.train, TensorSamples)
        train = tuple(tensor[order[32:]] for tensor in whole.train.tensors)
        test = tuple(tensor[order[:32]] for tensor in whole.train.tensors)
        return Splits(TensorSamples(train), TensorSamples(test))


def test_splits_are_drawn_from_the_seed_of_the_trial(tmp_path: Path) -> None:
    """Whatever this process has drawn before: ranks, and a trial that resumes, have the same."""
    tests: list[Tensor] = []
    for seed in (0, 0, 1):
        np.random.seed(len(tests))
        assignment = make_assignment(steps=1)
        assignment = replace(assignment, trial=replace(assignment.trial, seed=seed))
        workload = DrawnSplits(Options(), Settings())
        trainer = make_trainer(assignment, workload, tmp_path / str(len(tests)))
        tests.append(trainer.parts.splits.test.batch(range(32))[0])
    assert torch.equal(tests[0], tests[1])
    assert not torch.equal(tests[0], tests[2])
