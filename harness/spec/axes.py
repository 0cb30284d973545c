"""The axes: every dimension of the matrix, its values, what it does and what it needs.

The field of an axis is the only place that declares it: its annotation is the type that sweep files
are checked against, its `AxisHelp` is what `harness axes` prints, and its default is what a cell's
id leaves out. `NEEDS` and `CONFLICTS` refuse combinations that would not train as the sweep
says: an axis without effect would make two equal cells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from operator import attrgetter
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from workloads.settings import Between, Count, Rate

# The strategies: each name is a value of the axis, each "module:Class" its implementation. Training
# imports only the class of the strategy that a trial uses, so this table imports no torch.
STRATEGIES = {
    "single": "harness.training.strategies.base:Single",
    "ddp": "harness.training.strategies.ddp:DDP",
    "fsdp2": "harness.training.strategies.fsdp2:FSDP2",
    "hsdp": "harness.training.strategies.fsdp2:HSDP",
}
# Those that are torch's `fully_shard`, and so have its settings.
FULLY_SHARDED = ("fsdp2", "hsdp")
if TYPE_CHECKING:
    StrategyName = str  # mypy can't build a Literal from a table
else:
    StrategyName = Literal[tuple(STRATEGIES)]


@dataclass(frozen=True)
class AxisHelp:
    """What `harness axes` says about an axis.

    It is part of the axis' annotation, where validation ignores it.
    """

    does: str  # the effect of its values, without a full stop
    needs: str = ""  # other settings, or hardware, without which the axis does nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchParameters:
    """Parameters of a function of torch, by torch's own names: axes such as `ddp.static_graph`.

    To add one, add a field with torch's default: it is handed on where a sweep changes it.
    """

    def changed(self) -> dict[str, Any]:
        """Return the parameters that differ from their defaults, by name."""
        values = asdict(self)
        return {
            item.name: values[item.name]
            for item in fields(self)
            if values[item.name] != item.default
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class CompileParameters(TorchParameters):
    """Parameters of `torch.compile`."""

    dynamic: Annotated[
        bool | None,
        AxisHelp("shapes taken as variable; null: once a shape changes", "compile"),
    ] = None
    fullgraph: Annotated[bool, AxisHelp("a graph break fails the trial", "compile")] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class DDPParameters(TorchParameters):
    """Parameters of `DistributedDataParallel`."""

    # Torch's own cap is 25 MiB, except for the first bucket, which has 1 MiB.
    bucket_cap_mb: Annotated[
        Annotated[float, Between(1e-6)] | None,
        AxisHelp(
            "MiB of gradients sent at once; null: torch's own", "ddp, and a model that is larger"
        ),
    ] = None
    gradient_as_bucket_view: Annotated[bool, AxisHelp("gradients live in buckets", "ddp")] = False
    static_graph: Annotated[bool, AxisHelp("the graph of the first step is that of all", "ddp")] = (
        False
    )
    find_unused_parameters: Annotated[
        bool, AxisHelp("parameters may have no gradient in a step", "ddp")
    ] = False
    broadcast_buffers: Annotated[
        bool, AxisHelp("rank 0's buffers are copied to all ranks before a forward", "ddp")
    ] = True


@dataclass(frozen=True, kw_only=True, slots=True)
class FSDPParameters(TorchParameters):
    """Parameters of `fully_shard`, its MixedPrecisionPolicy and its CPUOffloadPolicy."""

    reshard_after_forward: Annotated[
        bool | None,
        AxisHelp("frees parameters after forward; null: all but the root's", "fsdp2 or hsdp"),
    ] = None
    reduce_dtype: Annotated[
        Literal["fp32", "bf16"] | None,
        AxisHelp(
            "the type in which gradients are summed up; null: that of the parameters",
            "fsdp2 or hsdp; fp32: precision bf16:fsdp2 or fp64; bf16: any but bf16:fsdp2",
        ),
    ] = None
    cpu_offload: Annotated[
        bool,
        AxisHelp(
            "parameters, gradients and the optimizer's state in the host's memory",
            "a GPU, fsdp2 or hsdp",
        ),
    ] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderParameters(TorchParameters):
    """Parameters of `DataLoader`."""

    prefetch_factor: Annotated[
        Count, AxisHelp("batches that each worker holds ready", "num_workers")
    ] = 2
    # Torch's default is False.
    persistent_workers: Annotated[
        bool, AxisHelp("workers live from epoch to epoch", "num_workers")
    ] = True
    pin_memory: Annotated[
        bool | None,
        AxisHelp("page-locked batches; null: on GPUs", "true: a GPU, input loader"),
    ] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Axes:
    """One value of every axis.

    To add an axis, add a field here, with a default that leaves training as it is, and read it in
    `harness.training`. A default never changes later: a cell's id leaves out the axes that have
    their defaults, so cells that were recorded under the old default would get the id of the new.

    A value never is `on`, `off`, `yes` or `no`: unquoted, YAML reads those as booleans.
    """

    # `torch.compile(model, mode=…)`, where `compile` alone is torch's default mode.
    execution: Annotated[
        Literal["eager", "compile", "compile:reduce-overhead", "compile:max-autotune"],
        AxisHelp(
            "torch.compile, in its mode default, reduce-overhead (CUDA graphs) or max-autotune",
            "reduce-overhead: a GPU",
        ),
    ] = "eager"
    # Where Inductor and Triton keep compiled code. `cold` is for measuring the time of compiling: a
    # warm cache makes the second trial of a cell start faster than its first.
    cache: Annotated[
        Literal["warm", "cold"],
        AxisHelp("the compiler's cache: shared by all trials, or a new one", "compile"),
    ] = "warm"
    compile: CompileParameters = CompileParameters()
    # tf32 is `torch.set_float32_matmul_precision("high")` with cuDNN's TensorFloat-32; bf16 and
    # fp16 are `torch.autocast`; bf16:fsdp2 is `MixedPrecisionPolicy(param_dtype=torch.bfloat16)`;
    # fp64 has parameters, buffers and inputs in double precision, as a measure of rounding errors.
    precision: Annotated[
        Literal["fp32", "tf32", "bf16", "fp16", "bf16:fsdp2", "fp64"],
        AxisHelp(
            "bf16: autocast; fp16: autocast with loss scaling; bf16:fsdp2: FSDP2's"
            " MixedPrecisionPolicy; fp64: parameters, buffers and inputs, to measure rounding errors",
            "tf32: a GPU from Ampere on; bf16:fsdp2: strategy fsdp2 or hsdp",
        ),
    ] = "fp32"
    # How a model is distributed over the ranks: a name in STRATEGIES.
    strategy: Annotated[
        StrategyName,
        AxisHelp(
            "one process; DistributedDataParallel; fully_shard; the same within groups of ranks",
            "hsdp: shard_size",
        ),
    ] = "single"
    # The ranks of a group that shares out the parameters of a model; the groups are replicas.
    shard_size: Annotated[
        Annotated[int, Between(2)] | None,
        AxisHelp("ranks that hold one copy of the model; the groups average gradients", "hsdp"),
    ] = None
    # torchrun's world size, over all nodes.
    world_size: Annotated[
        Count, AxisHelp("ranks, one GPU or one core each", "another strategy than single above 1")
    ] = 1
    ddp: DDPParameters = DDPParameters()
    fsdp: FSDPParameters = FSDPParameters()
    # Torch's communication hooks `bf16_compress_hook` and `fp16_compress_hook`.
    comm_hook: Annotated[
        Literal["none", "bf16", "fp16"],
        AxisHelp("how DDP sends gradients: as they are, or in fewer bits", "ddp"),
    ] = "none"
    # `resident` takes the loader out of a measurement: batches are gathered from tensors on the
    # device.
    input: Annotated[
        Literal["loader", "resident"],
        AxisHelp("a DataLoader, or all training samples kept on the device"),
    ] = "loader"
    # With 0 workers, the rank itself loads each batch, between two steps.
    num_workers: Annotated[
        int, Between(0), AxisHelp("loader workers of each rank", "input loader above 0")
    ] = 0
    loader: LoaderParameters = LoaderParameters()
    # Of the global batch, so that cells of different world sizes train on the same batches. The
    # only axis without a default here: its default is the workload's.
    batch_size: Annotated[
        Count, AxisHelp("samples of an optimizer step, over all ranks; else the workload's own")
    ]
    # Micro-steps before the last run under DDP's `no_sync`, or after FSDP2's
    # `set_requires_gradient_sync(False)`.
    grad_accum_steps: Annotated[
        Count,
        AxisHelp("micro-steps of an optimizer step; gradients are shared in the last"),
    ] = 1
    # The order in which the gradients of micro-batches are added up: the one that the backend has, or
    # that of `harness.training.tree_reduction`, which is the same at any number of ranks.
    reduction: Annotated[
        Literal["backend", "tree"],
        AxisHelp(
            "order of summing gradients; tree: the same bits at 1, 2, 4 … ranks, for ddp and fsdp2",
            "tree: world_size times grad_accum_steps a power of two",
        ),
    ] = "backend"
    # `torch.use_deterministic_algorithms(True)` and everything else that `harness.training.determinism` has.
    deterministic: Annotated[
        bool, AxisHelp("only operations that compute the same bits in every run; others fail")
    ] = False
    # `torch.utils.checkpoint.checkpoint(use_reentrant=False)` around each layer, or around the
    # model if the workload names no layers.
    activation_checkpointing: Annotated[
        bool, AxisHelp("layers compute their activations again in backward")
    ] = False
    # The parameter of `torch.nn.utils.clip_grad_norm_`, in the 2-norm.
    max_grad_norm: Annotated[
        Annotated[float, Between(1e-6)] | None,
        AxisHelp("largest norm of all gradients together; null: any"),
    ] = None
    # `torch.channels_last`, of the kernels of convolutions and of batches of images.
    channels_last: Annotated[
        bool, AxisHelp("images and convolutions in channels-last order", "convolutions")
    ] = False
    # `torch.set_num_threads`. One by default, because ranks on one machine share its cores.
    num_threads: Annotated[Count, AxisHelp("intra-op threads of each rank")] = 1
    # Torch's parameters `foreach` and `fused`; for-loop is both of them false.
    optimizer_impl: Annotated[
        Literal["recipe", "for-loop", "foreach", "fused"], AxisHelp("of the optimizer's step")
    ] = "recipe"
    # The learning rate before `lr_scaling`, and the highest that a schedule reaches.
    lr: Annotated[Rate | None, AxisHelp("the peak; null: the workload's own")] = None
    # The linear scaling rule of Goyal et al. 2017 (arXiv:1706.02677).
    lr_scaling: Annotated[
        Literal["none", "linear"],
        AxisHelp("linear: learning rate times batch_size over the workload's own batch size"),
    ] = "none"
    # A name that the sweep declares; the cell has what it stands for. Ranks of other interpreters
    # run the same harness.
    stack: Annotated[
        str | None,
        AxisHelp(
            "another interpreter or container, with separate packages, by the name that the sweep's"
            " key stacks gives it; null: that of the harness",
            "torch and the packages of a worker there",
        ),
    ] = None

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


# The class of each group of torch's parameters, by the beginning of their names.
PARAMETERS: dict[str, Any] = {
    "compile": CompileParameters,
    "ddp": DDPParameters,
    "fsdp": FSDPParameters,
    "loader": LoaderParameters,
}


def _annotated_types() -> dict[str, Any]:
    """Return the annotated type of each axis by name, in the order of the class."""
    kinds: dict[str, Any] = {}
    # With `include_extras`, or the bounds and the help inside Annotated would be lost.
    for name, kind in get_type_hints(Axes, include_extras=True).items():
        if name in PARAMETERS:
            for parameter, parameter_kind in get_type_hints(kind, include_extras=True).items():
                kinds[f"{name}.{parameter}"] = parameter_kind
        else:
            kinds[name] = kind
    return kinds


# The annotated type of each axis that a sweep may set.
AXIS_TYPES: dict[str, Any] = _annotated_types()
# The axes of a cell by name, in the order of the class.
AXES = tuple(AXIS_TYPES)
READ_ALL = attrgetter(*AXES)  # at once, as a sweep may have a hundred thousand points
# The default of each axis that has one; the batch size, whose default is the workload's, is there
# only to make an Axes.
DEFAULTS: dict[str, Any] = Axes(batch_size=1).values
del DEFAULTS["batch_size"]


@dataclass(frozen=True)
class Requirement:
    """Axes that do nothing unless another axis has a certain value.

    Such an axis must have its default where the requirement is not met.
    """

    axis: str  # the one that the others depend on
    met: Callable[[Any], bool]  # of that axis's value
    description: str  # of what is required, for errors
    dependents: tuple[str, ...]  # the axes that do nothing otherwise


def _parameters(group: str) -> tuple[str, ...]:
    """Return the axes of a group of torch's parameters."""
    return tuple(name for name in AXES if name.startswith(f"{group}."))


