"""Logs in MLPerf's format say what happened when, and MLCommons' own checker accepts them."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import BadInput, Interrupted
from harness.core.paths import Results, TrialFolder
from harness.launch.assemble import assemble
from harness.mllog import checker
from harness.mllog.log import PREFIX, Line, log_lines
from harness.records.assignment import Assignment, write_assignment
from harness.records.files import write_record
from harness.records.record import Collective, RankResult, Record, StopOutcome, TargetMetric
from harness.spec import sweep as spec
from harness.spec.cell import StopRule
from harness.spec.validity import ValidityRules
from harness.training import train, worker
from harness.training.state import TrainingState
from tests.factories import make_cell, make_record, write_sweep
from tests.support.commands import harness
from tests.support.running import line_sweep
from tests.support.training import SINGLE_RANK

STEPS, STEPS_PER_EPOCH = 20, 8  # 256 samples in batches of 32
BENCHMARK = "harness_line"


def run_attempt(folder: TrialFolder, assignment: Assignment, start: int, stop: int | None) -> None:
    """Train in this process from the step `start`, and leave what a rank leaves.

    One step a segment; the request to stop comes after the step `stop`. Raises Interrupted.
    """
    checks = itertools.count(start)
    entered = RankResult(rank=0, host="node1", pid=1, entered_at=time.time())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "SEGMENT_SECONDS", 1e-9)
        patch.setattr(train, "is_requested", lambda: next(checks) == stop)
        result = worker.train(folder, SINGLE_RANK, entered, TrainingState())
    write_record(folder.result_path(0), result)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Return the record of a trial that was interrupted at the end of an epoch and within one."""
    base = tmp_path_factory.mktemp("mllog")
    path = line_sweep(base, {"line": {}}, length={"steps": STEPS}, evaluate={"steps": 5})
    sweep = spec.load_sweep(path)
    assignment = Assignment(
        trial=sweep.trials()[0], base_folder=str(sweep.base_folder), device="cpu"
    )
    folder = TrialFolder(base / "trial")
    folder.path.mkdir()
    write_assignment(folder.assignment_path, assignment)
    started = time.time()
    for start, stop in ((0, STEPS_PER_EPOCH), (STEPS_PER_EPOCH, 12)):
        with pytest.raises(Interrupted):
            run_attempt(folder, assignment, start, stop)
    run_attempt(folder, assignment, 12, None)
    return assemble(
        folder, sweep.name, assignment, started=started, ended=time.time(), previous_failures=(),
        ended_by=None, rules=ValidityRules(),
    )  # fmt: skip


def keys_and(lines: Sequence[Line], name: str) -> list[tuple[str, Any]]:
    """Return the key of each line that has a name in its metadata, with its value."""
    return [(line.key, line.metadata[name]) for line in lines if name in line.metadata]


def test_a_resumed_trial_is_one_run_in_the_order_of_its_moments(record: Record) -> None:
    lines = log_lines(record)
    moments = [line.at for line in lines]
    assert moments == sorted(moments)
    assert record.started < moments[0]
    assert moments[-1] < record.ended
    epochs = [line for line in lines if line.key.startswith("epoch_")]
    assert keys_and(epochs, "epoch_num") == [
        ("epoch_start", 1), ("epoch_stop", 1), ("epoch_start", 2), ("epoch_stop", 2), ("epoch_start", 3),
    ]  # fmt: skip
    blocks = [line for line in lines if line.key in ("block_start", "eval_start", "eval_accuracy")]
    assert keys_and(blocks, "samples_count") == [
        ("block_start", 0), ("eval_start", 160), ("eval_accuracy", 160),
        ("block_start", 160), ("eval_start", 320), ("eval_accuracy", 320),
        ("block_start", 320), ("eval_start", 480), ("eval_accuracy", 480),
        ("block_start", 480), ("eval_start", 640), ("eval_accuracy", 640),
    ]  # fmt: skip
    interruptions = [line for line in lines if line.key == "interrupted"]
    assert keys_and(interruptions, "step") == [("interrupted", 8), ("interrupted", 12)]
    at = {line.key: line.at for line in reversed(lines)}  # of the first line of each key
    assert at["init_start"] < at["run_start"] < at["epoch_start"] < at["epoch_stop"]
    assert at["epoch_stop"] < interruptions[0].at  # the first attempt's, as the run is


MUTANTS: dict[str, Callable[[list[str]], list[str]]] = {
    "no end": lambda lines: [line for line in lines if '"run_stop"' not in line],
    "MLPerf's": lambda lines: [line.replace(BENCHMARK, "flux1") for line in lines],
    "run before it is set up": lambda lines: sorted(lines, key=lambda line: '"init_stop"' in line),
    # The checker only warns about this one, which `--werror` makes an error.
    "seen twice": lambda lines: [*lines, *(line for line in lines if '"eval_samples"' in line)],
}


