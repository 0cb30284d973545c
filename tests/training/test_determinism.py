"""Deterministic mode is set whole, stays in force, and names what it can't have."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.core.errors import BadInput, NotApplied
from harness.core.paths import TrialFolder
from harness.records.assignment import write_assignment
from harness.sweep.axes import Axes
from harness.training.entry import joined
from harness.training.execution import (
    GPU_VARIABLES,
    apply_deterministic_mode,
    check_deterministic_mode,
    prepare_environment,
)
from harness.training.train import Trainer
from tests.support.line import LineFit, Options
from tests.support.training import SINGLE_RANK, make_assignment, make_trainer
from workloads import Batch
from workloads.settings import Settings

DETERMINISTIC = Axes(batch_size=32, deterministic=True)


@pytest.fixture(autouse=True)
def settings_of_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put torch's settings, which are the whole process's, back as they were."""
    monkeypatch.setenv("MKL_CBWR", "AUTO")
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False
    torch.backends.cuda.enable_cudnn_sdp(True)


class Meddling(LineFit):
    """Does something with torch in its second step."""

    def meddle(self, inputs: Tensor) -> Any:
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        loss = super().loss(model, batch)
        if self.step == 2:
            self.meddle(batch[0])
        return loss


def train(folder: Path, meddle: Callable[[Tensor], Any], **axes: Any) -> Trainer:
    """Train four steps as a rank does, in this process."""
    workload = Meddling(Options(), Settings())
    workload.meddle = meddle  # type: ignore[assignment]
    assignment = make_assignment(steps=4, **axes)
    paths = TrialFolder(folder)
    write_assignment(paths.assignment_path, assignment)
    with joined(paths, SINGLE_RANK, 1.0):
        trainer = make_trainer(assignment, workload, folder)
        trainer.run()
    return trainer


def test_the_mode_is_in_force_to_the_last_step_and_recorded(tmp_path: Path) -> None:
    in_force: list[bool] = []

    def look(_: Tensor) -> None:
        in_force.append(torch.are_deterministic_algorithms_enabled())

    assert train(tmp_path / "off", look).parts.deterministic_settings == {}
    trainer = train(tmp_path / "on", look, deterministic=True)
    assert in_force == [False, True]
    assert trainer.parts.deterministic_settings == {
        "torch.get_deterministic_debug_mode()": 2,
        "torch.utils.deterministic.fill_uninitialized_memory": True,
        "torch.backends.cudnn.deterministic": True,
        "torch.backends.cudnn.benchmark": False,
        "torch.backends.cuda.cudnn_sdp_enabled()": False,
        "torch.get_float32_matmul_precision()": "highest",
    }


def put(inputs: Tensor) -> Tensor:
    """Run an operation for which torch has no deterministic implementation on any device."""
    return inputs.clone().put_(torch.tensor([0, 0]), inputs[0, :2])


UNDONE = "deterministic=true was undone: "


@pytest.mark.parametrize(
    ("meddle", "message"),
    [
        (
            lambda _: torch.use_deterministic_algorithms(False),
            UNDONE + r"torch.get_deterministic_debug_mode\(\) is 0; needed: 2",
        ),
        (
            lambda _: torch.use_deterministic_algorithms(True, warn_only=True),
            UNDONE + r"torch.get_deterministic_debug_mode\(\) is 1; needed: 2",
        ),
        (
            lambda _: setattr(torch.backends.cudnn, "deterministic", False),
            UNDONE + "torch.backends.cudnn.deterministic is False; needed: True",
        ),
        (
            lambda _: torch.backends.cuda.enable_cudnn_sdp(True),
            UNDONE + r"torch.backends.cuda.cudnn_sdp_enabled\(\) is True; needed: False",
        ),
        (put, "put_ does not have a deterministic implementation"),
    ],
    ids=["algorithms", "warn-only", "cudnn", "attention", "an operation that has none"],
)
def test_what_the_mode_can_not_be_had_with_fails_by_name(
    tmp_path: Path, meddle: Callable[[Tensor], Any], message: str
) -> None:
    with pytest.raises((NotApplied, RuntimeError), match=message):
        train(tmp_path, meddle, deterministic=True)
    torch.use_deterministic_algorithms(False)
    train(tmp_path / "off", meddle)


def test_inductor_is_told_where_the_model_is_compiled() -> None:
    import torch._inductor.config as inductor

    axes = Axes(batch_size=32, deterministic=True, execution="compile")
    settings = apply_deterministic_mode(axes)
    try:
        check_deterministic_mode(settings)
        inductor.deterministic = False
        with pytest.raises(NotApplied, match=r"inductor.config.deterministic is False"):
            check_deterministic_mode(settings)
    finally:
        inductor.deterministic = False


def test_variables_that_libraries_read_when_cuda_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in GPU_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    prepare_environment(Axes(batch_size=32), on_gpu=True)
    assert not GPU_VARIABLES.keys() & os.environ.keys()
    prepare_environment(DETERMINISTIC, on_gpu=True)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert os.environ["NCCL_NVLS_ENABLE"] == "0"
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")  # the user's own, and good enough
    prepare_environment(DETERMINISTIC, on_gpu=True)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [("CUBLAS_WORKSPACE_CONFIG", ":0:0", ":4096:8 or :16:8"), ("MKL_CBWR", "OFF", "AUTO")],
)
def test_a_variable_of_the_user_that_would_not_do(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, allowed: str
) -> None:
    monkeypatch.setenv(name, value)
    message = f"deterministic=true: {name}: found '{value}'; allowed: {allowed}"
    with pytest.raises(BadInput, match=message):
        prepare_environment(DETERMINISTIC, on_gpu=name in GPU_VARIABLES)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_scattered_sum_on_a_gpu_is_the_same_in_every_run() -> None:
    """Its atomic additions are unordered without the mode."""
    prepare_environment(DETERMINISTIC, on_gpu=True)
    device = torch.device("cuda")
    check_deterministic_mode(apply_deterministic_mode(DETERMINISTIC))
    generator = torch.Generator(device).manual_seed(0)
    values = torch.randn(1_000_000, device=device, generator=generator)
    rows = torch.randint(0, 100, (1_000_000,), device=device, generator=generator)
    sums = [torch.zeros(100, device=device).index_add_(0, rows, values) for _ in range(25)]
    assert all(torch.equal(total, sums[0]) for total in sums)
    left = torch.randn(512, 512, device=device, generator=generator)
    assert torch.equal(left @ left, left @ left)
