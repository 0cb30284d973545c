"""The axes: every dimension of the matrix, its values, what it does and what it needs.

The field of an axis is the only place that declares it: its annotation is the type that sweep files
are checked against, its `AxisHelp` is what `harness axes` prints, and its default is what a cell's
id leaves out. `NEEDS` and `CONFLICT_RULES` refuse combinations that would not train as the sweep
says: an axis without effect would make two equal cells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from workloads.options import Between, Count, Fraction, Rate

# The strategies: each name is a value of the axis, each "module:Class" its implementation. Training
# imports only the class of the strategy that a trial uses, so this table imports no torch.
STRATEGIES = {
    "single": "harness.training.strategies.single:Single",
    "ddp": "harness.training.strategies.ddp:DDP",
    "fsdp2": "harness.training.strategies.fsdp2:FSDP2",
    "hsdp": "harness.training.strategies.fsdp2:HSDP",
    "tp": "harness.training.strategies.tensor_parallel:TensorParallel",
    "pp": "harness.training.strategies.pipeline:Pipeline",
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
    # `torch.compile(dynamic=…)`: None (torch decides once a shape changes), True or False.
    dynamic: Annotated[
        Literal["auto", "always", "never"],
        AxisHelp("shapes that torch.compile takes as variable", "compile"),
    ] = "auto"
    # `torch.compile(fullgraph=…)`.
    fullgraph: Annotated[bool, AxisHelp("a graph break fails the trial", "compile")] = False
    # Where Inductor and Triton keep compiled code. `cold` is for measuring the time of compiling: a
    # warm cache makes the second trial of a cell start faster than its first. `once` is for ranks on
    # nodes with separate caches: they take what `torch.compiler.save_cache_artifacts` gives.
    cache: Annotated[
        Literal["warm", "cold", "once"],
        AxisHelp(
            "the compiler's cache: shared by all trials, or a new one; once: shared, and one process"
            " compiles for all ranks before they do",
            "compile",
        ),
    ] = "warm"
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
            "one process; DistributedDataParallel; fully_shard; the same within groups of ranks;"
            " parallelize_module; a pipeline of layers by Schedule1F1B",
            "hsdp: shard_size; tp: a workload with a tensor_parallel_plan; pp: a workload with layers,"
            " and as many grad_accum_steps as ranks",
        ),
    ] = "single"
    # The ranks of a group that shares out the parameters of a model; the groups are replicas.
    shard_size: Annotated[
        Annotated[int, Between(2)] | None,
        AxisHelp("ranks that hold one copy of the model; the groups average gradients", "hsdp"),
    ] = None
    # The ranks of a group that works on the same samples. Under strategy tp, all ranks do.
    tensor_parallel: Annotated[
        Count,
        AxisHelp(
            "ranks that share the work on the same samples, by the workload's plan;"
            " with fsdp2 and hsdp the groups shard the model further",
            "fsdp2 or hsdp; under tp it is world_size",
        ),
    ] = 1
    # torchrun's world size, over all nodes.
    world_size: Annotated[
        Count, AxisHelp("ranks, one GPU or one core each", "another strategy than single above 1")
    ] = 1
    # The next three are parameters of DistributedDataParallel. Torch's own cap is 25 MiB, except
    # for the first bucket, which has 1 MiB.
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
    # Torch's communication hooks: `bf16_compress_hook`, `fp16_compress_hook` and `powerSGD_hook`
    # (Vogels et al. 2019, arXiv:1905.13727), with its state in checkpoints.
    comm_hook: Annotated[
        Literal["none", "bf16", "fp16", "powersgd"],
        AxisHelp("how DDP sends gradients: as they are, in fewer bits, or in low rank", "ddp"),
    ] = "none"
    # The parameter of `PowerSGDState`.
    matrix_approximation_rank: Annotated[
        Count, AxisHelp("the rank that PowerSGD approximates gradients by", "comm_hook powersgd")
    ] = 1
    # Which modules `fully_shard` is called for: each layer of the workload and then the rest, or
    # the whole model only, which gathers all parameters at once.
    fsdp_wrap: Annotated[
        Literal["layers", "root"],
        AxisHelp("what FSDP2 shards: each layer, or all at once", "fsdp2 or hsdp"),
    ] = "layers"
    # `fully_shard(reshard_after_forward=…)`: None, True or False.
    reshard_after_forward: Annotated[
        Literal["auto", "always", "never"],
        AxisHelp(
            "whether FSDP2 frees parameters after forward; auto: all but the root's",
            "fsdp2 or hsdp",
        ),
    ] = "auto"
    # `MixedPrecisionPolicy(reduce_dtype=…)`; None, torch's own, is the type of the gradients.
    reduce_dtype: Annotated[
        Literal["auto", "fp32", "bf16"],
        AxisHelp(
            "the type in which FSDP2 sums up gradients; auto: that of the parameters",
            "fsdp2 or hsdp; fp32: precision bf16:fsdp2 or fp64; bf16: any but bf16:fsdp2",
        ),
    ] = "auto"
    # `fully_shard(offload_policy=CPUOffloadPolicy())`.
    cpu_offload: Annotated[
        bool,
        AxisHelp(
            "parameters, gradients and the optimizer's state in the host's memory",
            "a GPU, fsdp2 or hsdp",
        ),
    ] = False
    # `resident` takes the loader out of a measurement: batches are gathered from tensors on the
    # device.
    input: Annotated[
        Literal["loader", "resident"],
        AxisHelp("a DataLoader, or all training samples kept on the device"),
    ] = "loader"
    # A permutation takes 8 bytes a sample at every rank; keyed computes it index by index, for 10^9
    # samples too. They are two different orders, so neither follows from a size that may change.
    order: Annotated[
        Literal["recipe", "permutation", "keyed"],
        AxisHelp(
            "of an epoch: a permutation in memory, or one that a key chooses and none holds;"
            " recipe: keyed for mapped files and above 2^27 samples, else a permutation",
            "samples that can be read in any order",
        ),
    ] = "recipe"
    # Linux keeps the content of read files in otherwise unused memory, the page cache.
    page_cache: Annotated[
        Literal["any", "cold", "warm"],
        AxisHelp(
            "before a trial, the files of its data are dropped from the page cache, or read into it",
            "samples that are read from files while training; Linux",
        ),
    ] = "any"
    # The next four are parameters of `torch.utils.data.DataLoader`. With 0 workers, the rank itself
    # loads each batch, between two steps.
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
    # Of the global batch, so that cells of different world sizes train on the same batches. The
    # only axis without a default here: its default is the workload's.
    batch_size: Annotated[
        Count, AxisHelp("samples of an optimizer step, over all ranks; else the workload's own")
    ]
    # Micro-steps before the last run under DDP's `no_sync`, or after FSDP2's
    # `set_requires_gradient_sync(False)`; under pp they are `Schedule1F1B(n_microbatches=…)`.
    grad_accum_steps: Annotated[
        Count,
        AxisHelp(
            "micro-steps of an optimizer step; gradients are shared in the last; pp: micro-batches"
        ),
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
    # Torchrun's `--numa-binding`, which `harness.training.binding` applies under any launcher.
    binding: Annotated[
        Literal["none", "node", "socket", "exclusive", "core-complex"],
        AxisHelp(
            "cores of each rank: of its NUMA node or socket, its share of the node's cores, or those of"
            " one last-level cache"
        ),
    ] = "none"
    # An optimizer of `torch.optim`, over the parameter groups that the workload made.
    optimizer: Annotated[
        Literal["recipe", "sgd", "adam", "adamw"],
        AxisHelp("the workload's own, SGD with momentum 0.9, Adam or AdamW", "sgd: lr"),
    ] = "recipe"
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
    # A `torch.optim.lr_scheduler` that is stepped after every optimizer step.
    lr_schedule: Annotated[
        Literal["recipe", "constant", "cosine", "step", "one-cycle"],
        AxisHelp(
            "of the learning rate; step: a tenth after each third; one-cycle: up for 0.3, then a cosine"
        ),
    ] = "recipe"
    # A share of the optimizer steps, from 0 to 0.99. Not `warmup`, the steps that are not measured.
    lr_warmup: Annotated[
        Fraction, AxisHelp("part of the steps in which the learning rate rises first", "a schedule")
    ] = 0.0

    # In place of the sweep's `checkpoint.every`, so that the costs of saving can be measured.
    checkpoint_every: Annotated[
        str | None,
        AxisHelp(
            "how far apart checkpoints to resume from are, as in 10m, 500 steps, auto or never;"
            " null: as the sweep's key checkpoint says"
        ),
    ] = None
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

    @property
    def tensor_parallel_size(self) -> int:
        """Return how many ranks share the work of each layer, 1 without tensor parallelism."""
        return self.world_size if self.strategy == "tp" else self.tensor_parallel

    @property
    def ranks_per_share(self) -> int:
        """Return how many ranks work on the same samples."""
        return self.world_size if self.strategy == "pp" else self.tensor_parallel_size

    @property
    def data_parallel_size(self) -> int:
        """Return how many shares a global batch is divided into."""
        return max(1, self.world_size // self.ranks_per_share)

    @property
    def values(self) -> dict[str, Any]:
        """Return the value of every axis by its name; a copy."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return values

    @property
    def changed(self) -> dict[str, Any]:
        """Return the values that differ from their defaults, by the name of the axis."""
        changed = {"batch_size": self.batch_size}  # without a default of its own
        for name, default in DEFAULTS.items():
            value = getattr(self, name)
            if value != default:
                changed[name] = value
        return changed


