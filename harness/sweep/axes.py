"""The axes: every dimension of the matrix, its values, what it does and which combinations it has.

The field of an axis declares it: its annotation is the type that sweep files are checked against, and
its default is what a cell's id leaves out. `NEEDS` and `CONFLICTS` refuse combinations that would not
train as the sweep says: an axis without effect would make two equal cells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    get_args,
    get_origin,
    get_type_hints,
)

from harness.core.validation import members_of
from workloads.settings import Between, Count

# The strategies: each name is a value of the axis, each "module:Class" its implementation. Training
# imports only the class of the strategy that a trial uses, so this table imports no torch.
STRATEGIES = {
    "single": "harness.training.strategies:Single",
    "ddp": "harness.training.strategies:DDP",
    "fsdp2": "harness.training.strategies:FSDP2",
    "hsdp": "harness.training.strategies:HSDP",
}
# Those that are torch's `fully_shard`, and so have its settings.
FULLY_SHARDED = ("fsdp2", "hsdp")
LOADER_AXES = ("loader.prefetch_factor", "loader.persistent_workers")  # of workers alone
if TYPE_CHECKING:
    StrategyName = str  # mypy can't build a Literal from a table
else:
    StrategyName = Literal[tuple(STRATEGIES)]
AboveZero = Annotated[float, Between(1e-6)]


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchParameters:
    """Parameters of a function of torch, by torch's own names: axes such as `ddp.static_graph`.

    To add one, add a field with torch's default: it is handed on where a sweep changes it.
    """

    def changed(self) -> dict[str, Any]:
        """Return the parameters that differ from their defaults, by name."""
        changed = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if value != item.default:
                changed[item.name] = value
        return changed


@dataclass(frozen=True, kw_only=True, slots=True)
class CompileParameters(TorchParameters):
    """Parameters of `torch.compile`."""

    dynamic: bool | None = None
    fullgraph: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class DDPParameters(TorchParameters):
    """Parameters of `DistributedDataParallel`."""

    # Torch's own cap is 25 MiB, except for the first bucket, which has 1 MiB.
    bucket_cap_mb: AboveZero | None = None
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    find_unused_parameters: bool = False
    broadcast_buffers: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class FSDPParameters(TorchParameters):
    """Parameters of `fully_shard`, its MixedPrecisionPolicy and its CPUOffloadPolicy."""

    reshard_after_forward: bool | None = None
    reduce_dtype: Literal["fp32", "bf16"] | None = None
    cpu_offload: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderParameters(TorchParameters):
    """Parameters of `DataLoader`."""

    prefetch_factor: Count = 2
    persistent_workers: bool = True  # torch's default is False
    pin_memory: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Axes:
    """One value of every axis.

    To add an axis, add a field here, with a default that leaves training as it is, say in `HELP` what
    it does, and read it in `harness.training`. A default never changes later: a cell's id leaves out
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
    compile: CompileParameters = CompileParameters()
    # tf32 is `torch.set_float32_matmul_precision("high")` with cuDNN's TensorFloat-32; bf16 and
    # fp16 are `torch.autocast`; bf16:fsdp2 is `MixedPrecisionPolicy(param_dtype=torch.bfloat16)`;
    # fp64 has parameters, buffers and inputs in double precision, as a measure of rounding errors.
    precision: Literal["fp32", "tf32", "bf16", "fp16", "bf16:fsdp2", "fp64"] = "fp32"
    # How a model is distributed over the ranks: a name in STRATEGIES.
    strategy: StrategyName = "single"
    # The ranks of a group that shares out the parameters of a model; the groups are replicas.
    shard_size: Annotated[int, Between(2)] | None = None
    world_size: Count = 1  # torchrun's, over all nodes
    ddp: DDPParameters = DDPParameters()
    fsdp: FSDPParameters = FSDPParameters()
    # Torch's communication hooks `bf16_compress_hook` and `fp16_compress_hook`.
    comm_hook: Literal["none", "bf16", "fp16"] = "none"
    # `resident` takes the loader out of a measurement: batches are gathered from tensors on the
    # device.
    input: Literal["loader", "resident"] = "loader"
    # With 0 workers, the rank itself loads each batch, between two steps.
    num_workers: Annotated[int, Between(0)] = 0
    loader: LoaderParameters = LoaderParameters()
    # Of the global batch, so that cells of different world sizes train on the same batches. The
    # only axis without a default here: its default is the workload's.
    batch_size: Count
    # Micro-steps before the last run under DDP's `no_sync`, or after FSDP2's
    # `set_requires_gradient_sync(False)`.
    grad_accum_steps: Count = 1
    # The order in which the gradients of micro-batches are added up: the one that the backend has, or
    # that of `harness.training.step.TreeStep`, which is the same at any number of ranks.
    reduction: Literal["backend", "tree"] = "backend"
    # `torch.use_deterministic_algorithms(True)` and everything else that `harness.training.determinism` has.
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
        """Return the axes with these values, by name; those without one have their defaults."""
        own: dict[str, Any] = {}
        groups: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            group, dot, parameter = name.partition(".")
            if dot:
                groups.setdefault(group, {})[parameter] = value
            else:
                own[name] = value
        for group, parameters in groups.items():
            own[group] = PARAMETERS[group](**parameters)
        return cls(**own)

    def value(self, name: str) -> Any:
        """Return the value of an axis, such as `precision` or `ddp.bucket_cap_mb`."""
        return attrgetter(name)(self)

    @property
    def values(self) -> dict[str, Any]:
        """Return the value of every axis by its name; a copy."""
        return dict(zip(AXES, READ_ALL(self), strict=True))

    @property
    def changed(self) -> dict[str, Any]:
        """Return the values that differ from their defaults, by the name of the axis."""
        changed = {"batch_size": self.batch_size}  # without a default of its own
        for name, value in self.values.items():
            if name != "batch_size" and value != DEFAULTS[name]:
                changed[name] = value
        return changed


