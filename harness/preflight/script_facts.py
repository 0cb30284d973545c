"""Reads a training script without running it: what it says of its model, data, loss and options.

Only what stands in the script, or in modules of its user's that it imports, is found, by the names that
torch's users give such things. Whatever is not found is None, and never guessed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.spec.script import reported_metrics

MODEL_NAMES = ("model", "net", "network", "module")  # that scripts give their model
DATA_NAMES = ("Dataset", "DataLoader", "memmap", "load_dataset", "ImageFolder")  # ends of names
OPTIMIZERS = (
    "SGD", "Adam", "AdamW", "Adafactor", "RMSprop", "Adagrad", "NAdam", "RAdam", "LBFGS", "Muon",
)  # fmt: skip
WRAPPERS = ("DistributedDataParallel", "DDP", "FullyShardedDataParallel", "FSDP", "compile")
DISTRIBUTED = ("init_process_group", "DistributedDataParallel", "DDP", "fully_shard")
LOWER_IS_BETTER = ("loss", "error", "perplexity", "ppl", "bpb")  # ends of metrics' names


@dataclass(frozen=True, kw_only=True)
class Found:
    """Something that was found in a file."""

    what: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.what}, {self.file}:{self.line}"


@dataclass(frozen=True, kw_only=True)
class ScriptOption:
    """An option of a script's command line, as its argparse declares it."""

    flags: Sequence[str]  # as in -l and --lr
    default: object
    is_required: bool

    @property
    def flag(self) -> str:
        """Return the longest flag, or the name of a positional argument."""
        return max(self.flags, key=len)

    @property
    def name(self) -> str:
        """Return the name as a placeholder has it: `batch_size` for `--batch-size`."""
        return self.flag.lstrip("-").replace("-", "_").replace(".", "_")

    def is_given(self, arguments: Sequence[str]) -> bool:
        """Return whether a command line has one of the flags, or for a positional argument any word."""
        if not self.flag.startswith("-"):
            return bool(arguments)
        given = {word.partition("=")[0] for word in arguments}
        given |= {word[:2] for word in arguments if not word.startswith("--")}  # as in -l0.5
        return not given.isdisjoint(self.flags)


@dataclass(frozen=True, kw_only=True)
class ScriptFacts:
    """What a script says of itself."""

    parts: Mapping[str, Found | None]  # model, data, loss and optimizer
    options: Sequence[ScriptOption]
    is_distributed: bool  # whether it can have several ranks
    metrics: Sequence[str]  # that it reports to the harness
    reports: bool  # whether it calls harness.report at all, or imports it


@dataclass
class _Reader:
    """Collects the facts of one file after another; the first of a kind counts."""

    parts: dict[str, Found | None] = field(
        default_factory=lambda: dict.fromkeys(("model", "data", "loss", "optimizer"))
    )
    model_class: Found | None = None
    options: dict[str, ScriptOption] = field(default_factory=dict)
    is_distributed: bool = False

    def read(self, path: Path, *, is_script: bool = False) -> None:
        """Add what a file says; one that is no Python says nothing.

        Options of a subcommand are left out, and those of a module that is a program of its own.
        """
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            return
        finders: Mapping[str, Callable[[ast.AST], str | None]] = {
            "model": _model,
            "data": _data,
            "loss": _loss,
            "optimizer": _optimizer,
        }
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.expr | ast.stmt)]
        nodes.sort(key=lambda node: (node.lineno, node.col_offset))
        if is_script or not any(map(_is_main_guard, tree.body)):
            self.add_options(nodes)
        for node in nodes:
            for kind, find in finders.items():
                what = find(node)
                if what is not None and self.parts[kind] is None:
                    self.parts[kind] = Found(what=what, file=path.name, line=node.lineno)
            if isinstance(node, ast.ClassDef) and "Module" in map(_last_name, node.bases):
                # The last class of a file is made of those before it.
                self.model_class = Found(what=node.name, file=path.name, line=node.lineno)
            if isinstance(node, ast.Call) and _last_name(node.func) in DISTRIBUTED:
                self.is_distributed = True

    def add_options(self, nodes: Sequence[ast.AST]) -> None:
        """Add the options that the nodes of a file declare, except those of subcommands."""
        subparsers: set[str] = set()  # the variables that hold them
        for node in nodes:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = set(map(ast.unparse, targets))
                # A name may hold a subparser in one function, and the parser in another.
                subparsers -= names
                if _is_of_subparser(node.value, subparsers):
                    subparsers |= names
            option = _option(node)
            if option is not None and not _is_of_subparser(node, subparsers):
                self.options.setdefault(option.flag, option)


