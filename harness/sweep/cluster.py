"""Cluster profiles: where and how trials are launched, and whether cells fit there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from harness.core.cores import usable_cores
from harness.core.errors import BadInput, did_you_mean
from harness.core.validation import Line
from harness.sweep.axes import PREFIX, VariableName, setting_that_needs_gpu
from harness.sweep.cell import Cell
from harness.sweep.document import read_document
from workloads.settings import Between, Count

# Set where several commands share a machine on purpose, as tests do: no contention is too much, and
# no sweep waits for another.
SHARED_HOST = "HARNESS_SHARED_HOST"
Parallel = Count | Literal["auto"]  # trials that run at a time; auto: as many as there is room for
# The profiles that come with the project; those in ./clusters are the user's.
PROJECT_PROFILES = Path(__file__).parent.parent.parent / "clusters"
Share = Annotated[float, Between(0, 1)]
# What sbatch gets unless the profile says otherwise. A shared node is a noisy one.
SBATCH_DEFAULTS = {"time": "01:00:00", "exclusive": True}
# Options of sbatch that follow from other keys, or that the harness needs itself.
DECIDED_OPTIONS = re.compile(
    r"nodes|ntasks(_per_node)?|cpus_per_task|gpus_per_task|array|signal|(no_)?requeue|export|job_name"
    r"|output|error|open_mode|wrap|wait|chdir|parsable|quiet|clusters"
)


@dataclass(frozen=True, kw_only=True)
class ValidityRules:
    """The limits of disturbances, null for no limit, and how often a trial beyond them runs again.

    An invalid trial trained correctly, but on a disturbed machine: its times are unreliable.
    A figure that could not be measured, such as the throttling of a CPU, breaks no rule.
    """

    # Of the samples of a GPU in which heat or the board slowed it down; not its own power limit.
    throttled: Share | None = 0.05
    foreign_processes: Annotated[int, Between(0)] | None = 0  # of others, on a rank's GPU
    steal: Share | None = 0.05  # of the host's CPU time, taken by others on the same machine
    # Of the time that a rank waited for a core while other programs used at least this much of one.
    contention: Share | None = 0.05
    data_wait: Share | None = 0.9  # of a rank's time: a loader that starved
    reruns: Annotated[int, Between(0, 100)] = 2  # attempts after an invalid first one


@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """The keys of the section and their defaults."""

    nodes: Count = 1  # the most that one job takes
    ranks_per_node: Count = 1  # one Slurm task each
    gpus_per_rank: Annotated[int, Between(0, 1)] = 0  # a rank computes on one device
    cpus_per_rank: Count = 1  # loader workers included
    array_parallelism: Count = 16  # jobs of one call of sbatch that run at a time
    warning: Count = 90  # seconds before the limit at which running trials save and stop
    # How often an interrupted job goes back into the queue without a trial having ended in it.
    requeues: Annotated[int, Between(0, 100)] = 5
    setup: tuple[Line, ...] = ()  # lines of shell, run on the first node before anything else
    python: Line | None = None  # the ranks'; null: the one that submits
    # What stands before every rank's Python, as in [apptainer, exec, --nv, image.sif].
    prefix: tuple[Line, ...] = ()
    # Options of sbatch by their long names, over SBATCH_DEFAULTS: true is an option without a value,
    # false or null one that is left out.
    sbatch: dict[Line, Line | int | bool | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ValueError, which begins with the key, for what the types of the keys allow."""
        for name, value in self.sbatch.items():
            if DECIDED_OPTIONS.fullmatch(name.replace("-", "_")):
                problem = f"found {value!r}; allowed: options that the harness does not decide"
                raise ValueError(f"sbatch.{name}: {problem}")

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of sbatch that are set, by their names with underscores."""
        options: dict[str, Any] = dict(SBATCH_DEFAULTS)
        for name, value in self.sbatch.items():
            options[name.replace("-", "_")] = value
        return {
            name: value
            for name, value in options.items()
            if value is not None and value is not False
        }

    @property
    def max_ranks(self) -> int:
        """Return the most ranks of one job, and so the largest world size."""
        return self.nodes * self.ranks_per_node


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
    # Further variables of every rank.
    environment: dict[VariableName, Line] = field(default_factory=dict)
    # Whether ranks on this machine's CPUs are forked from a process that has torch loaded.
    forkserver: bool = True
    # Which measurements are not to be believed, and how often those are repeated.
    validity: ValidityRules = field(default_factory=ValidityRules)
    slurm: SlurmOptions = field(default_factory=SlurmOptions)  # for launcher slurm

    def __post_init__(self) -> None:
        """Raise ValueError, which begins with the key, for what the types of the keys allow."""
        if self.launcher == "torchrun" and self.slurm != SlurmOptions():
            raise ValueError("slurm: found with launcher torchrun; allowed: with slurm")
        if self.launcher == "slurm" and (self.slots, self.parallel) != (None, 1):
            raise ValueError("slots or parallel: found with launcher slurm; allowed: with torchrun")

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
    paths = {}
    for folder in (PROJECT_PROFILES, Path("clusters")):
        for path in sorted(folder.glob("*.yaml")):
            paths[path.stem] = path
    return paths


def load_profile(name: str) -> Profile:
    """Return the profile in a file (`name` ends in .yaml or .yml) or of a name; raises BadInput."""
    paths = profile_paths()
    path = paths.get(name)
    if Path(name).suffix in (".yaml", ".yml"):
        path = Path(name)
    if path is None:
        raise BadInput(f"--cluster {name}: no such profile; {did_you_mean(name, paths)}")
    document = read_document(path)
    profile: Profile = document.validate(Profile, document.content)
    return with_tolerance(profile) if os.environ.get(SHARED_HOST) else profile


def with_tolerance(profile: Profile) -> Profile:
    """Return a profile under which other programs on the cores make no trial invalid."""
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
    is_local = profile.launcher == "torchrun"
    if profile.device == "cuda" and not gpus:
        where = "on this machine" if is_local else "in slurm.gpus_per_rank"
        raise BadInput(f"device: found cuda, and no NVIDIA GPU {where}; allowed: auto or cpu")
    slots, reason = available_slots(profile)
    may_share_cores = is_local and not timed and not gpus and profile.slots is None
    for cell in cells:
        world_size = cell.axes.world_size
        setting = setting_that_needs_gpu(cell.axes)
        set_twice = cell.environment.keys() & profile.environment.keys()
        if world_size > slots and not may_share_cores:
            problem = f"world_size: found {world_size}; allowed: at most {slots}, {reason}"
        elif setting is not None and not gpus:
            problem = f"{setting}; needed: a GPU"
        elif set_twice:
            name = f"{PREFIX}{min(set_twice)}"
            problem = f"{name}: found in the profile's environment too; allowed: in one"
        else:
            continue
        where = cell.label if source is None else f"{source}: {cell.label}"
        raise BadInput(f"{where}: {problem}")


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
    is made. NVML itself ignores CUDA_VISIBLE_DEVICES, so where that is set its entries are counted, as
    CUDA does up to a -1.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return 0
    visible = variables.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return count
    listed = f",{visible}".replace(" ", "").partition(",-1")[0]
    return min(count, len(re.findall("[^,]+", listed)))
