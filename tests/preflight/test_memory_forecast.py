"""Forecasts of memory: every part against sizes that were worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from harness.core.paths import Results, TrialFolder
from harness.interface import fitting
from harness.interface.fitting import memory_warning
from harness.measure.storages import ACTIVATIONS, GRADIENTS, PARAMETERS, LiveStorages
from harness.preflight.memory import CellMemory, MemoryForecast, memory_key
from harness.preflight.memory_worker import Forecaster
from harness.render.memory import memory_lines
from harness.spec.cell import Cell
from harness.spec.cluster import Profile
from harness.spec.slurm import SlurmOptions
from harness.spec.sweep import find_sweep_file, load_sweep
from tests.factories import make_cell
from tests.support.commands import harness
from tests.support.line import LineFit
from tests.support.line import Options as LineOptions
from workloads.base import Batch, Workload
from workloads.datasets import load_splits
from workloads.mlp import MLP
from workloads.options import MLPOptions, Settings
from workloads.sources import Digits

INPUTS, HIDDEN, CLASSES, F32 = 784, 48, 10, 4
WEIGHTS = F32 * (INPUTS * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES)
STEP_COUNTS = 4 * F32  # of Adam, one for each parameter
LOSS = F32  # is alive when a backward ends, and so counted with the gradients


def forecaster(
    folder: Path, workload: Workload | None = None, *, on_gpu: bool = False
) -> Forecaster:
    workload = workload or MLP(MLPOptions(hidden=(HIDDEN,), dropout=0.0), Digits())
    samples = load_splits(workload).train.batch(range(2))
    return Forecaster(workload, samples, folder, TrialFolder(folder), on_gpu)


def parts(
    folder: Path, workload: Workload | None = None, *, on_gpu: bool = False, **axes: Any
) -> Mapping[str, int]:
    forecast = forecaster(folder, workload, on_gpu=on_gpu).describe(
        make_cell(**{"batch_size": 8, **axes}), None
    )
    assert forecast.problem == ""
    return forecast.parts


def batch_bytes(samples: int) -> int:
    return samples * (INPUTS * F32 + 8)  # a label has 8 bytes


def test_one_process(tmp_path: Path) -> None:
    """The peak is at the gradient of the first bias: the last one, with its output's gradient alive."""
    found = parts(tmp_path)
    assert found[PARAMETERS] == WEIGHTS
    assert found["optimizer"] == 2 * WEIGHTS + STEP_COUNTS
    assert found[GRADIENTS] == WEIGHTS + LOSS
    assert found["batch"] == batch_bytes(8)
    assert found["communication"] == 0
    assert found[ACTIVATIONS] == pytest.approx(8 * HIDDEN * F32, abs=16)


def test_ddp_has_buckets_and_a_share_of_the_batch(tmp_path: Path) -> None:
    found = parts(tmp_path, strategy="ddp", world_size=2)
    assert found["communication"] == WEIGHTS
    assert found[GRADIENTS] == WEIGHTS + LOSS
    assert found["optimizer"] == 2 * WEIGHTS + STEP_COUNTS
    assert found["batch"] == batch_bytes(4)


def test_gradients_that_are_views_of_buckets_count_once(tmp_path: Path) -> None:
    found = parts(tmp_path, strategy="ddp", world_size=2, gradient_as_bucket_view=True)
    assert found["communication"] + found[GRADIENTS] == WEIGHTS + LOSS


@pytest.mark.parametrize("axes", [
    {"strategy": "fsdp2", "world_size": 2},
    {"strategy": "hsdp", "world_size": 4, "shard_size": 2},
], ids=lambda axes: str(axes["strategy"]))  # fmt: skip
@pytest.mark.parametrize("on_gpu", [False, True])
def test_shards(tmp_path: Path, axes: dict[str, Any], on_gpu: bool) -> None:
    """Every rank has half of the parameters, and of Adam's state. The peak on CPUs is in the
    reduce-scatter: its input, gloo's copy of that, and the shard of the sum. On GPUs it is where all
    parameters have been gathered and copied out, and there are no gradients yet."""
    found = parts(tmp_path, on_gpu=on_gpu, **axes)
    assert found[PARAMETERS] == WEIGHTS // 2
    assert found["optimizer"] == WEIGHTS + STEP_COUNTS
    assert found["communication"] == pytest.approx(2 * WEIGHTS, abs=16)
    assert found[GRADIENTS] <= WEIGHTS // 2 + 8 * LOSS


