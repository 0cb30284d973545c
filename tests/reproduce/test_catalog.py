"""The catalogue finds operations that do not repeat, or that depend on placement or threads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.core.paths import TrialFolder
from harness.records.assignment import Assignment, write_assignment
from harness.records.record import RankResult
from harness.render.audit import operation_row, operations_to_json, summary_lines
from harness.reproduce import operation_worker
from harness.reproduce.catalog import (
    OperationResult,
    ThreadResult,
    group_operations,
    read_operations,
    single_process,
)
from harness.reproduce.operation_worker import OperationMeter
from harness.spec.axes import DEFAULTS, Axes
from harness.spec.cell import Trial
from harness.spec.sweep import load_sweep
from harness.training.state import TrainingState
from tests.support.running import line_sweep
from tests.support.training import SINGLE_RANK

calls = itertools.count()


def changing(inputs: Tensor) -> Tensor:
    """Return other bits in every call."""
    return inputs + next(calls)


def placed(inputs: Tensor) -> Tensor:
    """Return other bits for inputs that do not begin at an aligned address."""
    return inputs + float(inputs.data_ptr() % 64 > 0)


def threaded(inputs: Tensor) -> Tensor:
    """Return other bits with another number of threads."""
    return inputs + torch.get_num_threads()


def overwriting(inputs: Tensor) -> None:
    """Change the inputs, otherwise in every call."""
    inputs += next(calls)


@pytest.fixture(scope="module", autouse=True)
def operations() -> Iterator[None]:
    """Make these functions operations of torch."""
    library: Any = torch.library.Library("audited", "DEF")  # type: ignore[no-untyped-call]
    for function in (changing, placed, threaded):
        library.define(f"{function.__name__}(Tensor inputs) -> Tensor")
        library.impl(function.__name__, function, "CPU")
    library.define("overwriting(Tensor(a!) inputs) -> ()")
    library.impl("overwriting", overwriting, "CPU")
    yield
    library._destroy()


def measure(name: str, *inputs: Tensor) -> OperationResult:
    """Return what is measured of a single operation with 1 and 2 threads."""
    meter = OperationMeter(threads=(1, 2), repeats=4)
    with meter:
        getattr(torch.ops.audited, name)(*inputs)
    (result,) = meter.results()
    return result


@pytest.mark.parametrize(
    ("name", "repeatable", "placement", "threads"),
    [
        ("changing", False, False, False),
        ("overwriting", False, False, False),
        ("placed", True, True, False),
        ("threaded", True, False, True),
    ],
)
def test_an_operation_with_a_defect_is_found(
    name: str, repeatable: bool, placement: bool, threads: bool
) -> None:
    result = measure(name, torch.zeros(8))
    assert result.operation == f"audited.{name}.default"
    assert result.is_repeatable is repeatable
    assert result.depends_on_placement is placement
    assert result.depends_on_threads is threads
    assert not result.is_exact


def test_a_training_step_computes_the_same_while_its_operations_are_measured() -> None:
    """Random numbers, inputs that operations change, and the number of threads stay as they were."""

    def train(meter: AbstractContextManager[object]) -> list[Tensor]:
        """Return the parameters after two steps, the second of them in a context."""
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        for context in (nullcontext(), meter):
            with context:
                model(torch.randn(16, 8)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        return list(model.parameters())

    threads = torch.get_num_threads()
    meter = OperationMeter(threads=(threads,), repeats=3)
    plain, measured = train(nullcontext()), train(meter)
    assert all(torch.equal(a, b) for a, b in zip(plain, measured, strict=True))
    assert torch.get_num_threads() == threads
    results = {result.operation: result for result in meter.results()}
    assert {"aten.addmm.default", "aten.bernoulli_.float", "aten._fused_adam_.default"} <= set(
        results
    )
    assert "aten.view.default" not in results
    assert all(result.is_repeatable for result in results.values())
    adam = results["aten._fused_adam_.default"]
    assert (adam.dtype, adam.calls) == ("float32", 1)
    assert adam.sizes.startswith("20 tensors of ")


def test_calls_on_inputs_of_the_same_kind_are_measured_once() -> None:
    meter = OperationMeter(threads=(1,), repeats=2)
    inputs = [torch.zeros(2, columns) for columns in (3, 4, 3)]
    with meter:
        for tensor in inputs:
            torch.ops.audited.threaded(tensor)
    assert [(result.sizes, result.calls) for result in meter.results()] == [("2×3", 2), ("2×4", 1)]


def test_the_catalogue_of_a_trial(tmp_path: Path) -> None:
    path = line_sweep(tmp_path, {"line": {}}, length={"steps": 4})
    (cell,) = load_sweep(path).cells
    folder = TrialFolder(tmp_path / "trial")
    folder.path.mkdir()
    assignment = Assignment(trial=Trial(cell=cell, seed=0), base_folder=str(tmp_path))
    write_assignment(folder.assignment_path, assignment)
    entered = RankResult(rank=0, host="node1", pid=1, entered_at=0.0)
    threads = torch.get_num_threads()
    operation_worker.measure_rank(folder, SINGLE_RANK, entered, TrainingState())
    torch.set_num_threads(threads)
    results = read_operations(folder.path)
    assert {run.threads for result in results for run in result.runs} == {1, 2, 4}
    assert any(result.operation.startswith("aten.mse_loss") for result in results)
    assert all(result.is_repeatable for result in results)


def make_result(sizes: str, *runs: tuple[str, int, int], elements: int = 1) -> OperationResult:
    """Return a result; `runs` has digest, distinct and distinct_shifted for 1, 2, … threads."""
    thread_results = []
    for threads, (digest, distinct, shifted) in enumerate(runs, start=1):
        thread_results.append(
            ThreadResult(
                threads=threads, digest=digest, distinct=distinct, distinct_shifted=shifted
            )
        )
    return OperationResult(
        operation="aten.mm.default",
        dtype="float32",
        sizes=sizes,
        elements=elements,
        calls=1,
        runs=thread_results,
    )


def test_a_row_shows_the_worst_size() -> None:
    exact = make_result("4×4", ("a", 1, 1), ("a", 1, 1), elements=99)
    threads = make_result("2×2", ("a", 1, 1), ("b", 1, 1))
    placement = make_result("3×3", ("a", 1, 2), ("a", 1, 2))
    unordered = make_result("5×5", ("a", 1, 1), ("b", 9, 9))
    for results, expected in [
        ([exact], ["4×4", "the same", "the same", "the same"]),
        ([exact, threads], ["2×2 and 1 more", "the same", "the same", "other bits"]),
        ([threads, placement], ["3×3 and 1 more", "the same", "other bits", "the same"]),
        ([placement, unordered], ["5×5 and 1 more", "9 of 25 at 2 threads", "the same", "–"]),
    ]:
        (group,) = group_operations({"mlp": results})
        assert operation_row(group)[2:] == expected


def test_workloads_share_what_they_have_in_common() -> None:
    result = make_result("4×4", ("a", 1, 1))
    groups = group_operations({"mlp": [result], "cnn": [result]})
    (group,) = groups
    assert len(group.results) == 1
    assert summary_lines(groups, []) == [
        "1 operation in 1 size, each run 25 times on aligned and 25 times on other addresses"
        " with 1 threads",
        "always the same bits: aten.mm.default (float32)",
    ]
    assert operations_to_json({"mlp": [result]})["mlp"][0]["depends_on_placement"] is False


def test_one_process_computes_what_a_rank_does() -> None:
    axes = Axes(
        batch_size=64,
        strategy="ddp",
        world_size=4,
        bucket_cap_mb=1.0,
        num_workers=2,
        prefetch_factor=4,
        execution="compile",
        cache="cold",
        deterministic=True,
        optimizer_impl="fused",
    )
    assert single_process(axes) == Axes(
        **{**DEFAULTS, "batch_size": 16, "deterministic": True, "optimizer_impl": "fused"}
    )