# The dataclass field of each axis, by name, in the order of the class.
AXES = {axis.name: axis for axis in fields(Axes)}
# The annotated type of each axis that a sweep may set. With `include_extras`, or the bounds and the
# help inside Annotated would be lost.
AXIS_TYPES: dict[str, Any] = get_type_hints(Axes, include_extras=True)
# Another way to set batch_size; it is no axis of a cell.
AXIS_TYPES["rank_batch_size"] = Annotated[
    Count, AxisHelp("samples of an optimizer step at each rank, instead of batch_size")
]
# The default of each axis that has one; the batch size is there only to make an Axes.
DEFAULTS: dict[str, Any] = asdict(Axes(batch_size=1))
del DEFAULTS["batch_size"]  # its default is the workload's


@dataclass(frozen=True)
class Requirement:
    """Axes that do nothing unless another axis has a certain value.

    Such an axis must have its default where the requirement is not met.
    """

    axis: str  # the one that the others depend on
    met: Callable[[Any], bool]  # of that axis's value
    description: str  # of what is required, for errors
    dependents: tuple[str, ...]  # the axes that do nothing otherwise


# Requirements on the device are in GPU_SETTINGS.
NEEDS = (
    Requirement(
        "execution",
        lambda execution: execution != "eager",
        "execution compile",
        ("dynamic", "fullgraph", "cache"),
    ),
    Requirement(
        "strategy",
        lambda strategy: strategy == "ddp",
        "strategy ddp",
        ("bucket_cap_mb", "gradient_as_bucket_view", "static_graph", "comm_hook"),
    ),
    Requirement(
        "comm_hook",
        lambda hook: hook == "powersgd",
        "comm_hook powersgd",
        ("matrix_approximation_rank",),
    ),
    Requirement(
        "strategy",
        lambda strategy: strategy in FULLY_SHARDED,
        "strategy fsdp2 or hsdp",
        ("fsdp_wrap", "reshard_after_forward", "reduce_dtype", "cpu_offload", "tensor_parallel"),
    ),
    Requirement("strategy", lambda strategy: strategy == "hsdp", "strategy hsdp", ("shard_size",)),
    Requirement(
        "input",
        lambda name: name == "loader",
        "input loader",
        ("num_workers", "pin_memory", "page_cache"),
    ),
    Requirement(
        "num_workers",
        lambda count: count > 0,
        "num_workers",
        ("prefetch_factor", "persistent_workers"),
    ),
    # one-cycle has its own warm-up, and so may a workload's recipe.
    Requirement(
        "lr_schedule",
        lambda schedule: schedule not in ("recipe", "one-cycle"),
        "a schedule",
        ("lr_warmup",),
    ),
)


