"""The axes: every dimension of the matrix, its values, what it does and what it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

from workloads.options import Between, Count, Fraction, Rate, Strict

# The strategies: each name is a value of the axis, each "module:Class" its implementation. Training
# imports only the class of the strategy that a trial uses, so this table imports no torch.
STRATEGIES = {
    "single": "harness.training.strategies.single:Single",
    "ddp": "harness.training.strategies.ddp:DDP",
    "fsdp2": "harness.training.strategies.fsdp2:FSDP2",
}
if TYPE_CHECKING:
    StrategyName = str  # mypy can't build a Literal from a table
else:
    StrategyName = Literal[tuple(STRATEGIES)]


@dataclass(frozen=True)
class AxisHelp:
    """What `harness axes` says of an axis."""

    does: str
    needs: str = ""


@dataclass(frozen=True, kw_only=True)
class Axes(Strict):
    """One value of every axis. A default, once given, stays: ids leave out what has its default."""

    execution: Annotated[
        Literal["eager", "compile", "compile:reduce-overhead", "compile:max-autotune"],
        AxisHelp(
            "torch.compile, in its mode default, reduce-overhead (CUDA graphs) or max-autotune",
            "reduce-overhead: a GPU",
        ),
    ] = "eager"
    dynamic: Annotated[
        Literal["auto", "always", "never"],
        AxisHelp("shapes that torch.compile takes as variable", "compile"),
    ] = "auto"
    fullgraph: Annotated[bool, AxisHelp("a graph break fails the trial", "compile")] = False
    cache: Annotated[
        Literal["warm", "cold"],
        AxisHelp("the compiler's cache: shared by all trials, or a new one", "compile"),
    ] = "warm"
    precision: Annotated[
        Literal["fp32", "tf32", "bf16", "fp16", "bf16:fsdp2"],
        AxisHelp(
            "bf16: autocast; fp16: autocast with loss scaling; bf16:fsdp2: FSDP2's MixedPrecisionPolicy",
            "tf32: a GPU from Ampere on; bf16:fsdp2: strategy fsdp2",
        ),
    ] = "fp32"
    strategy: Annotated[
        StrategyName,
        AxisHelp("one process; DistributedDataParallel; fully_shard"),
    ] = "single"
    world_size: Annotated[
        Count, AxisHelp("ranks, one GPU or one core each", "strategy ddp or fsdp2 above 1")
    ] = 1
    bucket_cap_mb: Annotated[
        Annotated[float, Between(1e-6)] | None,
        AxisHelp(
            "MiB of gradients that DDP sends at once; null: torch's own",
            "ddp, and a model that is larger",
        ),
    ] = None
    gradient_as_bucket_view: Annotated[bool, AxisHelp("gradients live in DDP's buckets", "ddp")] = (
        False
    )
    static_graph: Annotated[
        bool, AxisHelp("DDP takes the graph of the first step for all", "ddp")
    ] = False
    fsdp_wrap: Annotated[
        Literal["layers", "root"],
        AxisHelp("what FSDP2 shards: each block, or all at once", "fsdp2"),
    ] = "layers"
    reshard_after_forward: Annotated[
        Literal["auto", "always", "never"],
        AxisHelp("whether FSDP2 frees parameters after forward; auto: all but the root's", "fsdp2"),
    ] = "auto"
    input: Annotated[
        Literal["loader", "resident"],
        AxisHelp("a DataLoader, or all training samples kept on the device"),
    ] = "loader"
    num_workers: Annotated[
        int, Between(0), AxisHelp("loader workers of each rank", "input loader above 0")
    ] = 0
    prefetch_factor: Annotated[
        Count, AxisHelp("batches that each worker holds ready", "num_workers")
    ] = 2
    persistent_workers: Annotated[
        bool, AxisHelp("workers live from epoch to epoch", "num_workers")
    ] = True
    pin_memory: Annotated[
        Literal["auto", "always", "never"],
        AxisHelp("page-locked batches; auto: on GPUs", "always: a GPU, input loader"),
    ] = "auto"
    batch_size: Annotated[
        Count, AxisHelp("samples of an optimizer step, over all ranks; else the workload's own")
    ]
    grad_accum_steps: Annotated[
        Count, AxisHelp("micro-steps of an optimizer step; gradients are shared in the last")
    ] = 1
    activation_checkpointing: Annotated[
        bool, AxisHelp("blocks compute their activations again in backward")
    ] = False
    max_grad_norm: Annotated[
        Annotated[float, Between(1e-6)] | None,
        AxisHelp("largest norm of all gradients together; null: any"),
    ] = None
    channels_last: Annotated[
        bool, AxisHelp("images and convolutions in channels-last order", "convolutions")
    ] = False
    num_threads: Annotated[Count, AxisHelp("intra-op threads of each rank")] = 1
    optimizer: Annotated[
        Literal["recipe", "sgd", "adam", "adamw"],
        AxisHelp("the workload's own, SGD with momentum 0.9, Adam or AdamW", "sgd: lr"),
    ] = "recipe"
    optimizer_impl: Annotated[
        Literal["recipe", "for-loop", "foreach", "fused"], AxisHelp("of the optimizer's step")
    ] = "recipe"
    lr: Annotated[Rate | None, AxisHelp("the peak; null: the workload's own")] = None
    lr_scaling: Annotated[
        Literal["none", "linear"],
        AxisHelp("linear: learning rate times batch_size over the workload's own batch size"),
    ] = "none"
    lr_schedule: Annotated[
        Literal["recipe", "constant", "cosine", "step", "one-cycle"],
        AxisHelp(
            "of the learning rate; step: a tenth after each third; one-cycle: up for 0.3, then a cosine"
        ),
    ] = "recipe"
    lr_warmup: Annotated[
        Fraction, AxisHelp("part of the steps in which the learning rate rises first", "a schedule")
    ] = 0.0


AXES = {axis.name: axis for axis in fields(Axes)}
AXIS_TYPES: dict[str, Any] = {
    **{
        name: hint
        for name, hint in get_type_hints(Axes, include_extras=True).items()
        if name in AXES
    },
    # Another way to say batch_size: it is no axis of a cell.
    "rank_batch_size": Annotated[
        Count, AxisHelp("samples of an optimizer step at each rank, instead of batch_size")
    ],
}
DEFAULTS: dict[str, Any] = {
    name: value for name, value in asdict(Axes(batch_size=1)).items() if name != "batch_size"
}


@dataclass(frozen=True)
class Requirement:
    """What `dependents` do nothing without: a value of `axis`."""

    axis: str
    met: Callable[[Any], bool]
    words: str
    dependents: tuple[str, ...]


NEEDS = (
    Requirement(
        "execution",
        lambda value: value != "eager",
        "execution compile",
        ("dynamic", "fullgraph", "cache"),
    ),
    Requirement(
        "strategy",
        lambda value: value == "ddp",
        "strategy ddp",
        ("bucket_cap_mb", "gradient_as_bucket_view", "static_graph"),
    ),
    Requirement(
        "strategy",
        lambda value: value == "fsdp2",
        "strategy fsdp2",
        ("fsdp_wrap", "reshard_after_forward"),
    ),
    Requirement(
        "input", lambda value: value == "loader", "input loader", ("num_workers", "pin_memory")
    ),
    Requirement(
        "num_workers",
        lambda value: value > 0,
        "num_workers",
        ("prefetch_factor", "persistent_workers"),
    ),
    Requirement(
        "lr_schedule",
        lambda value: value not in ("recipe", "one-cycle"),
        "a schedule",
        ("lr_warmup",),
    ),
)


def axis_help(axis: str) -> AxisHelp:
    """Raises KeyError for what is no axis."""
    found: AxisHelp = next(
        part for part in get_args(AXIS_TYPES[axis]) if isinstance(part, AxisHelp)
    )
    return found


def axis_choices(axis: str) -> tuple[str, ...]:
    """The words that an axis takes; none for a number or an unknown axis."""
    kind = get_args(AXIS_TYPES[axis])[0] if axis in AXIS_TYPES else None
    if kind is bool:
        return ("false", "true")
    return get_args(kind) if get_origin(kind) is Literal else ()


def find_conflict(axes: Axes) -> str | None:
    """Why a combination of axes makes no sense, or None."""
    rank_batch, left = divmod(axes.batch_size, axes.world_size)
    if axes.strategy == "single" and axes.world_size != 1:
        return f"strategy single is one rank, world_size is {axes.world_size}"
    if left:
        return (
            f"batch_size {axes.batch_size} can't be shared out evenly among {axes.world_size} ranks"
        )
    if rank_batch % axes.grad_accum_steps:
        return f"a rank's {rank_batch} samples can't be cut evenly into {axes.grad_accum_steps} micro-steps"
    for need in NEEDS:
        vain = [name for name in need.dependents if getattr(axes, name) != DEFAULTS[name]]
        if vain and not need.met(getattr(axes, need.axis)):
            return f"{vain[0]} does nothing without {need.words}"
    if axes.precision == "bf16:fsdp2" and axes.strategy != "fsdp2":
        return f"precision bf16:fsdp2 is FSDP2's own, strategy is {axes.strategy}"
    if axes.static_graph and axes.grad_accum_steps > 1:
        return "static_graph can't be had with grad_accum_steps: DDP learns the graph from a backward that shares gradients"
    if axes.execution != "eager" and (axes.bucket_cap_mb or 1) < 1:
        return f"bucket_cap_mb {axes.bucket_cap_mb:g} can't be had with execution compile: there torch takes 1 or more"
    if axes.fullgraph and axes.strategy == "ddp":
        return "fullgraph can't be had with strategy ddp: DDP's own forward breaks the graph"
    if axes.fullgraph and axes.strategy == "fsdp2" and axes.fsdp_wrap != "root":
        return "fullgraph can't be had with fsdp_wrap layers: FSDP2 breaks the graph between them"
    if axes.optimizer == "sgd" and axes.lr is None:
        return "optimizer sgd needs lr: the workload's own is for another optimizer"
    return None


def setting_that_needs_gpu(axes: Axes) -> str | None:
    """The setting of a cell that does nothing without a GPU, or None."""
    needy = {"execution": "compile:reduce-overhead", "precision": "tf32", "pin_memory": "always"}
    return next(
        (f"{name}: found {value}" for name, value in needy.items() if getattr(axes, name) == value),
        None,
    )
