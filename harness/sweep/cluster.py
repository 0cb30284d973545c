"""Cluster profiles: where and how trials are launched, and whether cells fit there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from harness.core.cores import usable_cores
from harness.core.errors import BadInput, did_you_mean
from harness.core.validation import Line
from harness.sweep.axes import setting_that_needs_gpu
from harness.sweep.cell import Cell
from harness.sweep.document import read_document
from harness.sweep.environment import PREFIX, VariableName
from harness.sweep.slurm import SlurmOptions
from harness.sweep.validity import ValidityRules
from workloads.settings import Count

# Set where several commands share a machine on purpose, as tests do: no contention is too much, and
# no sweep waits for another.
SHARED_HOST = "HARNESS_SHARED_HOST"
Parallel = Count | Literal["auto"]  # trials that run at a time; auto: as many as there is room for
# The profiles that come with the project; those in ./clusters are the user's.
PROJECT_PROFILES = Path(__file__).parent.parent.parent / "clusters"


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The keys of a profile file and their defaults.

    Every key has a default, so that a sweep runs on this machine without any profile.
    """

    launcher: Literal["torchrun", "slurm"] = "torchrun"  # this machine, or jobs on a cluster
    # Where ranks compute; auto: on GPUs if there are any.
    device: Literal["auto", "cpu", "cuda"] = "auto"
    # Ranks that this machine holds; null: one per GPU, or one per CPU core where there are none.
    slots: Count | None = None
    # Trials that run at a time on this machine, each on separate cores or GPUs;
    # auto: as many as there is room for. Verdicts compare trials with the same neighbors.
    parallel: Parallel = 1
    environment: dict[VariableName, Line] = field(
        default_factory=dict
    )  # further variables of every rank
    # Whether ranks on this machine's CPUs are forked from a process that has torch loaded.
    forkserver: bool = True
    # Which measurements are not to be believed, and how often those are repeated.
    validity: ValidityRules = field(default_factory=ValidityRules)
    slurm: SlurmOptions = field(default_factory=SlurmOptions)  # for launcher slurm

    def __post_init__(self) -> None:
        """Raise ValueError, which begins with the key, for what the types of the keys allow."""
        # With device auto, either is right: ranks take the GPU that their job was assigned.
        gpus = self.slurm.gpus_per_rank
        needed = {"cuda": 1, "cpu": 0}.get(self.device, gpus)
        if self.launcher == "torchrun":
            if self.slurm != SlurmOptions():
                raise ValueError(
                    "slurm: found with launcher torchrun; allowed: with launcher slurm"
                )
        elif self.slots is not None or self.parallel != 1:
            allowed = "the keys of slurm, such as nodes and ranks_per_node"
            raise ValueError(f"slots or parallel: found with launcher slurm; allowed: {allowed}")
        elif gpus != needed:
            raise ValueError(
                f"slurm.gpus_per_rank: found {gpus} with device {self.device}; allowed: {needed}"
            )

    @property
    def gpus(self) -> int:
        """Return how many GPUs ranks of this profile can have, on this machine or in one job."""
        if self.launcher == "slurm":
            return self.slurm.max_ranks * self.slurm.gpus_per_rank
        if self.device == "cpu":
            return 0
        return count_gpus({**os.environ, **self.environment})


def profile_paths() -> dict[str, Path]:
    """Return the files of all profiles by name: the project's own, then those in ./clusters.

    A profile in ./clusters replaces the project's own of the same name.
    """
    paths: dict[str, Path] = {}
    for folder in (PROJECT_PROFILES, Path("clusters")):
        for path in sorted(folder.glob("*.yaml")):
            paths[path.stem] = path
    return paths


def load_profile(name: str) -> Profile:
    """Return the profile in a file (`name` ends in .yaml or .yml) or of a name; raises BadInput."""
    paths = profile_paths()
    path = Path(name) if Path(name).suffix in (".yaml", ".yml") else paths.get(name)
    if path is None:
        raise BadInput(f"--cluster {name}: no such profile; {did_you_mean(name, paths)}")
    document = read_document(path)
    profile: Profile = document.validate(Profile, document.content)
    return with_tolerance(profile, tolerate_load=bool(os.environ.get(SHARED_HOST)))


def with_tolerance(profile: Profile, *, tolerate_load: bool) -> Profile:
    """Return a profile under which other programs on the cores make no trial invalid, if so asked."""
    if not tolerate_load:
        return profile
    return replace(profile, validity=replace(profile.validity, contention=None))


def check_fits(
    profile: Profile, cells: Iterable[Cell], source: Path | None = None, *, timed: bool = True
) -> None:
    """Raise BadInput if a cell needs more ranks or another device than the machine or a job has.

    So it does for a variable that both the cell and the profile set. An error begins with `source`,
    the sweep's file, and the cell's label. Ranks that are not `timed` may share cores, unless the
    profile says how many ranks there may be.
    """
    gpus = profile.gpus
    if profile.launcher == "torchrun" and profile.device == "cuda" and not gpus:
        raise BadInput(
            "device: found cuda in the profile, and no NVIDIA GPU on this machine; allowed: auto or"
            " cpu, or a machine with a GPU"
        )
    on_cores = profile.launcher == "torchrun" and not gpus and profile.slots is None
    ranks, reason = available_slots(profile)
    for cell in cells:
        problem = _misfit(cell, profile, gpus)
        world_size = cell.axes.world_size
        if world_size > ranks and (timed or not on_cores):
            problem = (
                problem or f"world_size: found {world_size}; allowed: at most {ranks}, {reason}"
            )
        if problem is not None:
            raise BadInput(": ".join(filter(None, [str(source or ""), cell.label, problem])))


def _misfit(cell: Cell, profile: Profile, gpus: int) -> str | None:
    """Return what of a cell the profile sets too or what needs a GPU; None if the cell fits."""
    for name in cell.environment:
        if name in profile.environment:
            return (
                f"{PREFIX}{name}: found in the profile's environment too;"
                " allowed: a variable in one of them"
            )
    setting = setting_that_needs_gpu(cell.axes)
    if setting is not None and not gpus:
        return f"{setting}; needed: a GPU"
    return None


def available_slots(profile: Profile) -> tuple[int, str]:
    """Return how many ranks the machine, or a job on the cluster, holds, and what decides it.

    Under torchrun that is `slots` if the profile sets it, else one rank for each GPU, else one for
    each core that this process may use.
    """
    if profile.launcher == "slurm":
        return profile.slurm.max_ranks, "the profile's `slurm.nodes` times `slurm.ranks_per_node`"
    if profile.slots is not None:
        return profile.slots, "the profile's `slots`"
    number, unit = len(usable_cores()), "CPU core"
    if profile.gpus or profile.device == "cuda":
        number, unit = profile.gpus, "GPU"
    hint = "(a profile with larger `slots` shares them among more ranks)"
    return number, f"one per {unit}, and this machine has {number} {hint}"


def count_gpus(variables: Mapping[str, str] = os.environ) -> int:
    """Return the number of NVIDIA GPUs that a process with these variables may use on this machine.

    That is 0 without a driver. The driver is asked, so torch need not be loaded, and no CUDA context
    is made. NVML itself ignores CUDA_VISIBLE_DEVICES, so where that is set its entries are counted,
    up to the first that names no GPU, as CUDA does.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        count = int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()
    visible = variables.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return count
    devices = 0
    for device in map(str.strip, visible.split(",")):
        is_number = device.isdigit() and int(device) < count
        if not is_number and not device.startswith(("GPU-", "MIG-")):
            break
        devices += 1
    return devices