def axis_help(axis: str) -> AxisHelp:
    """Return the help of an axis or of `rank_batch_size`; raises KeyError for another name."""
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
    if kind is bool:
        return ("false", "true")
    if get_origin(kind) is Literal:
        return get_args(kind)
    return ()


def find_conflict(axes: Axes) -> str | None:
    """Return why a combination of axes makes no sense, None if it does.

    The reason names both axes and their values, in one line. Conflicts that depend on the device or
    the model are found elsewhere: by `setting_that_needs_gpu`, and as NotApplied.
    """
    for rule in CONFLICT_RULES:
        reason = rule(axes)
        if reason is not None:
            return reason
    return None


def _world_size_of_single(axes: Axes) -> str | None:
    """Return a conflict if several ranks would train without a strategy that joins them."""
    if axes.strategy == "single" and axes.world_size != 1:
        return f"strategy single is one rank, world_size is {axes.world_size}"
    return None


def _uneven_mesh(axes: Axes) -> str | None:
    """Return a conflict if the ranks can't be divided into the groups of a two-dimensional mesh."""
    if axes.strategy == "hsdp":
        if axes.shard_size is None:
            return "strategy hsdp needs shard_size: the ranks that hold one copy of the model"
        copy_size = axes.shard_size * axes.tensor_parallel
        if axes.world_size % copy_size or axes.world_size == copy_size:
            sizes = f"shard_size {axes.shard_size}"
            if axes.tensor_parallel > 1:
                sizes += f" with tensor_parallel {axes.tensor_parallel}"
            return f"{sizes} does not make two or more groups of world_size {axes.world_size}"
    if axes.world_size % axes.tensor_parallel:
        return (
            f"tensor_parallel {axes.tensor_parallel} does not make whole groups of world_size"
            f" {axes.world_size}"
        )
    return None