# What `harness axes` says about each axis: the effect of its values, and what it needs to have one.
HELP = {
    "execution": "torch.compile, in its mode default, reduce-overhead (CUDA graphs, on GPUs) or max-autotune",
    "cache": "the compiler's cache: shared by all trials, or a new one",
    "compile.dynamic": "shapes taken as variable; null: once a shape changes",
    "compile.fullgraph": "a graph break fails the trial",
    "precision": "bf16: autocast; fp16: autocast with loss scaling; tf32: on GPUs from Ampere on; bf16:fsdp2:"
    " FSDP2's MixedPrecisionPolicy; fp64: parameters, buffers and inputs, to measure rounding errors",
    "strategy": "one process; DistributedDataParallel; fully_shard; the same within groups of ranks",
    "shard_size": "ranks that hold one copy of the model; the groups average gradients",
    "world_size": "ranks, one GPU or one core each; above 1 with another strategy than single",
    "ddp.bucket_cap_mb": "MiB of gradients sent at once, of a model that is larger; null: torch's own",
    "ddp.gradient_as_bucket_view": "gradients live in buckets",
    "ddp.static_graph": "the graph of the first step is that of all",
    "ddp.find_unused_parameters": "parameters may have no gradient in a step",
    "ddp.broadcast_buffers": "rank 0's buffers are copied to all ranks before a forward",
    "fsdp.reshard_after_forward": "frees parameters after forward; null: all but the root's",
    "fsdp.reduce_dtype": "the type in which gradients are summed up; null: that of the parameters",
    "fsdp.cpu_offload": "parameters, gradients and the optimizer's state in the host's memory; a GPU computes",
    "comm_hook": "how DDP sends gradients: as they are, or in fewer bits",
    "input": "a DataLoader, or all training samples kept on the device",
    "num_workers": "loader workers of each rank",
    "loader.prefetch_factor": "batches that each worker holds ready",
    "loader.persistent_workers": "workers live from epoch to epoch",
    "loader.pin_memory": "page-locked batches, with a GPU; null: on GPUs",
    "batch_size": "samples of an optimizer step, over all ranks; else the workload's own",
    "grad_accum_steps": "micro-steps of an optimizer step; gradients are shared in the last",
    "reduction": "order of summing gradients; tree: the same bits at 1, 2, 4 … ranks, for ddp and fsdp2",
    "deterministic": "only operations that compute the same bits in every run; others fail",
    "activation_checkpointing": "layers compute their activations again in backward",
    "max_grad_norm": "largest norm of all gradients together; null: any",
    "channels_last": "images and convolutions in channels-last order",
    "num_threads": "intra-op threads of each rank",
    "optimizer_impl": "of the optimizer's step",
    "lr": "the peak; null: the workload's own",
    "lr_scaling": "linear: learning rate times batch_size over the workload's own batch size",
    "stack": "another interpreter or container with its own torch, by its name in the sweep's key stacks;"
    " null: that of the harness",
}
# The class of each group of torch's parameters, by the beginning of their names.
PARAMETERS: dict[str, Any] = {
    "compile": CompileParameters,
    "ddp": DDPParameters,
    "fsdp": FSDPParameters,
    "loader": LoaderParameters,
}
# The annotated type of each axis that a sweep may set, in the order of the class.
AXIS_TYPES: dict[str, Any] = {}
# With `include_extras`, or the bounds inside Annotated would be lost.
for _name, _kind in get_type_hints(Axes, include_extras=True).items():
    if _name in PARAMETERS:
        for _parameter, _type in get_type_hints(_kind, include_extras=True).items():
            AXIS_TYPES[f"{_name}.{_parameter}"] = _type
    else:
        AXIS_TYPES[_name] = _kind