def read_script(path: Path, files: Sequence[Path]) -> ScriptFacts:
    """Return the facts of the script `path`; `files` are those of its user's that it consists of."""
    reader = _Reader()
    metrics: list[str] = []
    reports = False
    for file in [path, *(other for other in files if other != path)]:
        reader.read(file, is_script=file == path)
        metrics += [name for _, name in reported_metrics(file)]
        text = file.read_text(encoding="utf-8", errors="replace")
        if "harness.report" in text or "from harness import report" in text:
            reports = True
    return ScriptFacts(
        parts={**reader.parts, "model": reader.parts["model"] or reader.model_class},
        options=list(reader.options.values()),
        is_distributed=reader.is_distributed,
        metrics=list(dict.fromkeys(metrics)),
        reports=reports,
    )


def lower_is_better(metric: str) -> bool:
    """Return whether a metric's name says that lower values are better."""
    return metric.lower().endswith(LOWER_IS_BETTER)


def _last_name(node: ast.expr) -> str:
    """Return `DataLoader` for `torch.utils.data.DataLoader`, nothing for what is no name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_main_guard(node: ast.stmt) -> bool:
    """Return whether a statement is `if __name__ == "__main__"`."""
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _is_of_subparser(node: ast.AST, subparsers: Collection[str]) -> bool:
    """Return whether an expression calls `add_parser`, or a method of what it made.

    `subparsers` are the variables that hold what it made.
    """
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "add_parser":
            return True
        node = node.func.value
    return isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in subparsers


def _assigned_call(node: ast.AST, names: Sequence[str]) -> ast.Call | None:
    """Return the call whose result a statement assigns to one of these names, None if it does not."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
        return None
    targets = [_last_name(target) for target in node.targets]
    return node.value if any(target in names for target in targets) else None


def _model(node: ast.AST) -> str | None:
    """Return what a statement makes the model of, None if it makes none."""
    call = _assigned_call(node, MODEL_NAMES)
    if call is not None and _last_name(call.func) in WRAPPERS:
        inner = call.args[0] if call.args else None
        call = inner if isinstance(inner, ast.Call) else None
    if call is None or _last_name(call.func) in ("to", "cuda"):
        return None
    return _last_name(call.func) or None


def _data(node: ast.AST) -> str | None:
    """Return the class of a data set or loader that an expression makes, None of any other."""
    if isinstance(node, ast.Call) and _last_name(node.func).endswith(DATA_NAMES):
        return _last_name(node.func)
    return None


def _loss(node: ast.AST) -> str | None:
    """Return what a statement computes the loss by, None of any other.

    That is a function of torch whose name says so, a class such as CrossEntropyLoss, or whatever is
    assigned to `loss`.
    """
    call = node if isinstance(node, ast.Call) else _assigned_call(node, ("loss",))
    if call is None:
        return None
    name = _last_name(call.func)
    if name == "cross_entropy" or name.endswith(("_loss", "Loss")):
        return name
    return None if call is node else f"loss = {name}(…)"


def _optimizer(node: ast.AST) -> str | None:
    """Return the optimizer that an expression makes, None of any other."""
    if isinstance(node, ast.Call) and _last_name(node.func) in OPTIMIZERS:
        return _last_name(node.func)
    return None


def _option(node: ast.AST) -> ScriptOption | None:
    """Return the option that a call of `add_argument` declares, None of any other node."""
    if not isinstance(node, ast.Call) or _last_name(node.func) != "add_argument" or not node.args:
        return None
    names = [value.value for value in node.args if isinstance(value, ast.Constant)]
    flags = [name for name in names if isinstance(name, str)]
    if not flags:
        return None
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    default = keywords.get("default")
    required = keywords.get("required")
    is_positional = not flags[0].startswith("-") and "nargs" not in keywords
    return ScriptOption(
        flags=flags,
        default=default.value if isinstance(default, ast.Constant) else None,
        is_required=is_positional
        or (isinstance(required, ast.Constant) and required.value is True),
    )
