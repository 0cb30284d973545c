"""Cluster profiles, and what a machine can't do."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.sweep import cluster
from tests.bad_input.refusals import GOOD, check, refused


@pytest.mark.parametrize(
    "setting", ["precision: tf32", "loader.pin_memory: true", "execution: compile:reduce-overhead"]
)
def test_what_only_a_gpu_can_do(setting: str) -> None:
    Path("sweep.yaml").write_text(GOOD + f"matrix: {{{setting}}}\n", encoding="utf-8")
    Path("cpu.yaml").write_text("device: cpu\n", encoding="utf-8")
    for command in ("plan", "run"):
        line = refused(command, "sweep.yaml", "--cluster", "cpu.yaml")
        assert line.endswith(f"{setting.replace(': ', ': found ', 1)}; needed: a GPU")


def test_world_size_beyond_the_machine() -> None:
    Path("sweep.yaml").write_text(
        GOOD + "matrix: {strategy: ddp, world_size: 2}\n", encoding="utf-8"
    )
    Path("small.yaml").write_text("slots: 1\n", encoding="utf-8")
    line = refused("run", "sweep.yaml", "--cluster", "small.yaml")
    assert "world_size: found 2; allowed: at most 1, the profile's `slots`" in line


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "count_gpus", lambda variables: 0)
    Path("sweep.yaml").write_text(GOOD, encoding="utf-8")
    Path("gpu.yaml").write_text("device: cuda\nslots: 2\n", encoding="utf-8")
    assert refused("run", "sweep.yaml", "--cluster", "gpu.yaml") == (
        "device: found cuda, and no NVIDIA GPU on this machine; allowed: auto or cpu"
    )


@pytest.mark.parametrize(
    ("profile", "begins"),
    [
        (
            "launcher: torchrum\n",
            "p.yaml:1: launcher: found \"torchrum\"; did you mean 'torchrun'? allowed: ",
        ),
        ("device: auto\nslots: 0\n", "p.yaml:2: slots: found 0; allowed: at least 1"),
        (
            "environment:\n  NCCL_DEBUG: 1\n",
            "p.yaml:2: environment.NCCL_DEBUG: found 1; allowed: text",
        ),
    ],
)
def test_cluster_profile(profile: str, begins: str) -> None:
    Path("p.yaml").write_text(profile, encoding="utf-8")
    check(refused("run", "quickstart", "--cluster", "p.yaml"), begins)


def test_cluster_profile_that_is_unknown() -> None:
    line = refused("run", "quickstart", "--cluster", "locl")
    check(line, "--cluster locl: no such profile; did you mean 'local'? allowed: ", "local")


def test_cluster_profile_that_is_missing() -> None:
    line = refused("run", "quickstart", "--cluster", "mine.yaml")
    check(line, "mine.yaml: can't be read: [Errno 2] No such file or directory: ")