def test_a_rank_of_a_pipeline_has_its_own_layers_and_the_rest(tmp_path: Path) -> None:
    """Of three layers the second rank has two; the forecast is of the rank that needs the most."""
    workload = LineFit(LineOptions(depth=3), Settings())
    found = parts(tmp_path, workload, strategy="pp", world_size=2, grad_accum_steps=2, batch_size=4)
    layer, rest = 8 * 8 + 8, 8 * 16 + 16 + 16 + 1
    own = F32 * (rest + 2 * layer)
    assert found["optimizer"] == 2 * own + (4 + 2 * 2) * F32  # and a step count for each parameter
    assert own <= found[PARAMETERS] <= own + F32 * layer
    assert not torch.distributed.is_initialized()


def test_accumulation_keeps_unsharded_gradients_under_fsdp2(tmp_path: Path) -> None:
    found = parts(tmp_path, strategy="fsdp2", world_size=2, grad_accum_steps=2)
    assert found[GRADIENTS] == pytest.approx(WEIGHTS, abs=16)


def test_precisions(tmp_path: Path) -> None:
    single, double = parts(tmp_path), parts(tmp_path, precision="fp64")
    assert double[PARAMETERS] == 2 * single[PARAMETERS]
    assert parts(tmp_path, precision="fp16") == parts(tmp_path, precision="bf16")


@pytest.mark.nightly
def test_smaller_parts_of_a_batch_take_less_until_an_evaluation_takes_most(tmp_path: Path) -> None:
    whole = parts(tmp_path, batch_size=4096)
    cut = parts(tmp_path, batch_size=4096, grad_accum_steps=64)
    assert cut[ACTIVATIONS] < whole[ACTIVATIONS]
    assert cut[ACTIVATIONS] == 2 * 4096 * HIDDEN * F32  # of an evaluation: a layer, and its ReLU


def test_ranks_need_not_exist(tmp_path: Path) -> None:
    axes: dict[str, Any] = {
        "strategy": "hsdp",
        "world_size": 512,
        "shard_size": 8,
        "batch_size": 512,
    }
    found = parts(tmp_path, **axes)
    assert found[PARAMETERS] == pytest.approx(WEIGHTS / 8, rel=0.1)  # the last rank's are padded
    assert not torch.distributed.is_initialized()


