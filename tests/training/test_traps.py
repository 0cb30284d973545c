"""A setting that turns out to do nothing is refused by name, instead of giving an equal number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from harness.core.errors import NotApplied
from harness.spec.axes import DEFAULTS, NEEDS, Axes, find_conflict
from harness.training import build
from harness.training.loader import make_loader
from harness.training.precision import Scaler, computed_in
from harness.training.strategies.ddp import assign_buckets
from harness.training.train import Trainer
from tests.support.line import LineFit, Options
from tests.support.training import CPU, make_assignment, make_trainer
from workloads import Batch
from workloads.options import Settings

DEPENDENT_AXES = [(need, name) for need in NEEDS for name in need.dependents]
# A value other than the default, for axes that are not simply true or false.
OTHER_VALUES: dict[str, Any] = {
    "dynamic": "never",
    "cache": "cold",
    "fsdp_wrap": "root",
    "reshard_after_forward": "never",
    "pin_memory": "always",
    "num_workers": 2,
    "page_cache": "cold",
    "prefetch_factor": 4,
    "bucket_cap_mb": 1.0,
    "comm_hook": "bf16",
    "matrix_approximation_rank": 2,
    "reduce_dtype": "bf16",
    "shard_size": 2,
    "tensor_parallel": 2,
    "lr_warmup": 0.1,
}


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


@pytest.mark.parametrize(("need", "name"), DEPENDENT_AXES, ids=[name for _, name in DEPENDENT_AXES])
def test_a_setting_without_what_it_needs_is_refused_before_anything_runs(
    need: Any, name: str
) -> None:
    """Such as workers of resident samples, and persistent workers without workers."""
    setting: dict[str, Any] = {name: OTHER_VALUES.get(name, not DEFAULTS[name])}
    if need.axis == "input":
        setting["input"] = "resident"
    assert (
        find_conflict(Axes(batch_size=1, **setting))
        == f"{name} does nothing without {need.description}"
    )


@pytest.mark.parametrize(
    "setting",
    [{"pin_memory": "always"}, {"precision": "tf32"}, {"execution": "compile:reduce-overhead"}],
    ids=str,
)
def test_a_setting_for_gpus_without_a_gpu(tmp_path: Path, setting: dict[str, Any]) -> None:
    ((name, value),) = setting.items()
    with pytest.raises(NotApplied, match=f"{name}: found {value}; needed: a GPU"):
        train(tmp_path, **setting)


@pytest.mark.usefixtures("process_group_of_one")
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch's own compiler
def test_a_compile_that_compiled_nothing(tmp_path: Path) -> None:
    torch._dynamo.utils.counters.clear()
    with pytest.raises(NotApplied, match=r"execution=compile had no effect.*needs its own forward"):
        train(tmp_path, Options(sequential=True), execution="compile", strategy="ddp")


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
    with pytest.raises(NotApplied, match=r"compiled no graph; only calling the model itself runs"):
        trainer.run()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_lower_precision_that_stayed_fp32(tmp_path: Path, precision: str) -> None:
    message = f"precision={precision} had no effect: nothing in the first step ran in it"
    with pytest.raises(NotApplied, match=message):
        train(tmp_path, Options(exact=True), precision=precision)
    assert train(tmp_path, precision=precision).parts.scaler.unproven is None


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


def test_workers_that_were_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ignore_axes(samples: Any, order: Any, axes: Axes, **keywords: Any) -> Any:
        return make_loader(samples, order, Axes(batch_size=32), **keywords)

    monkeypatch.setattr(build, "make_loader", ignore_axes)
    with pytest.raises(
        NotApplied, match="num_workers=2 had no effect: no worker has delivered a batch"
    ):
        train(tmp_path, num_workers=2)


@pytest.mark.usefixtures("process_group_of_one")
def test_a_bucket_size_that_changed_nothing_because_the_model_is_smaller(tmp_path: Path) -> None:
    message = r"bucket_cap_mb=1 had no effect: the gradients are in the same 1 bucket as without it"
    with pytest.raises(NotApplied, match=message):
        train(tmp_path, strategy="ddp", bucket_cap_mb=1.0)
    assert train(tmp_path, strategy="ddp", bucket_cap_mb=1e-4).state.step == 4


@pytest.mark.usefixtures("process_group_of_one")
@pytest.mark.parametrize("cap", [None, 0.001, 1.0, 3.0, 25.0])
def test_buckets_are_those_that_ddp_ends_up_with(cap: float | None) -> None:
    """With 5 MiB of gradients. DDP itself numbers the 16 parameters from the model's beginning."""
    model = nn.Sequential(*(nn.Linear(400, 400) for _ in range(8)))
    wrapped = DistributedDataParallel(model, bucket_cap_mb=cap)
    for _ in range(3):
        wrapped(torch.ones(1, 400)).sum().backward()
    get_logging_data: Any = wrapped._get_ddp_logging_data
    rebuilt: str = get_logging_data()["rebuilt_per_bucket_param_indices"]
    buckets = []
    for bucket in rebuilt.split(","):
        buckets.append([15 - int(index) for index in bucket.split()])
    assert assign_buckets(model, cap) == buckets