def _uneven_batch(axes: Axes) -> str | None:
    """Return a conflict if ranks, or micro-steps, would take different numbers of samples.

    Their gradients are averaged with equal weights, so the mean would not be that of the samples.
    """
    shares = axes.data_parallel_size
    if axes.batch_size % shares:
        sharing = f"{shares} ranks"
        if axes.ranks_per_share > 1:
            sharing = f"{shares} groups of ranks"
        return f"batch_size {axes.batch_size} can't be shared out evenly among {sharing}"
    rank_batch_size = axes.batch_size // shares
    if rank_batch_size % axes.grad_accum_steps:
        return (
            f"a rank's {rank_batch_size} samples can't be cut evenly into"
            f" {axes.grad_accum_steps} micro-steps"
        )
    return None


def _setting_without_effect(axes: Axes) -> str | None:
    """Return a conflict for an axis that has no effect here and is not at its default."""
    for need in NEEDS:
        if need.met(getattr(axes, need.axis)):
            continue
        for name in need.dependents:
            if getattr(axes, name) != DEFAULTS[name]:
                return f"{name} does nothing without {need.description}"
    return None


def _mixed_precision_of_fsdp2(axes: Axes) -> str | None:
    """Return a conflict for FSDP2's own mixed precision under another strategy."""
    if axes.precision == "bf16:fsdp2" and axes.strategy not in FULLY_SHARDED:
        return f"precision bf16:fsdp2 is FSDP2's own, strategy is {axes.strategy}"
    return None


def _redundant_reduce_dtype(axes: Axes) -> str | None:
    """Return a conflict for a reduce_dtype that is the type of the gradients anyway."""
    gradients = {"bf16:fsdp2": "bf16", "fp64": "fp64"}.get(axes.precision, "fp32")
    if axes.reduce_dtype == gradients:
        return f"reduce_dtype {gradients} does nothing with precision {axes.precision}"
    return None