AXES = tuple(AXIS_TYPES)
READ_ALL = attrgetter(*AXES)  # at once, as a sweep may have a hundred thousand points
WORDS = {bool: ("false", "true"), NoneType: ("null",)}  # as which a type's values are spelled
# The default of each axis that has one; the batch size, whose default is the workload's, is there
# only to make an Axes.
DEFAULTS: dict[str, Any] = Axes(batch_size=1).values
del DEFAULTS["batch_size"]


# Axes, or the beginnings of their names, that do nothing unless something holds of other axes: they have
# their defaults then. What needs a device is in GPU_SETTINGS.
NEEDS: tuple[tuple[tuple[str, ...], str, Callable[[Axes], bool]], ...] = (
    (("cache", "compile."), "execution compile", lambda axes: axes.execution != "eager"),
    (("comm_hook", "ddp."), "strategy ddp", lambda axes: axes.strategy == "ddp"),
    (("fsdp.",), "strategy fsdp2 or hsdp", lambda axes: axes.strategy in FULLY_SHARDED),
    (("shard_size",), "strategy hsdp", lambda axes: axes.strategy == "hsdp"),
    (("num_workers", "loader.pin_memory"), "input loader", lambda axes: axes.input == "loader"),
    (LOADER_AXES, "num_workers", lambda axes: axes.num_workers > 0),
)
GRADIENT_TYPES = {"bf16:fsdp2": "bf16", "fp64": "fp64"}  # by precision; fp32 of all others


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


def find_conflict(axes: Axes) -> str | None:
    """Return why a combination of axes makes no sense, None if it does.

    The reason names both axes and their values, in one line; only the first one is returned. Conflicts
    that depend on the device or the model are found elsewhere: by `setting_that_needs_gpu`, and as
    NotApplied.
    """
    for name in axes.changed:
        for dependents, description, is_met in NEEDS:
            if name.startswith(dependents) and not is_met(axes):
                return f"{name} does nothing without {description}"
    return _conflict_of_ranks(axes) or _conflict_of_tree(axes) or _conflict_of_torch(axes)


def _conflict_of_ranks(axes: Axes) -> str | None:
    """Return why ranks can't share the model or the batch, None if they can."""
    ranks = axes.world_size
    if axes.strategy == "single" and ranks != 1:
        return f"strategy single is one rank, world_size is {ranks}"
    if axes.strategy == "hsdp" and axes.shard_size is None:
        return "strategy hsdp needs shard_size: the ranks that hold one copy of the model"
    if axes.shard_size is not None and (ranks % axes.shard_size or ranks == axes.shard_size):
        return (
            f"shard_size {axes.shard_size} does not make two or more groups of world_size {ranks}"
        )
    # Gradients are averaged with equal weights, so the mean would not be that of the samples.
    if axes.batch_size % (ranks * axes.grad_accum_steps):
        problem = f"batch_size {axes.batch_size} can't be shared out evenly among {ranks} ranks"
        return f"{problem} with {axes.grad_accum_steps} micro-steps each"
    return None


