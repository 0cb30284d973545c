"""The axes: every dimension of the matrix, its values, what it does and which combinations it has.

The field of an axis declares it: its annotation is the type that sweep files are checked against, and
its default is what a cell's id leaves out. `find_conflict` refuses combinations that would not train as
the sweep says: an axis without effect would make two equal cells.

Environment variables of the ranks are axes too, called `env.NAME`. All values end up in records, reports
and MLflow, so secrets are refused. So are variables that the harness or a launcher sets itself, since
theirs would replace what the sweep asks for.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain, compress
from typing import Annotated, Any, Literal, get_type_hints

from msgspec import Meta

from harness.core.errors import did_you_mean
from harness.core.slurm_environment import JOB_PREFIXES, OPTION_PREFIXES
from harness.core.variables import is_secret_name
from workloads.settings import Between, Count

# The strategies: each name is a value of the axis, each "module:Class" its implementation. Training
# imports only the class of the strategy that a trial uses, so this table imports no torch.
STRATEGIES = {
    "single": "harness.training.strategies:Strategy",
    "ddp": "harness.training.strategies:DDP",
    "fsdp2": "harness.training.strategies:FSDP2",
    "hsdp": "harness.training.strategies:FSDP2",
}
# Those that are torch's `fully_shard`, and so have its settings.
FULLY_SHARDED = ("fsdp2", "hsdp")
PREFIX = "env."
Variables = Mapping[str, str | None]  # name -> value; None: unset
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")  # that a shell can set too
VARIABLE_CHARACTERS = "letters, digits and _, no digit first"
VariableName = Annotated[
    str, Meta(pattern=f"^{VARIABLE_NAME.pattern}", description=VARIABLE_CHARACTERS)
]
# What torchrun sets for its ranks.
OF_TORCHRUN = re.compile(
    r"((LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_ADDR|MASTER_PORT|TORCHELASTIC_\w+)$"
)
# What the harness sets, or what would change what it believes of the machine. The numbers of threads
# follow the axis num_threads.
RESERVED = re.compile(
    r"(CUDA_VISIBLE_DEVICES|(OMP|MKL|OPENBLAS)_NUM_THREADS"
    r"|PYTHON(HOME|PATH|UNBUFFERED)|(TORCHINDUCTOR|TRITON)_CACHE_DIR)$"
)
RESERVED_PREFIXES = ("HARNESS_", *OPTION_PREFIXES, *JOB_PREFIXES)
AboveZero = Annotated[float, Between(1e-6)]


@dataclass(frozen=True, kw_only=True)
class Axes:
    """One value of every axis.

    To add an axis, add a field here, with a default that leaves training as it is, and read it in
    `harness.training`. A default never changes later: a cell's id leaves out
    the axes that have their defaults, so cells that were recorded under the old default would get the
    id of the new.

    A value never is `on`, `off`, `yes` or `no`: unquoted, other readers of YAML take those for
    booleans.
    """

    # `torch.compile(model, mode=…)`, where `compile` alone is torch's default mode.
    execution: Literal["eager", "compile", "compile:reduce-overhead", "compile:max-autotune"] = (
        "eager"
    )
    # Where Inductor and Triton keep compiled code. `cold` is for measuring the time of compiling: a
    # warm cache makes the second trial of a cell start faster than its first.
    cache: Literal["warm", "cold"] = "warm"
    compile_dynamic: bool | None = None
    compile_fullgraph: bool = False
    # tf32 is `torch.set_float32_matmul_precision("high")` with cuDNN's TensorFloat-32; bf16 and
    # fp16 are `torch.autocast`; bf16:fsdp2 is `MixedPrecisionPolicy(param_dtype=torch.bfloat16)`;
    # fp64 has parameters, buffers and inputs in double precision, as a measure of rounding errors.
    precision: Literal["fp32", "tf32", "bf16", "fp16", "bf16:fsdp2", "fp64"] = "fp32"
    # How a model is distributed over the ranks: a name in STRATEGIES.
    strategy: Literal["single", "ddp", "fsdp2", "hsdp"] = "single"
    # The ranks of a group that shares out the parameters of a model; the groups are replicas.
    shard_size: Annotated[int, Between(2)] | None = None
    world_size: Count = 1  # torchrun's, over all nodes
    # Torch's own cap is 25 MiB, except for the first bucket, which has 1 MiB.
    ddp_bucket_cap_mb: AboveZero | None = None
    ddp_gradient_as_bucket_view: bool = False
    ddp_static_graph: bool = False
    ddp_find_unused_parameters: bool = False
    ddp_broadcast_buffers: bool = True
    fsdp_reshard_after_forward: bool | None = None
    fsdp_reduce_dtype: Literal["fp32", "bf16"] | None = None  # of the MixedPrecisionPolicy
    fsdp_cpu_offload: bool = False  # CPUOffloadPolicy
    # Torch's communication hooks `bf16_compress_hook` and `fp16_compress_hook`.
    comm_hook: Literal["none", "bf16", "fp16"] = "none"
    # `resident` takes the loader out of a measurement: batches are gathered from tensors on the
    # device.
    input: Literal["loader", "resident"] = "loader"
    # With 0 workers, the rank itself loads each batch, between two steps.
    num_workers: Annotated[int, Between(0)] = 0
    loader_prefetch_factor: Count = 2
    loader_persistent_workers: bool = True  # torch's default is False
    loader_pin_memory: bool | None = None
    # Of the global batch, so that cells of different world sizes train on the same batches. The
    # only axis without a default here: its default is the workload's.
    batch_size: Count
    # Micro-steps before the last run under DDP's `no_sync`, or after FSDP2's
    # `set_requires_gradient_sync(False)`.
    grad_accum_steps: Count = 1
    # The order in which the gradients of micro-batches are added up: the one that the backend has, or
    # that of `harness.training.step.TreeStep`, which is the same at any number of ranks.
    reduction: Literal["backend", "tree"] = "backend"
    # `torch.use_deterministic_algorithms(True)` and everything else that `harness.training.execution` has.
    deterministic: bool = False
    # `torch.utils.checkpoint.checkpoint(use_reentrant=False)` around each layer, or around the
    # model if the workload names no layers.
    activation_checkpointing: bool = False
    # The parameter of `torch.nn.utils.clip_grad_norm_`, in the 2-norm.
    max_grad_norm: AboveZero | None = None
    # `torch.channels_last`, of the kernels of convolutions and of batches of images.
    channels_last: bool = False
    # `torch.set_num_threads`. One by default, because ranks on one machine share its cores.
    num_threads: Count = 1
    # Torch's parameters `foreach` and `fused`; for-loop is both of them false.
    optimizer_impl: Literal["recipe", "for-loop", "foreach", "fused"] = "recipe"
    # The learning rate before `lr_scaling`, and the highest that a schedule reaches.
    lr: Annotated[float, Between(1e-8)] | None = None  # a script's own may be any
    # The linear scaling rule of Goyal et al. 2017 (arXiv:1706.02677).
    lr_scaling: Literal["none", "linear"] = "none"
    # A name that the sweep declares; the cell has what it stands for. Ranks of other interpreters
    # run the same harness.
    stack: str | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Axes:
        """Return the axes with these values, by name; those without one have their defaults.

        Variables and settings may be among `values`: they are left out.
        """
        fields = {FIELDS[name]: value for name, value in values.items() if name in FIELDS}
        return cls(**fields)

    def value(self, name: str) -> Any:
        """Return the value of an axis, such as `precision` or `ddp.bucket_cap_mb`."""
        return getattr(self, FIELDS[name])

    @property
    def values(self) -> dict[str, Any]:
        """Return the value of every axis by its name; a copy."""
        return DEFAULTS | self.changed

    @cached_property
    def changed(self) -> dict[str, Any]:
        """The values that differ from their defaults, by the name of the axis."""
        values = READ_ALL(self)
        is_changed = map(operator.ne, values, DEFAULTS.values())
        return dict(compress(zip(AXES, values, strict=True), is_changed))

    def torch_parameters(self, group: str) -> dict[str, Any]:
        """Return those parameters of a group, such as `ddp`, that the sweep changes, by torch's names."""
        return section_of(self.changed, group)


