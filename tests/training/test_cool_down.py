"""Before a trial trains, each of its GPUs has to be as cool as the profile asks for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.core.errors import NotApplied
from harness.core.paths import TrialFolder
from harness.measure.gpu import NvmlGpu
from harness.records.assignment import Assignment, write_assignment
from harness.records.record import RankResult
from harness.training import entry, script, worker
from harness.training.state import TrainingState
from tests.support.gpu import FakeGpu
from tests.support.training import SINGLE_RANK, make_assignment

CUDA = torch.device("cuda", 0)


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has a rank find a GPU with these temperatures, one at each look."""

    def put_gpu(*temperatures: float | None) -> FakeGpu:
        gpu = FakeGpu(temperatures=temperatures)
        monkeypatch.setattr(NvmlGpu, "of", lambda device: gpu)
        return gpu

    monkeypatch.setattr(entry, "COOL_DOWN_LOOK", 0.01)
    return put_gpu


def assignment(celsius: int | None = 55) -> Assignment:
    """Return a trial of a profile that waits until GPUs are so cool."""
    return replace(make_assignment(steps=3), cool_down_celsius=celsius)


def test_a_rank_waits_until_its_gpu_is_cool(put: Any) -> None:
    gpu, state = put(71.0, 63.0, 55.0, 90.0), TrainingState()
    entry.cool_down(assignment(), CUDA, state)
    assert 0.02 <= state.phases["cool_down"] < 10
    assert gpu.celsius() == 90.0  # it looked three times
    assert gpu.closed


def test_a_gpu_that_does_not_get_cool_is_waited_for_no_longer_than_said(
    put: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(71.0)
    monkeypatch.setattr(entry, "COOL_DOWN_SECONDS", 0.05)
    entry.cool_down(assignment(), CUDA, TrainingState())
    assert capsys.readouterr().out == "the GPU has 71 °C after 0 s, not 55\n"


@pytest.mark.parametrize(("celsius", "device"), [(None, CUDA), (55, torch.device("cpu"))])
def test_trials_that_are_not_told_to_wait_and_those_on_cpus_do_not(
    put: Any, celsius: int | None, device: torch.device
) -> None:
    put(RuntimeError("nobody may look"))
    state = TrainingState()
    entry.cool_down(assignment(celsius), device, state)
    assert state.phases == {}


def test_a_temperature_that_is_unknown_is_no_cool_gpu(
    put: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = put(None)
    with pytest.raises(
        NotApplied, match=r"^cool_down_celsius=55 had no effect: the GPU reports no"
    ):
        entry.cool_down(assignment(), CUDA, TrainingState())
    assert gpu.closed

    def without_driver(device: torch.device) -> FakeGpu:
        raise RuntimeError("Driver Not Loaded")

    monkeypatch.setattr(NvmlGpu, "of", without_driver)
    with pytest.raises(NotApplied, match=r"had no effect: Driver Not Loaded$"):
        entry.cool_down(assignment(), CUDA, TrainingState())


def test_it_comes_after_the_model_is_built_and_before_the_first_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = []

    def look(assignment: Assignment, device: torch.device, state: TrainingState) -> None:
        seen.append(("build" in state.phases, state.step))

    monkeypatch.setattr(worker, "cool_down", look)
    folder = TrialFolder(tmp_path)
    write_assignment(folder.assignment_path, replace(make_assignment(steps=3), device="cpu"))
    entered = RankResult(rank=0, host="node1", pid=1, entered_at=0.0)
    result = worker.train(folder, SINGLE_RANK, entered, TrainingState())
    assert result.loss is not None
    assert seen == [(True, 0)]


def test_a_script_begins_after_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = []

    def run(assignment: Assignment, folder: TrialFolder) -> None:
        seen.append("script")
        raise RuntimeError("the end of the script")

    monkeypatch.setattr(script, "cool_down", lambda *arguments: seen.append("cool down"))
    monkeypatch.setattr(script, "execute", run)
    folder = TrialFolder(tmp_path)
    write_assignment(folder.assignment_path, assignment(None))
    entered = RankResult(rank=0, host="node1", pid=1, entered_at=0.0)
    with pytest.raises(RuntimeError, match="the end of the script"):
        script.run_script(folder, SINGLE_RANK, entered, TrainingState())
    assert seen == ["cool down", "script"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_real_gpu_reports_its_temperature() -> None:
    state = TrainingState()
    entry.cool_down(assignment(celsius=120), CUDA, state)
    assert state.phases["cool_down"] < 10