def _conflict_of_tree(axes: Axes) -> str | None:
    """Return why gradients can't be summed in a tree, None if they can."""
    ranks, steps = axes.world_size, axes.grad_accum_steps
    if axes.reduction != "tree":
        return None
    if axes.comm_hook != "none":
        reason = f"comm_hook {axes.comm_hook}: DDP takes one communication hook"
    elif axes.strategy == "hsdp":
        reason = "strategy hsdp: its leaves are ranks with samples"
    elif axes.optimizer_impl == "fused":
        reason = "optimizer_impl fused: its rounding depends on where a tensor is cut into shards"
    elif axes.strategy == "fsdp2" and axes.max_grad_norm is not None:
        reason = (
            "max_grad_norm under strategy fsdp2: the norm's own sum depends on the number of ranks"
        )
    # Only then are the ranks' gradients of a micro-step a subtree at any number of ranks.
    elif (ranks * steps).bit_count() != 1 or ranks * steps == 1:
        reason = (
            f"{ranks} times {steps} leaves: world_size times grad_accum_steps has to be 2, 4, 8 …"
        )
    else:
        return None
    return f"reduction tree is unavailable with {reason}"


def _conflict_of_torch(axes: Axes) -> str | None:
    """Return which of torch's own settings exclude each other, None if none do."""
    reduce_dtype, bucket_cap = axes.fsdp.reduce_dtype, axes.ddp.bucket_cap_mb
    if axes.precision == "bf16:fsdp2" and axes.strategy not in FULLY_SHARDED:
        return f"precision bf16:fsdp2 is FSDP2's own, strategy is {axes.strategy}"
    if reduce_dtype == GRADIENT_TYPES.get(axes.precision, "fp32"):
        return f"fsdp.reduce_dtype {reduce_dtype} does nothing with precision {axes.precision}"
    # Micro-steps before the last run under `no_sync`, where DDP sees no gradient to share.
    if axes.ddp.static_graph and axes.grad_accum_steps > 1:
        reason = "DDP learns the graph from a backward that shares gradients"
        return f"ddp.static_graph is unavailable with grad_accum_steps: {reason}"
    # Torch's DDPOptimizer asserts that no bucket is smaller than the first one, which has 1 MiB.
    if axes.execution != "eager" and bucket_cap is not None and bucket_cap < 1:
        cap = f"ddp.bucket_cap_mb {bucket_cap:g}"
        return f"{cap} is unavailable with execution compile: there torch takes 1 or more"
    if axes.compile.fullgraph and axes.strategy != "single":
        reason = "DDP's own forward breaks the graph, and FSDP2 breaks it between layers"
        return f"compile.fullgraph is unavailable with strategy {axes.strategy}: {reason}"
    if axes.deterministic and axes.execution == "compile:max-autotune":
        reason = "which chooses kernels by their time"
        return f"deterministic is unavailable with execution {axes.execution}, {reason}"
    return None


def axis_choices(axis: str) -> tuple[str, ...]:
    """Return the words that an axis allows, as a sweep file spells them.

    The tuple is empty for an axis of numbers and for a name that is no axis.
    """
    choices: list[str] = []
    for member in members_of(AXIS_TYPES.get(axis)):
        words = WORDS.get(member, get_args(member) if get_origin(member) is Literal else ())
        if not words:
            return ()
        choices += words
    return tuple(choices)


def setting_that_needs_gpu(axes: Axes) -> str | None:
    """Return the first setting that does nothing without a GPU, as `AXIS: found VALUE`.

    Returns None if all settings work on a CPU.
    """
    for name, value in GPU_SETTINGS.items():
        if axes.value(name) == value:
            return f"{name}: found {str(value).lower()}"
    return None