def section_of(values: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Return the values of the axes of a section, such as `options`, by their names in it."""
    prefix = f"{section}."
    return {axis[len(prefix) :]: values[axis] for axis in values if axis.startswith(prefix)}


# The field of each axis, in the order of the class, and its annotated type. Fields that begin with one of
# these are parameters of torch's own functions: `torch.compile`, `DistributedDataParallel`, `fully_shard`
# with its policies, and `DataLoader`. The field `ddp_static_graph` is the axis `ddp.static_graph`.
# Without `include_extras`, the bounds inside Annotated would be lost.
_types = get_type_hints(Axes, include_extras=True)
FIELDS = {re.sub("^(compile|ddp|fsdp|loader)_", r"\1.", field): field for field in _types}
AXIS_TYPES: dict[str, Any] = dict(zip(FIELDS, _types.values(), strict=True))
AXES = tuple(FIELDS)
READ_ALL = operator.attrgetter(
    *FIELDS.values()
)  # at once, as a sweep may have a hundred thousand points
# The default of each axis. It is None of the batch size, whose default is the workload's, and which so
# always differs from it.
DEFAULTS: dict[str, Any] = {axis: getattr(Axes, field, None) for axis, field in FIELDS.items()}
GRADIENT_TYPES = {"bf16:fsdp2": "bf16", "fp64": "fp64"}  # by precision; fp32 of all others
Need = tuple[tuple[str, ...], str, Callable[[Axes], bool]]
# Axes, or the beginnings of their names, that do nothing unless something holds of other axes: they have
# their defaults then. What needs a device is in GPU_SETTINGS.
NEEDS: Sequence[Need] = (
    (("cache", "compile."), "execution compile", lambda axes: axes.execution != "eager"),
    (("comm_hook", "ddp."), "strategy ddp", lambda axes: axes.strategy == "ddp"),
    (("fsdp.",), "strategy fsdp2 or hsdp", lambda axes: axes.strategy in FULLY_SHARDED),
    (("shard_size",), "strategy hsdp", lambda axes: axes.strategy == "hsdp"),
    (("num_workers", "loader.pin_memory"), "input loader", lambda axes: axes.input == "loader"),
    (("loader.",), "num_workers", lambda axes: axes.num_workers > 0),
)


# The axes that change what is computed, where the others only change how. Cells that differ in one of
# these are not meant to train the same.
RECIPE_AXES = ("batch_size", "max_grad_norm", "lr", "lr_scaling")
# The value of an axis that does nothing on a CPU. Not a conflict of the axes: a sweep is planned on
# machines without a GPU, for a cluster that has them.
GPU_SETTINGS: dict[str, str | bool] = {
    "fsdp.cpu_offload": True,
    "execution": "compile:reduce-overhead",
    "precision": "tf32",
    "loader.pin_memory": True,
}


@cache
def need_of(axis: str) -> Need | None:
    """Return what an axis needs, in words and whether some axes have it; None of one without a need."""
    return next((need for need in NEEDS if axis.startswith(need[0])), None)


def find_conflict(axes: Axes) -> str | None:
    """Return why a combination of axes makes no sense, None if it does.

    The reason names both axes and their values, in one line; only the first one is returned. Conflicts
    that depend on the device or the model are found elsewhere: by `setting_that_needs_gpu`, and as
    NotApplied.
    """
    for name in axes.changed:
        need = need_of(name)
        if need is not None and not need[2](axes):
            return f"{name} does nothing without {need[1]}"
    conflicts = [_conflicts_of_ranks(axes), _conflicts_of_torch(axes), _conflicts_of_tree(axes)]
    return next(chain.from_iterable(conflicts), None)


def _conflicts_of_ranks(axes: Axes) -> Iterator[str]:
    """Yield each reason why ranks can't share the model or the batch."""
    strategy, ranks, shard_size = axes.strategy, axes.world_size, axes.shard_size
    if strategy == "single" and ranks != 1:
        yield f"strategy single is one rank, world_size is {ranks}"
    if strategy == "hsdp" and shard_size is None:
        yield "strategy hsdp needs shard_size: the ranks that hold one copy of the model"
    if shard_size is not None and (ranks % shard_size or ranks == shard_size):
        yield f"shard_size {shard_size} does not make two or more groups of world_size {ranks}"
    # Gradients are averaged with equal weights, so the mean would not be that of the samples.
    if axes.batch_size % (ranks * axes.grad_accum_steps):
        problem = f"batch_size {axes.batch_size} can't be shared out evenly among {ranks} ranks"
        yield f"{problem} with {axes.grad_accum_steps} micro-steps each"


def _conflicts_of_torch(axes: Axes) -> Iterator[str]:
    """Yield which of torch's own settings exclude each other."""
    strategy, precision = axes.strategy, axes.precision
    if precision == "bf16:fsdp2" and strategy not in FULLY_SHARDED:
        yield f"precision bf16:fsdp2 is FSDP2's own, strategy is {strategy}"
    if axes.fsdp_reduce_dtype == GRADIENT_TYPES.get(precision, "fp32"):
        yield f"fsdp.reduce_dtype {axes.fsdp_reduce_dtype} does nothing with precision {precision}"
    # Micro-steps before the last run under `no_sync`, where DDP sees no gradient to share.
    if axes.ddp_static_graph and axes.grad_accum_steps > 1:
        yield "ddp.static_graph needs a backward that shares gradients: no grad_accum_steps"
    # Torch's DDPOptimizer asserts that no bucket is smaller than the first one, which has 1 MiB.
    if axes.execution != "eager" and (axes.ddp_bucket_cap_mb or 1) < 1:
        yield f"ddp.bucket_cap_mb {axes.ddp_bucket_cap_mb:g} is too small for execution compile"
    if axes.compile_fullgraph and strategy != "single":
        yield f"compile.fullgraph is unavailable with strategy {strategy}, which breaks the graph"
    if axes.deterministic and axes.execution == "compile:max-autotune":
        yield f"deterministic is unavailable with {axes.execution}, which chooses kernels by time"


def _conflicts_of_tree(axes: Axes) -> Iterator[str]:
    """Yield each reason why gradients can't be summed in a tree."""
    if axes.reduction != "tree":
        return
    problem = "reduction tree is unavailable with"
    leaves = axes.world_size * axes.grad_accum_steps
    if axes.comm_hook != "none":
        yield f"{problem} comm_hook {axes.comm_hook}: DDP takes one communication hook"
    if axes.strategy == "hsdp":
        yield f"{problem} strategy hsdp: its leaves are ranks with samples"
    if axes.optimizer_impl == "fused":
        yield f"{problem} optimizer_impl fused, whose rounding depends on the cuts of shards"
    if axes.strategy == "fsdp2" and axes.max_grad_norm is not None:
        yield f"{problem} max_grad_norm under strategy fsdp2, whose sum depends on the ranks"
    # Only then are the ranks' gradients of a micro-step a subtree at any number of ranks.
    if leaves == 1 or leaves.bit_count() != 1:
        yield f"{problem} {leaves} leaves: world_size times grad_accum_steps has to be 2, 4, 8 …"


def setting_that_needs_gpu(axes: Axes) -> str | None:
    """Return the first setting that does nothing without a GPU, as `AXIS: found VALUE`.

    Returns None if all settings work on a CPU.
    """
    for name, value in axes.changed.items():
        if GPU_SETTINGS.get(name) == value:
            return f"{name}: found {str(value).lower()}"
    return None


def unknown_axis(name: str, *others: str) -> str:
    """Return the problem of a name that is no axis; `others` might be meant too."""
    variable = f"{PREFIX}{name}" if name.isupper() else f"{PREFIX}NAME"
    return f"unknown axis; {did_you_mean(name, [*AXES, variable, *others])}"


def problem_of_variable(name: str) -> str | None:
    """Return why a variable can't be an axis, None if it can."""
    if not VARIABLE_NAME.fullmatch(name):
        return f"found the name {name!r}; allowed: {VARIABLE_CHARACTERS}"
    if RESERVED.match(name) or OF_TORCHRUN.match(name) or name.startswith(RESERVED_PREFIXES):
        return "found a variable that the harness or a launcher sets; allowed: any other"
    if is_secret_name(name):
        allowed = "`environment` of the cluster profile, which withholds the value"
        return f"found a name that speaks of a secret, and values are recorded; allowed: {allowed}"
    return None
