"""Hands what one process has compiled to all ranks of a cell, on all nodes: `cache: once`.

Otherwise each rank compiles for itself while all others do: those of a node share C++ libraries only,
and nodes with separate caches share nothing. Here rank 0 of a cell's first trial starts a process that
takes the first step as rank 0 of ranks that do not exist (`harness.training.compile_worker`). It leaves
one file in the sweep's folder, named by the cell and by the environment as the cache is. All ranks of
the cell's trials wait for it, and load it before they begin.

The file holds what `torch.compiler.save_cache_artifacts` returns, and the C++ libraries, which that
leaves out: those of the graphs, and those with which torch tries what the CPU can do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import torch

from harness.core.errors import Interrupted, NotApplied
from harness.core.import_path import module_command
from harness.core.paths import TrialFolder, write_atomically
from harness.core.processes import parent_variables
from harness.records.assignment import Assignment, write_assignment
from harness.records.files import read_rank_result
from harness.training import compile_cache
from harness.training.interruption import is_requested
from harness.training.mesh import ParallelMesh
from harness.training.ranks import SINGLE_RANK_VARIABLES

TIMEOUT = 900.0  # seconds that compiling may take
POLL = 0.1  # seconds between two looks for the file
ARTIFACTS = "artifacts"  # the entry of what torch returned; the others are libraries
MAPPED = Path("/proc/self/maps")  # the libraries that this process has loaded
KERNELS = "*.main.so"  # the names of a graph's libraries in the cache; the others try the CPU


def take_compiled_code(folder: TrialFolder, assignment: Assignment, mesh: ParallelMesh) -> None:
    """Load the compiled code of a trial's cell; rank 0 has it compiled if nobody has yet.

    Raises NotApplied if it can't be compiled, or is not there in time.
    """
    environment = compile_cache.environment_name(mesh.device)
    path = folder.compiled_code(f"{assignment.trial.cell.id}-{environment}")
    if not path.exists() and mesh.ranks.is_rank_0:
        _compile(folder, assignment, path)
    deadline = time.monotonic() + TIMEOUT
    while not path.exists():
        _heed_request()
        if time.monotonic() > deadline:
            raise NotApplied(f"cache=once had no effect: no {path} after {TIMEOUT:.0f} s")
        time.sleep(POLL)
    load(path, compile_cache.shared_folder())


def _compile(folder: TrialFolder, assignment: Assignment, path: Path) -> None:
    """Start a process that takes the trial's first step, and move what it has compiled to `path`."""
    trial = assignment.trial
    axes = replace(trial.cell.axes, cache="warm", binding="none")
    alone = replace(
        assignment,
        trial=replace(trial, cell=replace(trial.cell, axes=axes)),
        checkpoint="none",
        saves=None,
        continues=None,
        profile=None,
        fingerprints=None,
    )
    scratch = TrialFolder(folder.path / "compile")
    scratch.path.mkdir(exist_ok=True)
    scratch.result_path(0).unlink(missing_ok=True)  # of an attempt that was killed
    write_assignment(scratch.assignment_path, alone)
    command = [*module_command(sys.executable, "harness.training.worker"), str(scratch.path)]
    folder.log_folder.mkdir(exist_ok=True)
    log = folder.log_folder / "compile.log"
    try:
        with log.open("ab") as output:
            subprocess.run(
                [*command, "--task", "compile"],
                env={**os.environ, **SINGLE_RANK_VARIABLES, **parent_variables()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=TIMEOUT,
                check=True,
            )
    except subprocess.SubprocessError as error:
        _heed_request()  # which the process may have got too
        reason = str(error)
        if scratch.result_path(0).exists():
            reason = str(read_rank_result(scratch.result_path(0)).failure)
        raise NotApplied(
            f"cache=once had no effect: its compilation failed: {reason}; log: {log}"
        ) from None
    path.parent.mkdir(exist_ok=True)
    compiled_by(scratch).replace(path)
    shutil.rmtree(scratch.path)
    log.unlink()


def _heed_request() -> None:
    """Raise Interrupted if this rank is to stop."""
    if is_requested():
        raise Interrupted("stopped before the first step")


def compiled_by(scratch: TrialFolder) -> Path:
    """Return the file that the process leaves in its own folder."""
    return scratch.path / "compiled.zip"


def save(path: Path, cache: Path) -> None:
    """Write what this process has compiled, or taken from the cache; raises NotApplied for nothing."""
    saved = torch.compiler.save_cache_artifacts()
    if saved is None:
        raise NotApplied("torch.compile compiled no graph in the first step")
    artifacts, _ = saved
    libraries = set()  # that this process has loaded
    for line in MAPPED.read_text(encoding="utf-8").splitlines():
        _, _, name = line.partition(f" {cache}/")
        if name.endswith(".so"):
            libraries.add(cache / name)
    # And those with which torch tries vector instructions, in a process of its own. To compile one
    # takes a rank seconds, also where its graphs are all there.
    for library in cache.glob("*/*.so"):
        if not fnmatch(library.name, KERNELS):
            libraries.add(library)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(ARTIFACTS, artifacts)
        for library in sorted(libraries):
            file.write(library, library.relative_to(cache))


def load(path: Path, cache: Path) -> None:
    """Put the content of a file of `save` into a cache, where torch finds it."""
    with zipfile.ZipFile(path) as file:
        for name in file.namelist():
            library = cache / name
            if name != ARTIFACTS and not library.exists():
                library.parent.mkdir(exist_ok=True)
                write_atomically(library, file.read(name), durable=False)
        torch.compiler.load_cache_artifacts(file.read(ARTIFACTS))
