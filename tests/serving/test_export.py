"""`harness export` from the command line, with its processes run in this one."""

from __future__ import annotations

import copy
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from harness.core.errors import BadInput, NotApplied
from harness.core.paths import Results, TrialFolder
from harness.records.assignment import Assignment
from harness.render.serving import serving_lines
from harness.serving import exporting, latency_worker
from harness.serving.export_worker import export
from harness.serving.exporters import EXPORTERS, Exporter
from harness.serving.orders import (
    ExportOrder,
    LatencyAnswer,
    LatencyOrder,
    answer_path,
    read_order,
    write_message,
)
from harness.serving.record import (
    ExportedModel,
    FormatName,
    ModelInput,
    read_export,
    write_export,
)
from harness.spec.cell import Trial
from harness.spec.cluster import Profile
from harness.tracking import Tracker
from tests.factories import make_record, write_sweep
from tests.serving.blobs import (
    SAMPLES,
    Net,
    TrainedTrial,
    files_below,
    make_blobs,
    perturbed,
    train,
)
from tests.support.commands import CommandResult, harness
from tests.support.mlflow import by_label
from tests.support.training import CPU


def run_in_this_process(
    task: str,
    trial: Trial,
    base_folder: Path,
    profile: Profile,
    timeout: float,
    parent: Path,
    prepare: Callable[[TrialFolder], None],
) -> TrialFolder:
    """Do what a process of an export does, with the workload of the tests."""
    folder = TrialFolder(Path(tempfile.mkdtemp(dir=parent)))
    prepare(folder)
    assignment = Assignment(trial=trial, base_folder=str(base_folder), device=profile.device)
    if task == "export":
        answer = export(read_order(folder, ExportOrder), assignment, make_blobs(), CPU)
        write_message(answer_path(folder), answer)
        return folder
    order = read_order(folder, LatencyOrder)
    groups = latency_worker.measure_groups(order, assignment, make_blobs(), CPU)
    write_message(answer_path(folder), LatencyAnswer(groups=groups))
    return folder


@pytest.fixture
def trained(results: Results, monkeypatch: pytest.MonkeyPatch) -> TrainedTrial:
    """Return a trial whose exports run in this process, without a compiler."""
    monkeypatch.setattr(exporting, "run_unmeasured", run_in_this_process)
    monkeypatch.setattr(latency_worker, "missing_compiler", lambda: "found no C++ compiler")
    return train(results)


@pytest.fixture
def command(results: Results, tmp_path: Path) -> Callable[..., CommandResult]:
    """Return a function that runs `harness export` with a profile that measures at once."""
    profile = tmp_path / "free.yaml"
    profile.write_text("device: cpu\nvalidity: {contention: null}\n", encoding="utf-8")
    options = ["--results", str(results.path), "--cluster", str(profile)]
    return lambda *arguments: harness("export", *arguments, *options)


def write_weights(workload: Any, model: nn.Module, shape: Any, folder: Path) -> list[str]:
    """Write the parameters alone, at once, where a test is of what comes after an export."""
    torch.save(model.state_dict(), folder / "model.pt2")
    return ["inputs"]