# Requirements on the device are in GPU_SETTINGS.
NEEDS = (
    Requirement(
        "execution",
        lambda execution: execution != "eager",
        "execution compile",
        ("cache", *_parameters("compile")),
    ),
    Requirement(
        "strategy",
        lambda strategy: strategy == "ddp",
        "strategy ddp",
        ("comm_hook", *_parameters("ddp")),
    ),
    Requirement(
        "strategy",
        lambda strategy: strategy in FULLY_SHARDED,
        "strategy fsdp2 or hsdp",
        _parameters("fsdp"),
    ),
    Requirement("strategy", lambda strategy: strategy == "hsdp", "strategy hsdp", ("shard_size",)),
    Requirement(
        "input", lambda name: name == "loader", "input loader", ("num_workers", "loader.pin_memory")
    ),
    Requirement(
        "num_workers",
        lambda count: count > 0,
        "num_workers",
        ("loader.prefetch_factor", "loader.persistent_workers"),
    ),
)


def axis_help(axis: str) -> AxisHelp:
    """Return the help of an axis; raises KeyError for another name."""
    for part in get_args(AXIS_TYPES[axis]):
        if isinstance(part, AxisHelp):
            return part
    raise KeyError(f"the axis {axis} has no help")


def axis_choices(axis: str) -> tuple[str, ...]:
    """Return the words that an axis allows, as a sweep file spells them.

    The tuple is empty for an axis of numbers and for a name that is no axis.
    """
    if axis not in AXIS_TYPES:
        return ()
    kind = get_args(AXIS_TYPES[axis])[0]
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    choices: list[str] = []
    for member in members:
        if member is bool:
            choices += ["false", "true"]
        elif get_origin(member) is Literal:
            choices += get_args(member)
        elif member is not NoneType:
            return ()
    if NoneType in members:
        choices.append("null")
    return tuple(choices)


