"""A setting that turns out to do nothing is refused by name, instead of giving an equal number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.core.errors import NotApplied
from harness.sweep.axes import Axes
from harness.training.execution import Scaler, computed_in
from harness.training.train import Trainer
from tests.support.line import LineFit, Options
from tests.support.training import CPU, NoEvaluation, make_assignment, make_trainer
from workloads import Batch
from workloads.settings import Settings


@pytest.fixture
def process_group_of_one() -> Iterator[None]:
    """Let strategies find a process group, whose only rank is this process."""
    dist.init_process_group(
        "gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


def train(folder: Path, options: Options | None = None, **axes: Any) -> Trainer:
    """Train four steps in this process."""
    workload = LineFit(options or Options(), Settings())
    trainer = make_trainer(make_assignment(steps=4, **axes), workload, folder)
    trainer.run()
    return trainer


@pytest.mark.parametrize(
    "setting",
    [{"loader.pin_memory": True}, {"precision": "tf32"}, {"execution": "compile:reduce-overhead"}],
    ids=str,
)
def test_a_setting_for_gpus_without_a_gpu(tmp_path: Path, setting: dict[str, Any]) -> None:
    ((name, value),) = setting.items()
    with pytest.raises(NotApplied, match=f"{name}: found {str(value).lower()}; needed: a GPU"):
        train(tmp_path, **setting)


class CountingFit(LineFit):
    """Its model counts its steps in a number, for each of which torch compiles it again."""

    def build_model(self) -> nn.Module:
        return Counting()


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.count = nn.Linear(8, 1), 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.count += 1
        output: Tensor = self.layer(inputs) * (1 + 1 / self.count)
        return output


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch's own compiler
def test_a_model_that_is_compiled_too_often_to_stay_compiled(tmp_path: Path) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    workload = CountingFit(Options(), Settings())
    trainer = make_trainer(
        make_assignment(steps=12, execution="compile", **{"compile.dynamic": False}),
        workload,
        tmp_path,
        hooks=NoEvaluation(),
    )
    with pytest.raises(NotApplied, match=r"execution=compile ended after \d+ recompilations"):
        trainer.run()


class AroundTheModel(LineFit):
    """Computes its loss with a submodule, so that the compiled model is never called."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        self.step += 1
        inner = model.get_submodule("inner")
        return nn.functional.mse_loss(inner(batch[0]), batch[1])


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch's own compiler
def test_a_compiled_model_that_is_never_called(tmp_path: Path) -> None:
    torch._dynamo.utils.counters.clear()
    trainer = make_trainer(
        make_assignment(steps=2, execution="compile"),
        AroundTheModel(Options(), Settings()),
        tmp_path,
    )
    with pytest.raises(NotApplied, match="compiled no graph"):
        trainer.run()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_lower_precision_that_stayed_fp32(tmp_path: Path, precision: str) -> None:
    message = f"precision={precision} had no effect: nothing in the first step ran in it"
    with pytest.raises(NotApplied, match=message):
        train(tmp_path, Options(exact=True), precision=precision)
    assert train(tmp_path, precision=precision).parts.train_step.scaler.unproven is None


def test_a_lower_precision_of_fsdp2_that_stayed_fp32() -> None:
    scaler = Scaler(Axes(batch_size=1, strategy="fsdp2", precision="bf16:fsdp2"), CPU)
    with pytest.raises(NotApplied, match="precision=bf16:fsdp2 had no effect"):
        scaler.backward(nn.Linear(2, 1)(torch.ones(1, 2)).sum())


@pytest.mark.parametrize("exact", [False, True])
def test_a_precision_is_seen_inside_a_compiled_graph_that_gives_fp32(exact: bool) -> None:
    class ReturnsFp32(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.layers(inputs).float()
            return result

    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not exact):
        loss = torch.compile(ReturnsFp32(), backend="aot_eager")(torch.ones(1, 4)).sum()
    assert computed_in(torch.bfloat16, loss) is not exact


@pytest.mark.usefixtures("process_group_of_one")
def test_a_bucket_size_that_changed_nothing_because_the_model_is_smaller(tmp_path: Path) -> None:
    message = r"ddp.bucket_cap_mb=1 had no effect: .* are in one bucket with and without it"
    with pytest.raises(NotApplied, match=message):
        train(tmp_path, None, strategy="ddp", **{"ddp.bucket_cap_mb": 1.0})
    small = train(tmp_path, None, strategy="ddp", **{"ddp.bucket_cap_mb": 1e-4})
    assert small.state.step == 4