def _scaled_powersgd(axes: Axes) -> str | None:
    """Return a conflict for PowerSGD of scaled gradients.

    It adds the error of a step to the next one. The scale doubles until gradients overflow, and an
    infinite error makes all later gradients NaN.
    """
    if axes.comm_hook == "powersgd" and axes.precision == "fp16":
        return "comm_hook powersgd is unavailable with precision fp16: it keeps gradients that overflow"
    return None


def _hook_of_tree(axes: Axes) -> str | None:
    """Return a conflict for two communication hooks, of which DDP takes one."""
    if axes.reduction == "tree" and axes.comm_hook != "none":
        return (
            f"reduction tree is unavailable with comm_hook {axes.comm_hook}:"
            " DDP takes one communication hook"
        )
    return None


def _tree_of_another_mesh(axes: Axes) -> str | None:
    """Return a conflict for a tree of gradients where ranks share samples."""
    if axes.reduction == "tree" and (axes.strategy == "hsdp" or axes.ranks_per_share > 1):
        layout = f"strategy {axes.strategy}"
        if axes.tensor_parallel > 1:
            layout = f"tensor_parallel {axes.tensor_parallel}"
        return f"reduction tree is unavailable with {layout}: its leaves are ranks with samples"
    return None


def _refused_pipeline(axes: Axes) -> str | None:
    """Return a conflict for what the schedule of a pipeline does not have."""
    if axes.strategy != "pp":
        return None
    if axes.world_size == 1:
        return "strategy pp is a pipeline of ranks, world_size is 1"
    if axes.grad_accum_steps < axes.world_size:
        return (
            f"strategy pp needs one of grad_accum_steps, its micro-batches, for each of"
            f" {axes.world_size} ranks; it has {axes.grad_accum_steps}"
        )
    for name, allowed in PIPELINE_SETTINGS.items():
        value = getattr(axes, name)
        if value not in allowed:
            return f"{name} {value} is unavailable with strategy pp"
    return None


def _scaled_tensor_parallel(axes: Axes) -> str | None:
    """Return a conflict for a loss scale where some parameters are sharded and others are not.

    GradScaler unscales all gradients in one operation, which takes tensors of one kind only.
    """
    if axes.precision == "fp16" and axes.tensor_parallel_size > 1:
        return (
            "precision fp16 is unavailable with tensor parallelism: torch's GradScaler takes no mix of"
            " tensors and DTensors; bf16 needs no loss scale"
        )
    return None


def _static_graph_with_accumulation(axes: Axes) -> str | None:
    """Return a conflict for a static graph with several micro-steps.

    Those before the last run under `no_sync`, where DDP sees no gradient to share.
    """
    if axes.static_graph and axes.grad_accum_steps > 1:
        return (
            "static_graph is unavailable with grad_accum_steps:"
            " DDP learns the graph from a backward that shares gradients"
        )
    return None


def _unbalanced_tree(axes: Axes) -> str | None:
    """Return a conflict for a tree of gradients without 2, 4, 8, ... leaves.

    Only then are the ranks' gradients of a micro-step a subtree at any number of ranks.
    """
    if axes.reduction != "tree":
        return None
    leaves = axes.world_size * axes.grad_accum_steps
    if leaves > 1 and leaves & (leaves - 1) == 0:
        return None
    return f"reduction tree needs world_size times grad_accum_steps to be 2, 4, 8 …; it is {leaves}"


def _tree_with_fused_optimizer(axes: Axes) -> str | None:
    """Return a conflict for a fused optimizer, whose last bits depend on the shards' ends."""
    if axes.reduction == "tree" and axes.optimizer_impl == "fused":
        return (
            "reduction tree is unavailable with optimizer_impl fused: its rounding depends on where"
            " a tensor is cut into shards; recipe and foreach work"
        )
    return None


def _tree_with_sharded_norm(axes: Axes) -> str | None:
    """Return a conflict for a limit of the gradients' norm, which FSDP2 sums over its shards."""
    if axes.reduction == "tree" and axes.strategy == "fsdp2" and axes.max_grad_norm is not None:
        return (
            "reduction tree is unavailable with max_grad_norm under strategy fsdp2:"
            " the norm's own sum depends on the number of ranks"
        )
    return None


