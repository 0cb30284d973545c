"""A rank proves that it has the variables of its cell, and does its task."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness.core.errors import NotApplied
from harness.core.paths import TrialFolder
from harness.records.record import RankResult
from harness.sweep.axes import Variables
from harness.training import entry
from harness.training.state import TrainingState
from harness.training.worker import _failed
from tests.support.training import SINGLE_RANK


@pytest.mark.parametrize(
    ("assigned", "problem"),
    [
        ({"X_1": "a"}, None),
        ({"X_2": None}, None),
        ({"X_2": "a"}, "env.X_2=a was not passed on: found unset"),
        ({"X_1": None}, "env.X_1=unset was not passed on: found a"),
    ],
)
def test_a_rank_has_the_variables_of_its_cell(
    monkeypatch: pytest.MonkeyPatch, assigned: Variables, problem: str | None
) -> None:
    monkeypatch.setenv("X_1", "a")
    if problem is None:
        entry.check_variables(assigned)
        return
    with pytest.raises(NotApplied) as failure:
        entry.check_variables(assigned)
    assert str(failure.value) == problem


def test_instructions_that_torch_does_not_use_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    entry.check_variables({"ATEN_CPU_CAPABILITY": "avx2"})
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    with pytest.raises(NotApplied, match="=default had no effect: torch uses AVX2"):
        entry.check_variables({"ATEN_CPU_CAPABILITY": "default"})


@pytest.mark.parametrize("name", [b"/nowhere/points", "/nowhere/points", 999_999])
def test_any_file_that_cannot_be_opened_is_a_failure_with_its_error(
    tmp_path: Path, name: bytes | str | int
) -> None:
    """Python names files by bytes and by numbers, too."""
    with pytest.raises(OSError, match=r"No such file|Bad file") as raised:
        open(name)  # noqa: PTH123, SIM115 - a Path is no bytes
    entered = RankResult(rank=0, host="", entered_at=0.0)
    folder = TrialFolder(tmp_path)
    failure = _failed(raised.value, folder, SINGLE_RANK, entered, TrainingState()).failure
    assert failure is not None
    assert failure.kind in ("FileNotFoundError", "OSError")
    assert failure.message.startswith("[Errno ")
