"""What this machine holds, and whether ranks on it can talk."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil

from harness.core.errors import BadInput
from harness.core.paths import Results
from harness.launch.torchrun import Torchrun
from harness.slurm.doctor.checks import Check, check, of_reduction
from harness.slurm.doctor.node import software
from harness.slurm.doctor.step import reduce
from harness.spec.cluster import Profile, available_slots

GIB = 2**30


def examine(profile: Profile, results: Results, told: Callable[[str], None]) -> list[Check]:
    """The checks of the local profile. Raises BadInput if results can't be written."""
    here = software()
    held, why = available_slots(profile)
    try:
        results.path.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="doctor-", dir=results.path.absolute()))
    except OSError as error:
        raise BadInput(f"--results: {results.path}: can't be written: {error.strerror}") from None
    ranks = min(2, held)
    told(f"{ranks} ranks of torchrun sum up")
    try:
        free = shutil.disk_usage(folder).free / GIB
        reduced = (
            reduce(Torchrun(environment=profile.environment), folder, ranks, profile.device)
            if ranks
            else None
        )
    finally:
        shutil.rmtree(folder)
    cores, memory = len(os.sched_getaffinity(0)), psutil.virtual_memory().total / GIB
    return [
        Check(what="Python", passed=True, found=here.python),
        check("torch", [] if here.torch else ["not installed"], f"{here.torch}"),
        Check(what="harness", passed=True, found=here.harness),
        Check(what="CPU", passed=True, found=f"{cores} cores, {memory:.0f} GiB of memory"),
        Check(what="GPUs", passed=True, found=str(profile.gpus or "none")),
        check("ranks", [] if held else [f"room for none: {why}"], f"{held}: {why}"),
        Check(
            what="folder",
            passed=True,
            found=f"{results.path.absolute()} can be written; {free:.0f} GiB are free",
        ),
        of_reduction(reduced),
    ]
