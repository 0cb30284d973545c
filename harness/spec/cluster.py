"""Cluster profiles: where and how trials are launched."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from harness.core.errors import BadInput, did_you_mean
from harness.spec import partitions
from harness.spec.axes import Axes, setting_that_needs_gpu
from harness.spec.document import read_document
from harness.spec.slurm import SlurmOptions, reject_control_characters, reject_invalid_names
from harness.spec.validity import ValidityRules
from workloads.options import Count, Strict

OURS = Path(__file__).parent.parent.parent / "clusters"


@dataclass(frozen=True, kw_only=True)
class Profile(Strict):
    """The keys of a profile file and their defaults."""

    launcher: Literal["torchrun", "slurm"] = "torchrun"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    slots: Count | None = (
        None  # ranks that this machine holds; null: one per GPU, or else one per CPU core
    )
    environment: dict[str, str] = field(default_factory=dict)  # further variables of every rank
    forkserver: bool = (
        True  # ranks on this machine's CPUs are forked from a process that has torch loaded
    )
    validity: ValidityRules = field(default_factory=ValidityRules)
    slurm: SlurmOptions = field(default_factory=SlurmOptions)  # for launcher slurm

    def __post_init__(self) -> None:
        reject_invalid_names("environment", self.environment)
        for name, value in self.environment.items():
            reject_control_characters(f"environment.{name}", value)
        if self.launcher == "torchrun" and self.slurm != SlurmOptions():
            raise ValueError("slurm: found with launcher torchrun; allowed: with launcher slurm")
        if self.launcher == "slurm" and self.slots is not None:
            raise ValueError(
                "slots: found with launcher slurm; allowed: slurm.nodes and slurm.ranks_per_node"
            )
        if self.launcher == "slurm" and (self.device, self.slurm.gpus_per_rank) in (
            ("cuda", 0),
            ("cpu", 1),
        ):
            needed = "1" if self.device == "cuda" else "0"
            raise ValueError(
                f"slurm.gpus_per_rank: found {self.slurm.gpus_per_rank} with device {self.device}; allowed: {needed}"
            )

    @property
    def gpus(self) -> int:
        """GPUs that ranks of this profile can have: of this machine, or of the nodes of a job."""
        if self.launcher == "slurm":
            return self.slurm.max_ranks * self.slurm.gpus_per_rank
        return count_gpus() if self.device != "cpu" else 0


def profile_paths() -> dict[str, Path]:
    """The known profiles by name: the project's own, then those in ./clusters."""
    folders = (OURS, Path("clusters"))
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}


def load_profile(name: str) -> Profile:
    """The profile given as a path or a name; raises BadInput, also for what the cluster that answers here can't do."""
    path = Path(name) if Path(name).suffix in (".yaml", ".yml") else profile_paths().get(name)
    if path is None:
        raise BadInput(f"--cluster {name}: no such profile; {did_you_mean(name, profile_paths())}")
    document = read_document(path)
    profile: Profile = document.validate(Profile, document.content)
    if profile.launcher == "slurm" and (known := partitions.query()):
        found = partitions.find_mismatch(profile.slurm, known)
        if found is not None:
            raise document.error(("slurm", found[0]), found[1])
    return profile


def check_shared_folder(profile: Profile, results: Path) -> None:
    """Raises BadInput if the results would lie outside the folder that all nodes see."""
    shared = profile.slurm.shared_folder
    if shared is not None and not results.resolve().is_relative_to(shared.resolve()):
        raise BadInput(
            f"--results: found {results.resolve()}; allowed: a folder in {shared}, the slurm.shared_folder"
        )


def check_fits(profile: Profile, cells: Mapping[str, Axes]) -> None:
    """Raises BadInput if a cell (label -> axes) needs more ranks or another device than the machine has."""
    held, what = available_slots(profile)
    for label, axes in cells.items():
        if (setting := setting_that_needs_gpu(axes)) and not profile.gpus:
            raise BadInput(f"{label}: {setting}; needed: a GPU")
        if axes.world_size > held:
            raise BadInput(
                f"{label}: world_size: found {axes.world_size}; allowed: at most {held}, {what}"
            )


def available_slots(profile: Profile) -> tuple[int, str]:
    """How many ranks the machine, or a job on the cluster, holds, and what says so."""
    if profile.launcher == "slurm":
        return profile.slurm.max_ranks, "the profile's `slurm.nodes` times `slurm.ranks_per_node`"
    if profile.slots is not None:
        return profile.slots, "the profile's `slots`"
    more = "(a profile with larger `slots` shares them among more ranks)"
    if profile.gpus or profile.device == "cuda":
        return profile.gpus, f"one per GPU, and this machine has {profile.gpus} {more}"
    cores = len(os.sched_getaffinity(0))
    return cores, f"one per CPU core, and this machine has {cores} {more}"


def count_gpus() -> int:
    """NVIDIA GPUs that a process may use here, asked of the driver without loading torch; 0 without a driver."""
    import pynvml

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip()])
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        return int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()
