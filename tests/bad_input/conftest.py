"""What every mistake starts from."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch  # noqa: F401 - processes that import users' workloads are forked from this one


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("HARNESS_RESULTS", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path
