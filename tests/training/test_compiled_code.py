"""What one process has compiled gets into the caches of others, and adds to what they have."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest
import torch

from harness.core.errors import Interrupted, NotApplied
from harness.core.paths import TrialFolder
from harness.launch.logs import scrub_logs
from harness.training import compile_cache, compiled_code
from harness.training.compiled_code import load, take_compiled_code
from harness.training.mesh import ParallelMesh
from tests.support.training import CPU, SINGLE_RANK, make_assignment

PROGRAM = """
import sys
from pathlib import Path
import torch
from torch._dynamo.utils import counters
from harness.training import compiled_code
action, file, cache = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
if action == "load":
    compiled_code.load(file, cache)
x = torch.arange(8.0)
assert torch.equal(torch.compile(lambda x: x.sin() + x.cos())(x), x.sin() + x.cos())
if action == "save":
    compiled_code.save(file, cache)
print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
"""


def test_libraries_that_a_cache_has_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[bytes] = []
    monkeypatch.setattr(torch.compiler, "load_cache_artifacts", taken.append)
    (tmp_path / "cache" / "ab").mkdir(parents=True)
    (tmp_path / "cache" / "ab" / "old.so").write_bytes(b"own")
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as file:
        file.writestr("artifacts", b"graphs")
        file.writestr("ab/old.so", b"other")
        file.writestr("cd/new.so", b"new")
    load(tmp_path / "code.zip", tmp_path / "cache")
    assert taken == [b"graphs"]
    assert (tmp_path / "cache" / "ab" / "old.so").read_bytes() == b"own"
    assert (tmp_path / "cache" / "cd" / "new.so").read_bytes() == b"new"


def test_a_rank_waits_for_the_code_no_longer_than_it_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_COMPILE_CACHE", str(tmp_path / "compile"))
    monkeypatch.setattr(compiled_code, "TIMEOUT", 0.0)
    mesh = ParallelMesh(replace(SINGLE_RANK, rank=1, world_size=2), CPU)
    assignment = make_assignment(steps=1, execution="compile", cache="once")
    with pytest.raises(
        NotApplied, match=r"cache=once had no effect: no .*\.zip after 0 s"
    ) as error:
        take_compiled_code(TrialFolder(tmp_path / "trial"), assignment, mesh)
    assert compile_cache.environment_name(CPU) in str(error.value), "as the cache is keyed"


@pytest.mark.nightly
def test_another_cache_gets_graphs_and_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that has loaded the file compiles no graph, and finds each library."""
    counts = []
    for action in ("save", "load"):
        cache = tmp_path / action
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
        command = [sys.executable, "-c", PROGRAM, action, str(tmp_path / "code.zip"), str(cache)]
        ended = subprocess.run(command, check=True, timeout=300, capture_output=True, text=True)
        counts.append(ended.stdout.split())
    assert counts == [["0", "1"], ["1", "0"]]
    saved, loaded = (
        {str(path.relative_to(tmp_path / action)) for path in (tmp_path / action).glob("*/*.so")}
        for action in ("save", "load")
    )
    with zipfile.ZipFile(tmp_path / "code.zip") as file:
        handed_on = set(file.namelist()) - {"artifacts"}
    assert handed_on == saved == loaded, "the probe of vector instructions too"
    assert len(saved) > 1


def test_a_rank_that_is_to_stop_is_interrupted_and_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm sends its signal to the process that compiles too."""
    monkeypatch.setattr(compiled_code, "is_requested", lambda: True)
    monkeypatch.setattr(compile_cache, "environment_name", lambda device: "here")

    def stopped(*arguments: object, **named: object) -> None:
        raise subprocess.CalledProcessError(75, "compile")

    monkeypatch.setattr(subprocess, "run", stopped)
    assignment = make_assignment(steps=1, execution="compile", cache="once")
    for rank in (0, 1):
        ranks = replace(SINGLE_RANK, rank=rank)
        folder = TrialFolder(tmp_path / "trial")
        folder.path.mkdir(exist_ok=True)
        with pytest.raises(Interrupted, match="stopped before the first step"):
            take_compiled_code(folder, assignment, ParallelMesh(ranks, CPU))


def test_an_attempt_that_was_killed_leaves_no_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result of its rank says nothing of the compilation that fails now."""
    monkeypatch.setattr(compile_cache, "environment_name", lambda device: "here")
    folder = TrialFolder(tmp_path / "trial")
    earlier = TrialFolder(folder.path / "compile").result_path(0)
    earlier.parent.mkdir(parents=True)
    earlier.write_text("the last attempt's", encoding="utf-8")

    def failed(*arguments: object, **named: object) -> None:
        raise subprocess.CalledProcessError(1, "compile")

    monkeypatch.setattr(subprocess, "run", failed)
    assignment = make_assignment(steps=1, execution="compile", cache="once")
    with pytest.raises(NotApplied, match=r"its compilation failed: .*non-zero exit status 1"):
        take_compiled_code(folder, assignment, ParallelMesh(SINGLE_RANK, CPU))


def test_a_compilation_that_fails_leaves_a_log_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_cache, "environment_name", lambda device: "here")

    def failed(*arguments: object, stdout: IO[bytes], **named: object) -> None:
        stdout.write(b"the token is s3cr3t-t0ken\n")
        raise subprocess.CalledProcessError(1, "compile")

    monkeypatch.setattr(subprocess, "run", failed)
    folder = TrialFolder(tmp_path / "trial")
    folder.path.mkdir()
    assignment = make_assignment(steps=1, execution="compile", cache="once")
    with pytest.raises(NotApplied) as error:
        take_compiled_code(folder, assignment, ParallelMesh(SINGLE_RANK, CPU))
    scrub_logs(folder, ["s3cr3t-t0ken"])
    log = Path(str(error.value).rpartition("log: ")[2])
    assert log.read_text(encoding="utf-8").startswith("the token is ")
    assert "s3cr3t" not in log.read_text(encoding="utf-8")