def _setting_without_effect(axes: Axes) -> str | None:
    """Return a conflict for an axis that has no effect here and is not at its default."""
    values = axes.values
    for need in NEEDS:
        if need.met(values[need.axis]):
            continue
        for name in need.dependents:
            if values[name] != DEFAULTS[name]:
                return f"{name} does nothing without {need.description}"
    return None


def _uneven_groups(axes: Axes) -> str | None:
    """Return a conflict if the ranks can't be divided into groups with a copy of the model each."""
    if axes.strategy != "hsdp":
        return None
    if axes.shard_size is None:
        return "strategy hsdp needs shard_size: the ranks that hold one copy of the model"
    if axes.world_size % axes.shard_size or axes.world_size == axes.shard_size:
        return (
            f"shard_size {axes.shard_size} does not make two or more groups of world_size"
            f" {axes.world_size}"
        )
    return None


def _uneven_batch(axes: Axes) -> str | None:
    """Return a conflict if ranks, or micro-steps, would take different numbers of samples.

    Their gradients are averaged with equal weights, so the mean would not be that of the samples.
    """
    if axes.batch_size % axes.world_size:
        return (
            f"batch_size {axes.batch_size} can't be shared out evenly among {axes.world_size} ranks"
        )
    rank_batch_size = axes.batch_size // axes.world_size
    if rank_batch_size % axes.grad_accum_steps:
        return (
            f"a rank's {rank_batch_size} samples can't be cut evenly into"
            f" {axes.grad_accum_steps} micro-steps"
        )
    return None