def test_the_checker_accepts_a_log_and_refuses_mutants(record: Record, tmp_path: Path) -> None:
    lines = [str(line) for line in log_lines(record)]
    paths = []
    for number, mutate in enumerate([lambda lines: lines, *MUTANTS.values()]):
        path = tmp_path / f"{number}.log"
        path.write_text("\n".join(mutate(lines)), encoding="utf-8")
        paths.append(path)
    answers = checker.check_logs(paths, [BENCHMARK])
    assert answers[0].accepted, answers[0].output
    refused = [
        name for name, answer in zip(MUTANTS, answers[1:], strict=True) if not answer.accepted
    ]
    assert refused == list(MUTANTS)
    assert "CHECK for 'submission_benchmark' failed" in answers[2].output


def test_no_benchmark_of_mlperf_is_named() -> None:
    """A workload may be called what the user likes, resnet for instance."""
    (rule,) = [
        rule["KEY"] for rule in checker.rules(["harness_resnet"])
        if rule.get("KEY", {}).get("NAME") == checker.BENCHMARK
    ]  # fmt: skip
    assert rule["CHECK"] == "v['value'] in ['harness_resnet']"
    values = values_of(make_record(make_cell("resnet")))
    assert values["submission_benchmark"] == "harness_resnet"


def values_of(record: Record) -> dict[str, Any]:
    """Return the value of each key of a log, without those of the harness's own."""
    return {line.key: line.value for line in log_lines(record) if not line.namespace}


def test_hyperparameters_are_those_of_the_cell() -> None:
    cell = make_cell(
        strategy="fsdp2", world_size=2, precision="bf16:fsdp2", grad_accum_steps=4, optimizer="adamw",
        lr=0.01,
    )  # fmt: skip
    record = make_record(cell, seed=7)
    assert record.rank0
    sent = [
        Collective(operation="all_gather", dtype=dtype, ranks=2, calls=1, bytes=8)
        for dtype in ("fp32", "bf16", "int64")
    ]
    values = values_of(replace(record, rank0=replace(record.rank0, collectives=sent)))
    assert values["seed"] == 7
    assert values["global_batch_size"] == 64
    assert values["micro_batch_size"] == 8
    assert values["gradient_accumulation_steps"] == 4
    assert values["lowest_numerical_precision_in_linear"] == "bfloat16"
    assert values["lowest_numerical_precision_in_comm"] == "bfloat16"
    assert (values["opt_name"], values["opt_base_learning_rate"]) == ("adamw", 0.01)
    assert (values["train_samples"], values["eval_samples"]) == (660, 60)


@pytest.mark.parametrize(
    ("goal", "reason", "status"),
    [(0.9, "goal", "success"), (0.9, "length", "aborted"), (None, "patience", "success")],
)
def test_a_run_without_its_goal_is_aborted(goal: float | None, reason: Any, status: str) -> None:
    cell = replace(make_cell(), stop=StopRule(goal=goal, patience=2))
    record = make_record(cell)
    assert record.rank0
    loss = TargetMetric(name="loss", higher_is_better=False)
    stop = StopOutcome(reason=reason, step=10, metric=loss, restored=False)
    lines = log_lines(replace(record, rank0=replace(record.rank0, stop=stop)))
    assert (lines[-1].key, lines[-1].metadata["status"]) == ("run_stop", status)


def test_the_command_writes_logs_of_recorded_trials(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = results.sweep_folder("demo")
    failed = replace(failed_at_rank_1(), trial=replace(make_record().trial, seed=1))
    write_sweep(folder, [make_record(), failed])
    path = folder.trial_folder(make_record().trial.id).mllog_path
    shown = harness("results", "mllog", "demo", "--results", str(results.path))
    assert (shown.code, shown.out) == (0, f"{path}\n")
    lines = path.read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[-1].removeprefix(PREFIX))["key"] == "run_stop"
    shown = harness("results", "mllog", "demo", "--check", "--results", str(results.path))
    assert shown.code == 0, shown.err
    assert shown.out.endswith("rules of training 6.1.0: 1 accepted, 0 refused\n")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    shown = harness("results", "mllog", "demo", "--check", "--results", str(results.path))
    assert shown.code == 2
    assert shown.err == (
        "harness: --check: found no package mlperf_logging; allowed with it:"
        " pip install 'distributed-training-harness[mllog]'\n"
    )


def failed_at_rank_1() -> Record:
    """Return the record of a trial that failed after rank 0 had written its result."""
    done, failed = make_record(), make_record(status="failed")
    return replace(failed, rank0=done.rank0, environment=done.environment)


@pytest.mark.parametrize("record", [make_record(status="failed"), failed_at_rank_1()])
def test_a_trial_that_failed_is_refused_by_name(record: Record) -> None:
    with pytest.raises(
        BadInput, match=r"^demo: mlp-\w+-s0-r0: is failed; allowed: done or invalid$"
    ):
        log_lines(record)