def load_weights(folder: Path, eager: nn.Module, threads: int) -> Any:
    """Return a net with the parameters that `write_weights` has written."""
    net = Net().eval()
    net.load_state_dict(torch.load(folder / "model.pt2"))
    return lambda *inputs: [net(*inputs)]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `torch-export` write parameters alone."""
    monkeypatch.setitem(EXPORTERS, "torch-export", Exporter(write_weights, load_weights))


def test_a_trial_is_exported_timed_delivered_and_shown(
    trained: TrainedTrial, command: Callable[..., CommandResult], results: Results
) -> None:
    ended = command(
        "demo", "--best", "--to", "onnx", "--batch-size", "1,40", "--threads", "1", "--calls", "30"
    )
    assert (ended.code, ended.err) == (0, ""), ended.err
    exported = read_export(trained.folder)
    assert exported is not None
    (model,) = exported.models
    assert model.parity.samples == SAMPLES
    assert model.parity.metrics == trained.metrics
    assert [(group.batch_size, len(group.arms)) for group in exported.latency] == [(1, 2), (40, 2)]
    assert all(len(arm.nanoseconds) == 30 for group in exported.latency for arm in group.arms)
    assert "without torch.compile: found no C++ compiler" in ended.out
    assert "step 12, recorded accuracy 0.9" in ended.out
    served = EXPORTERS["onnx"].load(trained.folder.exported_model("onnx"), Net(), 1)
    assert served(torch.zeros(5, 4))[0].shape == (5, 3)
    lines = [line[2:] for line in ended.out.partition("serve onnx:\n")[2].splitlines()[:3]]
    assert lines[-1].endswith("  # points: float32 (batch, 4)"), lines
    scope: dict[str, Any] = {}
    exec("\n".join(lines), scope)
    assert scope["outputs"][0].shape == (1, 3)
    assert scope["session"].get_inputs()[0].shape == ["batch", 4]

    table = json.loads(command(trained.record.trial.id, "--format", "json").out)
    assert [row["arm"] for row in table] == ["eager", "onnx"] * 2
    report = harness("results", "report", "demo", "--results", str(results.path))
    page = Path(report.out.strip()).read_text(encoding="utf-8")
    assert "Exported models" in page
    assert "onnx" in page

    Tracker(results).deliver(results.sweep_folder("demo"))
    assert [path.name for path in results.artifacts.rglob("export/*")].count("export.json") == 1
    assert len(list(results.artifacts.rglob("export/onnx/model.onnx"))) == 1
    run = by_label(f"sqlite:///{results.database}", "demo")[
        "mlp eager fp32 single w0 b32 t1 seed 0"
    ]
    metrics = run.data.metrics
    assert metrics["export_onnx_b40_t1_p50_ms"] > 0
    assert metrics["export_onnx_largest_difference"] <= model.parity.tolerance


def test_a_file_with_another_weight_is_refused(
    trained: TrainedTrial,
    command: Callable[..., CommandResult],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def write(workload: Any, model: nn.Module, shape: Any, folder: Path) -> list[str]:
        return write_weights(workload, perturbed(copy.deepcopy(model)), shape, folder)

    monkeypatch.setitem(EXPORTERS, "torch-export", Exporter(write, load_weights))
    ended = command(trained.record.trial.id, "--to", "torch-export", "--calls", "0")
    assert ended.code == 1
    assert "harness: torch-export: " in ended.err
    assert f"of {SAMPLES} samples of the test set differ from eager mode by more than" in ended.err
    assert "nothing was exported" in ended.err
    assert not trained.folder.export_folder.exists()


@pytest.mark.usefixtures("quick")
def test_what_was_exported_before_stays_when_a_format_fails(
    trained: TrainedTrial,
    command: Callable[..., CommandResult],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trial = trained.record.trial.id
    assert command(trial, "--to", "torch-export", "--calls", "0").code == 0
    before = files_below(trained.folder.export_folder)

    def fail(*_: object) -> Any:
        raise RuntimeError("no operator for\nfft")

    monkeypatch.setitem(EXPORTERS, "torch-export", Exporter(fail, fail))
    ended = command(trial, "--to", "torch-export", "--calls", "0")
    assert ended.code == 2
    assert "harness: --to torch-export: RuntimeError: no operator for fft" in ended.err
    assert files_below(trained.folder.export_folder) == before
    assert before == ["export.json", "torch-export/model.pt2"]


def test_a_damaged_checkpoint_is_refused(
    trained: TrainedTrial, command: Callable[..., CommandResult]
) -> None:
    assert trained.record.rank0 is not None
    weights = trained.folder.path / str(trained.record.rank0.checkpoint) / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    ended = command(trained.record.trial.id, "--to", "torch-export")
    assert ended.code == 2
    assert "model.safetensors: found SHA-256" in ended.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "onxx"], "--to: found 'onxx'; did you mean 'onnx'? allowed: aotinductor, onnx,"),
        (["--to", "onnx,onnx"], "--to: found onnx twice"),
        (["--to", "aotinductor"], "--to aotinductor: found no C++ compiler none-such; needed: g++"),
        (["--to", "onnx", "--batch-size", "0"], "--batch-size: found '0'; allowed: whole numbers"),
        (["--to", "onnx", "--threads", "all"], "--threads: found 'all'; allowed: whole numbers"),
        (["--format", "xml"], "--format: found 'xml'; allowed: csv, json, markdown, parquet"),
        ([], "nothing was exported yet; needed: --to with any of onnx, torch-export"),
    ],
)
def test_bad_input_is_refused(
    arguments: list[str],
    message: str,
    results: Results,
    command: Callable[..., CommandResult],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "none-such")
    record = make_record()
    write_sweep(results.sweep_folder("demo"), [record])
    ended = command(record.trial.id, *arguments)
    assert ended.code == 2
    assert message in ended.err


def test_a_trial_without_parameters_says_what_to_set(
    results: Results, command: Callable[..., CommandResult]
) -> None:
    record = make_record()
    write_sweep(results.sweep_folder("demo"), [record])
    ended = command(record.trial.id, "--to", "torch-export")
    assert ended.code == 2
    assert (
        "found no parameters, as its sweep has checkpoint: none; needed: harness run" in ended.err
    )


def test_a_script_has_no_remedy_as_its_checkpoints_are_its_own(tmp_path: Path) -> None:
    record = make_record()
    workload = replace(record.trial.cell.workload, uses="train.py", arguments=())
    trial = replace(record.trial, cell=replace(record.trial.cell, workload=workload))
    with pytest.raises(BadInput, match=r"found train\.py, a script .*; allowed for this command"):
        exporting.find_checkpoint(replace(record, trial=trial), tmp_path)


@pytest.mark.usefixtures("quick")
def test_exports_that_were_changed_by_hand_are_refused(
    trained: TrainedTrial, command: Callable[..., CommandResult]
) -> None:
    assert command(trained.record.trial.id, "--to", "torch-export", "--calls", "0").code == 0
    exported = read_export(trained.folder)
    assert exported is not None
    write_export(trained.folder, exported)
    path = trained.folder.export_path
    path.write_text(
        path.read_text(encoding="utf-8").replace('"step": 12', '"step": 13'), encoding="utf-8"
    )
    ended = command(trained.record.trial.id)
    assert ended.code == 2
    assert "harness export writes it again" in ended.err


@pytest.mark.usefixtures("quick")
def test_a_model_that_was_changed_since_it_was_compared_is_not_timed(
    trained: TrainedTrial, command: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = trained.record.trial.id
    assert command(trial, "--to", "torch-export", "--calls", "0").code == 0
    model = trained.folder.exported_model("torch-export") / "model.pt2"
    model.write_bytes(model.read_bytes() + b"x")
    monkeypatch.setitem(EXPORTERS, "onnx", EXPORTERS["torch-export"])
    ended = command(trial, "--to", "onnx", "--calls", "1")
    assert ended.code == 2
    assert (
        "torch-export: found other files than those that were compared with eager mode" in ended.err
    )
    assert f"harness export {trial} --to torch-export, which writes them again" in ended.err


@pytest.mark.usefixtures("quick")
def test_a_model_whose_runtime_is_gone_is_left_out_of_the_latencies(
    trained: TrainedTrial, command: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latency_worker, "missing_runtime", lambda name: f"found no {name}")
    ended = command(
        trained.record.trial.id, "--to", "torch-export", "--batch-size", "1", "--threads", "1", "--calls", "2"
    )  # fmt: skip
    assert ended.code == 0
    assert "without torch-export: found no torch-export" in ended.out


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("torch-export", "outputs = model(torch.zeros((1, 4), dtype=torch.float32).to('cuda'))"),
        ("onnx", "session = onnxruntime.InferenceSession('x/onnx/model.onnx', providers=['CUDA"),
        ("save_pretrained", "model = AutoModel.from_pretrained('x/save_pretrained').to('cuda')"),
    ],
)
def test_a_model_of_a_gpu_is_served_there(name: FormatName, line: str) -> None:
    points = ModelInput(name="points", dtype="float32", shape=["batch", "4"])
    parity: Any = None
    model = ExportedModel(
        format=name, bytes=1, files={}, seconds=1.0, parity=parity, inputs=[points]
    )
    assert any(shown.startswith(line) for shown in serving_lines(model, "x", "cuda"))
    assert not any("cuda" in shown.lower() for shown in serving_lines(model, "x", "cpu"))


def test_a_graph_that_would_run_on_the_cpu_instead_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where onnxruntime-gpu is made for another CUDA: it falls back, and says so in a log."""
    runtime = Mock()
    runtime.get_available_providers.return_value = ["CUDAExecutionProvider"]
    runtime.InferenceSession.return_value.get_providers.return_value = ["CPUExecutionProvider"]
    monkeypatch.setitem(sys.modules, "onnxruntime", runtime)
    eager = Mock()
    eager.parameters.return_value = iter([Mock(device=torch.device("cuda"))])
    with pytest.raises(NotApplied, match="on the CPU instead of its CUDAExecutionProvider"):
        EXPORTERS["onnx"].load(tmp_path, eager, 1)