def _is_unbalanced(axes: Axes) -> bool:
    """Return whether a tree of gradients has another number of leaves than 2, 4, 8, ...

    Only then are the ranks' gradients of a micro-step a subtree at any number of ranks.
    """
    leaves = axes.world_size * axes.grad_accum_steps
    return leaves == 1 or leaves & (leaves - 1) != 0


@dataclass(frozen=True)
class Conflict:
    """Settings that make no sense together."""

    applies: Callable[[Axes], bool]
    reason: str  # in which `{axes.NAME}` is the value of an axis


GRADIENT_TYPES = {"bf16:fsdp2": "bf16", "fp64": "fp64"}  # by precision; fp32 of all others
# In the order in which they are reported, after the conflicts of RULES; only the first one is.
CONFLICTS = (
    Conflict(
        lambda axes: axes.precision == "bf16:fsdp2" and axes.strategy not in FULLY_SHARDED,
        "precision bf16:fsdp2 is FSDP2's own, strategy is {axes.strategy}",
    ),
    Conflict(
        lambda axes: axes.fsdp.reduce_dtype == GRADIENT_TYPES.get(axes.precision, "fp32"),
        "fsdp.reduce_dtype {axes.fsdp.reduce_dtype} does nothing with precision {axes.precision}",
    ),
    Conflict(
        lambda axes: axes.reduction == "tree" and axes.comm_hook != "none",
        "reduction tree is unavailable with comm_hook {axes.comm_hook}:"
        " DDP takes one communication hook",
    ),
    Conflict(
        lambda axes: axes.reduction == "tree" and axes.strategy == "hsdp",
        "reduction tree is unavailable with strategy hsdp: its leaves are ranks with samples",
    ),
    Conflict(
        lambda axes: axes.reduction == "tree" and _is_unbalanced(axes),
        "reduction tree needs world_size times grad_accum_steps to be 2, 4, 8 …;"
        " found {axes.world_size} times {axes.grad_accum_steps}",
    ),
    Conflict(
        lambda axes: axes.reduction == "tree" and axes.optimizer_impl == "fused",
        "reduction tree is unavailable with optimizer_impl fused: its rounding depends on where"
        " a tensor is cut into shards; recipe and foreach work",
    ),
    Conflict(
        lambda axes: (
            axes.reduction == "tree" and axes.strategy == "fsdp2" and axes.max_grad_norm is not None
        ),
        "reduction tree is unavailable with max_grad_norm under strategy fsdp2:"
        " the norm's own sum depends on the number of ranks",
    ),
    # Micro-steps before the last run under `no_sync`, where DDP sees no gradient to share.
    Conflict(
        lambda axes: axes.ddp.static_graph and axes.grad_accum_steps > 1,
        "ddp.static_graph is unavailable with grad_accum_steps:"
        " DDP learns the graph from a backward that shares gradients",
    ),
    # Torch's DDPOptimizer asserts that no bucket is smaller than the first one, which has 1 MiB.
    Conflict(
        lambda axes: (
            axes.execution != "eager"
            and axes.ddp.bucket_cap_mb is not None
            and axes.ddp.bucket_cap_mb < 1
        ),
        "ddp.bucket_cap_mb {axes.ddp.bucket_cap_mb:g} is unavailable with execution compile:"
        " there torch takes 1 or more",
    ),
    Conflict(
        lambda axes: axes.compile.fullgraph and axes.strategy != "single",
        "compile.fullgraph is unavailable with strategy {axes.strategy}: DDP's own forward breaks"
        " the graph, and FSDP2 breaks it between layers",
    ),
    Conflict(
        lambda axes: axes.deterministic and axes.execution == "compile:max-autotune",
        "deterministic is unavailable with execution compile:max-autotune, which chooses kernels"
        " by their time",
    ),
)
RULES: tuple[Callable[[Axes], str | None], ...] = (
    _setting_without_effect,
    _uneven_groups,
    _uneven_batch,
)


def find_conflict(axes: Axes) -> str | None:
    """Return why a combination of axes makes no sense, None if it does.

    The reason names both axes and their values, in one line. Conflicts that depend on the device or
    the model are found elsewhere: by `setting_that_needs_gpu`, and as NotApplied.
    """
    if axes.strategy == "single" and axes.world_size != 1:
        return f"strategy single is one rank, world_size is {axes.world_size}"
    for rule in RULES:
        reason = rule(axes)
        if reason is not None:
            return reason
    for conflict in CONFLICTS:
        if conflict.applies(axes):
            return conflict.reason.format(axes=axes)
    return None


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


def setting_that_needs_gpu(axes: Axes) -> str | None:
    """Return the first setting that does nothing without a GPU, as `AXIS: found VALUE`.

    Returns None if all settings work on a CPU.
    """
    for name, value in GPU_SETTINGS.items():
        if axes.value(name) == value:
            return f"{name}: found {str(value).lower()}"
    return None
