"""Examines this machine: what it has, and whether ranks on it can communicate.

This is what `harness doctor` does for a profile whose launcher is torchrun.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable

import psutil

from harness.core.cores import usable_cores
from harness.core.errors import BadInput
from harness.core.paths import Results
from harness.launch.probe import make_folder
from harness.launch.torchrun import Torchrun
from harness.slurm.doctor.all_reduce import all_reduce
from harness.slurm.doctor.checks import Check, check_all_reduce, make_check
from harness.slurm.doctor.node import installed_software
from harness.spec.cluster import Profile, available_slots
from harness.training import compile_cache

GIB = 2**30  # bytes
MAX_RANKS = 2  # of the all-reduce


def examine_machine(
    profile: Profile, results: Results, report_progress: Callable[[str], None]
) -> list[Check]:
    """Return the checks of a profile that runs on this machine.

    `report_progress` is called before the ranks start, which takes seconds. What is only shown,
    such as the number of cores, is a check that always passes.

    Raises BadInput if results can't be written.
    """
    software = installed_software()
    # How many ranks this machine holds at a time, and why.
    slots, slots_reason = available_slots(profile)
    ranks = min(MAX_RANKS, slots)
    result = None
    folder = make_folder(results.path, "doctor-")
    try:
        free = shutil.disk_usage(folder).free / GIB
        if ranks:
            report_progress(f"all-reduce over {ranks} ranks of torchrun")
            launcher = Torchrun(environment=profile.environment)
            result = all_reduce(launcher, folder, ranks, profile.device)
    finally:
        shutil.rmtree(folder)
    cores = len(usable_cores())
    memory = psutil.virtual_memory().total / GIB
    torch_problems = [] if software.torch else ["not installed"]
    slots_problems = [] if slots else [f"room for none: {slots_reason}"]
    return [
        make_check("Python", [], software.python),
        make_check("torch", torch_problems, f"{software.torch}"),
        make_check("harness", [], software.harness),
        make_check("CPU", [], f"{cores} cores, {memory:.0f} GiB of memory"),
        make_check("GPUs", [], str(profile.gpus or "none")),
        make_check("ranks", slots_problems, f"{slots}: {slots_reason}"),
        make_check(
            "folder", [], f"{results.path.absolute()} can be written; {free:.0f} GiB are free"
        ),
        _describe_compile_cache(),
        check_all_reduce(result),
    ]


def _describe_compile_cache() -> Check:
    """Return how much compiled code trials share; fails if the limit is no number."""
    try:
        folder, limit = compile_cache.root(), compile_cache.size_limit()
    except BadInput as error:
        return make_check("compiled", [str(error)], "")
    used = sum(entry.size for entry in compile_cache.list_entries(folder))
    detail = f"{folder} holds {used / 1e9:.2g} of at most {limit / 1e9:g} GB"
    return make_check("compiled", [], detail)