class Choosing(MLP):
    """Has as many activations as there are positive values."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, _ = batch
        logits: Tensor = model(images[images.sum((1, 2, 3)) > 0])
        return logits.mean()


def test_what_can_not_be_forecast_says_why(tmp_path: Path) -> None:
    workload = Choosing(MLPOptions(), Digits())
    forecast = forecaster(tmp_path, workload).describe(make_cell(), None)
    assert forecast.bytes is None
    assert "nonzero" in forecast.problem
    forecast = forecaster(tmp_path).describe(
        make_cell(strategy="ddp", world_size=2, comm_hook="powersgd"), None
    )
    assert forecast.problem == "the memory of comm_hook=powersgd is not known"


# Storages


def test_storages_that_are_resized_and_freed_and_numbers_without_values() -> None:
    with FakeTensorMode(), LiveStorages() as storages:
        kept = torch.ones(10)
        storages.claim(PARAMETERS, [kept])
        passing = torch.ones(1000)
        view = passing[10:]
        del passing
        view.untyped_storage().resize_(0)  # as FSDP2 frees a parameter
        later = torch.ones(900)
        assert later.sum().item() == 1.0
    assert storages.peak() == dict.fromkeys(storages.peak(), 0) | {
        PARAMETERS: 10 * F32,
        ACTIVATIONS: 1000 * F32,
    }


# What fits


class Affine(Forecaster):
    """Knows the memory of a cell: 1000 bytes, and 10 a sample; from 200 samples on 30 for each more."""

    def parts(self, cell: Cell) -> Mapping[str, int]:
        samples = cell.axes.batch_size // cell.axes.grad_accum_steps
        if cell.axes.activation_checkpointing:
            samples //= 2
        return {ACTIVATIONS: 1000 + 10 * samples + 20 * max(0, samples - 200)}


@pytest.mark.parametrize(
    ("limit", "largest"),
    [
        (1000, None),
        (1009, None),
        (1010, 1),
        (2000, 100),
        (3000, 200),
        (6000, 300),
        (60000, 2100),
        (10**9, 2**24),
    ],
)
def test_the_largest_batch_that_fits(tmp_path: Path, limit: int, largest: int | None) -> None:
    known = Affine(MLP(MLPOptions(), Digits()), (), tmp_path, TrialFolder(tmp_path))
    found = known.describe(make_cell(batch_size=64), limit).largest_batch
    if largest is None:
        assert found is None
        return
    assert found is not None
    assert 0.98 * largest - 1 < found <= largest


def test_what_makes_a_cell_fit(tmp_path: Path) -> None:
    known = Affine(MLP(MLPOptions(), Digits()), (), tmp_path, TrialFolder(tmp_path))
    cell = make_cell(batch_size=64)
    memory = CellMemory(cell=cell, limit=1400, forecast=known.describe(cell, 1400))
    assert list(memory_lines([memory])) == [
        "mlp eager fp32 single w0 b64 t1 does not fit in 1.367 KiB by 240 B; fits with"
        " activation_checkpointing=true (1.289 KiB) or grad_accum_steps=2 (1.289 KiB)"
    ]
    both = known.describe(cell, 1100).remedies
    assert [remedy.axes for remedy in both] == [{"grad_accum_steps": 8}]
    assert known.describe(cell, 900).remedies == []


# The command, and warnings


def test_cells_that_need_the_same_memory_are_forecast_once() -> None:
    cell = make_cell()
    assert memory_key(cell) == memory_key(make_cell(num_workers=2, execution="compile"))
    assert memory_key(cell) != memory_key(make_cell(batch_size=32))


def test_errors_of_forecasts_are_shown_and_wrong_ones_are_named() -> None:
    good = CellMemory(
        cell=make_cell(), forecast=MemoryForecast(parts={"batch": 96}), measured=[100, 98]
    )
    wrong = CellMemory(
        cell=make_cell(batch_size=8), forecast=MemoryForecast(parts={"batch": 80}), measured=[100]
    )
    assert list(memory_lines([good, wrong])) == [
        "forecasts are within ±20% of the peaks of 3 recorded trials",
        "wrong by -20%: mlp eager fp32 single w0 b8 t1, measured in 1 trial",
    ]


@pytest.mark.distributed
def test_the_plan_shows_memory(results: Results) -> None:
    options = [
        "--only",
        "workload=mlp and precision=fp32 and strategy=single",
        "--results",
        str(results.path),
    ]
    ended = harness("plan", "quickstart", "--memory", "--fits", "1MiB", *options)
    assert (ended.code, ended.err) == (0, "")
    assert "parameters" in ended.out
    assert "does not fit in 1 MiB by" in ended.out
    assert "compiled cells are forecast as eager ones" in ended.out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--fits", "80GiB"], "--fits: found 80GiB without --memory; allowed: with it"),
        (
            ["--memory", "--fits", "80GB"],
            "--fits: found '80GB'; allowed: a number with MiB, GiB or TiB, as in 80GiB",
        ),
    ],
)
def test_a_size_without_meaning_is_refused(arguments: list[str], error: str) -> None:
    ended = harness("plan", "quickstart", *arguments)
    assert (ended.code, ended.err) == (2, f"harness: {error}\n")


def test_a_profile_says_what_a_rank_may_take() -> None:
    assert Profile(memory_per_device="80GiB").rank_memory(2) == 80 * 2**30
    node = Profile(launcher="slurm", slurm=SlurmOptions(memory="64G", ranks_per_node=4))
    assert [node.rank_memory(ranks) for ranks in (1, 2, 8)] == [64 * 2**30, 2**35, 2**34]
    whole_node = SlurmOptions(memory="0")  # for sbatch, all memory of the node
    assert Profile(launcher="slurm", slurm=whole_node).rank_memory(1) is None
    assert Profile().rank_memory(1) is None
    with pytest.raises(ValueError, match="memory_per_device: found '80'; allowed"):
        Profile(memory_per_device="80")


@pytest.mark.distributed
def test_submit_warns_of_cells_that_do_not_fit() -> None:
    sweep = load_sweep(find_sweep_file("quickstart"), [], [])
    sweep = replace(sweep, cells=sweep.cells[:2])
    assert memory_warning(sweep, Profile()) is None
    assert memory_warning(sweep, Profile(memory_per_device="1GiB")) is None
    warning = memory_warning(sweep, Profile(memory_per_device="4MiB"))
    assert warning is not None
    assert warning.startswith("1 of 2 cells will not fit into memory, mlp eager fp32 ddp×2")


def test_submit_begins_no_forecast_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "SUBMIT_SECONDS", 0.0)
    sweep = load_sweep(find_sweep_file("quickstart"), [], [])
    count = len(sweep.cells)
    warning = memory_warning(sweep, Profile(memory_per_device="80GiB"))
    assert warning == (
        f"whether {count} of {count} cells fit into memory is unknown after 0 s; harness plan"
        " --memory may take longer"
    )


def test_a_forecast_that_fails_stops_no_submission(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(fitting, "forecast_cells", refuse)
    sweep = load_sweep(find_sweep_file("quickstart"), [], [])
    warning = memory_warning(sweep, Profile(memory_per_device="80GiB"))
    assert warning == "whether the cells fit into memory is unknown: No space left on device"
