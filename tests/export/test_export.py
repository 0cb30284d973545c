"""`harness export` from the command line, with its process run in this one."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from harness.core.errors import NotApplied
from harness.core.paths import Results
from harness.export.models import EXPORTERS
from harness.export.record import read_export
from harness.export.worker import export
from harness.launch import tasks
from harness.launch.launcher import RankProgram
from harness.records.assignment import read_assignment
from tests.export.blobs import SAMPLES, Net, TrainedTrial, files_below, make_blobs, perturbed, train
from tests.factories import make_record, write_sweep
from tests.support.commands import CommandResult, harness
from tests.support.training import CPU

Command = Callable[..., CommandResult]


def export_here(launcher: object, program: RankProgram, timeout: float) -> None:
    """Do what the process of an export does, with the workload of the tests."""
    assignment = read_assignment(program.folder.assignment_path)
    export(program.folder, assignment, make_blobs(), CPU)


@pytest.fixture
def trained(results: Results, monkeypatch: pytest.MonkeyPatch) -> TrainedTrial:
    """Return a trial whose exports run in this process."""
    monkeypatch.setattr(tasks, "finish", export_here)
    return train(results)


@pytest.fixture
def command(results: Results, tmp_path: Path) -> Command:
    """Return a function that runs `harness export` with a profile that measures at once."""
    profile = tmp_path / "free.yaml"
    profile.write_text("device: cpu\nvalidity: {contention: null}\n", encoding="utf-8")
    options = ["--results", str(results.path), "--cluster", str(profile)]
    return lambda *arguments: harness("export", *arguments, *options)


def write_weights(model: nn.Module, shape: Any, folder: Path) -> list[str]:
    """Write the parameters alone, at once, where a test is of what comes after an export."""
    torch.save(model.state_dict(), folder / "model.pt2")
    return ["inputs"]


def load_weights(folder: Path, device: torch.device, threads: int) -> Any:
    """Return a net with the parameters that `write_weights` has written."""
    net = Net().eval()
    net.load_state_dict(torch.load(folder / "model.pt2"))
    return lambda *inputs: [net(*inputs)]


def test_a_trial_is_exported_and_timed(trained: TrainedTrial, command: Command) -> None:
    formats, sizes = (
        ("--to", "onnx", "--to", "torch-export"),
        ("--batch-size", "1", "--batch-size", "40"),
    )
    ended = command("demo", "--best", *formats, *sizes)
    assert (ended.code, ended.err) == (0, ""), ended.err
    exported = read_export(trained.folder)
    assert exported is not None
    assert [model.format for model in exported.models] == ["onnx", "torch-export"]
    for model in exported.models:
        assert model.parity.samples == SAMPLES
        assert model.parity.metrics == trained.metrics
        measured = [(latency.batch_size, latency.calls) for latency in model.latencies]
        assert measured == [(1, 200), (40, 200)]
        assert all(0 < latency.p50_ms <= latency.p95_ms for latency in model.latencies)
        (described,) = model.inputs
        assert described.endswith("points: float32 (batch, 4)")
        served = EXPORTERS[model.format][1](trained.folder.exported_model(model.format), CPU, 1)
        assert served(torch.zeros(5, 4))[0].shape == (5, 3)


def test_a_file_with_another_weight_is_refused(
    trained: TrainedTrial, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(model: nn.Module, shape: Any, folder: Path) -> list[str]:
        return write_weights(perturbed(copy.deepcopy(model)), shape, folder)

    monkeypatch.setitem(EXPORTERS, "torch-export", (write, load_weights))
    ended = command(trained.record.trial.id, "--to", "torch-export")
    assert ended.code == 1
    assert "harness: torch-export: outputs differ from eager mode by up to 0.00" in ended.err
    assert not trained.folder.export_folder.exists()


def test_what_was_exported_before_stays_when_a_format_fails(
    trained: TrainedTrial, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = trained.record.trial.id
    monkeypatch.setitem(EXPORTERS, "torch-export", (write_weights, load_weights))
    assert command(trial, "--to", "torch-export").code == 0
    before = files_below(trained.folder.export_folder)

    def fail(*_: object) -> Any:
        raise NotApplied("no operator for fft")

    monkeypatch.setitem(EXPORTERS, "onnx", (fail, fail))
    ended = command(trial, "--to", "torch-export", "--to", "onnx")
    assert ended.code != 0
    assert "no operator for fft" in ended.err
    assert files_below(trained.folder.export_folder) == before
    assert before == ["export.json", "torch-export/model.pt2"]


def test_a_damaged_checkpoint_is_refused(trained: TrainedTrial, command: Command) -> None:
    assert trained.record.rank0 is not None
    weights = trained.folder.path / str(trained.record.rank0.checkpoint) / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    ended = command(trained.record.trial.id, "--to", "torch-export")
    assert ended.code != 0
    assert "model.safetensors: found another SHA-256" in ended.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "onxx"], "--to: found 'onxx'; did you mean 'onnx'? allowed: onnx, torch-export"),
        (["--to", "onnx", "--batch-size", "0"], "Invalid value for '--batch-size'"),
        (["--to", "torch-export"], "found no parameters, as its sweep has checkpoint: none"),
    ],
)
def test_bad_input_is_refused(
    arguments: list[str], message: str, results: Results, command: Command
) -> None:
    record = make_record()
    write_sweep(results.sweep_folder("demo"), [record])
    ended = command(record.trial.id, *arguments)
    assert ended.code == 2
    assert message in ended.err


def test_a_script_has_no_remedy_as_its_checkpoints_are_its_own(
    results: Results, command: Command
) -> None:
    record = make_record()
    workload = replace(record.trial.cell.workload, uses="train.py", arguments=())
    trial = replace(record.trial, cell=replace(record.trial.cell, workload=workload))
    write_sweep(results.sweep_folder("demo"), [replace(record, trial=trial)])
    ended = command(trial.id, "--to", "torch-export")
    assert (ended.code, "found train.py, a script" in ended.err) == (2, True)


def test_a_graph_that_would_run_on_the_cpu_instead_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where onnxruntime-gpu is made for another CUDA: it falls back, and says so in a log."""
    runtime = Mock()
    runtime.InferenceSession.return_value.get_providers.return_value = ["CPUExecutionProvider"]
    monkeypatch.setitem(sys.modules, "onnxruntime", runtime)
    with pytest.raises(NotApplied, match="onnxruntime can't run on its CUDAExecutionProvider here"):
        EXPORTERS["onnx"][1](tmp_path, torch.device("cuda"), 1)
