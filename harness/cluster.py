"""Cluster profiles: where and how trials are launched."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from harness.axes import Axes, gpu_only
from harness.document import read
from harness.errors import BadInput, did_you_mean
from harness.validity import Rules
from workloads.options import Count, Strict

OURS = Path(__file__).parent.parent / "clusters"


@dataclass(frozen=True, kw_only=True)
class Profile(Strict):
    """The keys of a profile file and their defaults."""

    launcher: Literal["torchrun"] = "torchrun"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    slots: Count | None = None  # ranks that the machine holds; null: one per GPU, or else one per CPU core
    environment: dict[str, str] = field(default_factory=dict)  # further variables of every rank
    validity: Rules = field(default_factory=Rules)


def profiles() -> dict[str, Path]:
    """The known profiles by name: the project's own, then those in ./clusters."""
    folders = (OURS, Path("clusters"))
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}


def load(name: str) -> Profile:
    """The profile given as a path or a name; raises BadInput."""
    path = Path(name) if Path(name).suffix in (".yaml", ".yml") else profiles().get(name)
    if path is None:
        raise BadInput(f"--cluster {name}: no such profile; {did_you_mean(name, profiles())}")
    document = read(path)
    profile: Profile = document.validate(Profile, document.content)
    return profile


def check_fits(profile: Profile, cells: Mapping[str, Axes]) -> None:
    """Raises BadInput if a cell (label -> axes) needs more ranks or another device than the machine has."""
    held, what = slots(profile)
    for label, axes in cells.items():
        if (setting := gpu_only(axes)) and (profile.device == "cpu" or not count_gpus()):
            raise BadInput(f"{label}: {setting}; needed: a GPU")
        if axes.world_size > held:
            raise BadInput(
                f"{label}: world_size: found {axes.world_size}; allowed: at most {held}, {what}"
                " (a profile with larger `slots` shares them among more ranks)"
            )


def slots(profile: Profile) -> tuple[int, str]:
    """How many ranks the machine holds, and what says so."""
    if profile.slots is not None:
        return profile.slots, "the profile's `slots`"
    gpus = count_gpus() if profile.device != "cpu" else 0
    if gpus or profile.device == "cuda":
        return gpus, f"one per GPU, and this machine has {gpus}"
    cores = len(os.sched_getaffinity(0))
    return cores, f"one per CPU core, and this machine has {cores}"


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