def _compiled_small_bucket(axes: Axes) -> str | None:
    """Return a conflict for a compiled DDP model with buckets below 1 MiB.

    Torch's DDPOptimizer asserts that no bucket is smaller than the first one, which has 1 MiB.
    """
    if axes.execution == "eager" or axes.bucket_cap_mb is None or axes.bucket_cap_mb >= 1:
        return None
    return (
        f"bucket_cap_mb {axes.bucket_cap_mb:g} is unavailable with execution compile:"
        " there torch takes 1 or more"
    )


def _broken_full_graph(axes: Axes) -> str | None:
    """Return a conflict for a full graph where the strategy itself breaks the graph."""
    if axes.fullgraph and axes.strategy == "ddp":
        return "fullgraph is unavailable with strategy ddp: DDP's own forward breaks the graph"
    if axes.fullgraph and axes.strategy in FULLY_SHARDED and axes.fsdp_wrap != "root":
        return "fullgraph is unavailable with fsdp_wrap layers: FSDP2 breaks the graph between them"
    return None


def _deterministic_autotuning(axes: Axes) -> str | None:
    """Return a conflict for a compiler that picks kernels by measured speed, which varies."""
    if axes.deterministic and axes.execution == "compile:max-autotune":
        return (
            "deterministic is unavailable with execution compile:max-autotune, which chooses kernels"
            " by their time"
        )
    return None


def _optimizer_without_rate(axes: Axes) -> str | None:
    """Return a conflict for SGD at the learning rate of the workload's optimizer.

    Adam and AdamW may share a learning rate, but SGD may not: its steps are proportional to the
    gradients, unlike theirs.
    """
    if axes.optimizer == "sgd" and axes.lr is None:
        return "optimizer sgd needs lr: the workload's own is for another optimizer"
    return None


# What a pipeline can do of some axes: its schedule calls backward, so that nothing scales a loss or
# proves a precision before it, and a rank has the gradients of its own layers only.
PIPELINE_SETTINGS: dict[str, tuple[Any, ...]] = {
    "execution": ("eager",),
    "precision": ("fp32", "tf32", "fp64"),
    "max_grad_norm": (None,),
}
# In the order in which they are reported; only the first conflict is.
CONFLICT_RULES: tuple[Callable[[Axes], str | None], ...] = (
    _world_size_of_single,
    _setting_without_effect,
    _uneven_mesh,
    _uneven_batch,
    _mixed_precision_of_fsdp2,
    _redundant_reduce_dtype,
    _hook_of_tree,
    _scaled_powersgd,
    _tree_of_another_mesh,
    _refused_pipeline,
    _scaled_tensor_parallel,
    _static_graph_with_accumulation,
    _unbalanced_tree,
    _tree_with_fused_optimizer,
    _tree_with_sharded_norm,
    _compiled_small_bucket,
    _broken_full_graph,
    _deterministic_autotuning,
    _optimizer_without_rate,
)
# The axes that change what is computed, where the others only change how. Cells that differ in one of
# these are not meant to train the same.
RECIPE_AXES = (
    "batch_size",
    "order",
    "max_grad_norm",
    "optimizer",
    "lr",
    "lr_scaling",
    "lr_schedule",
    "lr_warmup",
)
# The value of an axis that does nothing on a CPU. Not a conflict of the axes: a sweep is planned on
# machines without a GPU, for a cluster that has them.
GPU_SETTINGS: dict[str, str | bool] = {
    "cpu_offload": True,
    "execution": "compile:reduce-overhead",
    "precision": "tf32",
    "pin_memory": "always",
}


def setting_that_needs_gpu(axes: Axes) -> str | None:
    """Return the first setting that does nothing without a GPU, as `AXIS: found VALUE`.

    Returns None if all settings work on a CPU.
    """
    for name, value in GPU_SETTINGS.items():
        if getattr(axes, name) == value:
            return f"{name}: found {str(value).lower()}"
    return None
