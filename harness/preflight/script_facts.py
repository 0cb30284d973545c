"""Reads what a training script says of its command line and of what it reports, without running it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

DISTRIBUTED = re.compile(r"\b(init_process_group|DistributedDataParallel|fully_shard)\b")
LOWER_IS_BETTER = ("loss", "error", "perplexity", "ppl", "bpb")  # ends of metrics' names


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

    options: Sequence[ScriptOption]
    is_distributed: bool  # whether it can have several ranks
    metrics: Sequence[str]  # that it reports to the harness
    reports: bool  # whether it calls harness.report at all


def read_script(path: Path, files: Sequence[Path]) -> ScriptFacts:
    """Return the facts of the script `path`; `files` are those of its user's that it consists of."""
    options: dict[str, ScriptOption] = {}
    metrics: list[str] = []
    texts = []
    for file in [path, *(other for other in files if other != path)]:
        text = file.read_text(encoding="utf-8", errors="replace")
        texts.append(text)
        metrics += _reported_metrics(text)
        # An imported file that is a program too has options of its own.
        is_program = file == path or "__main__" not in text
        for option in _options(text) if is_program else ():
            options.setdefault(option.flag, option)
    code = "\n".join(texts)
    return ScriptFacts(
        options=list(options.values()),
        is_distributed=DISTRIBUTED.search(code) is not None,
        metrics=list(dict.fromkeys(metrics)),
        reports="harness.report" in code or "from harness import report" in code,
    )


def lower_is_better(metric: str) -> bool:
    """Return whether a metric's name says that lower values are better."""
    return metric.lower().endswith(LOWER_IS_BETTER)


def _reported_metrics(text: str) -> Iterator[str]:
    """Yield the name of each metric that a script reports by a literal name."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return  # which planning has refused, or no Python
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("harness.report", "report"):
            for keyword in node.keywords:
                if keyword.arg is not None and keyword.arg not in ("loss", "samples"):
                    yield keyword.arg


def _options(text: str) -> list[ScriptOption]:
    """Return the options that calls of `add_argument` declare.

    There are none of a file that is no Python, or has subcommands: which of them has an option is unknown.
    """
    if "add_subparsers" in text:
        return []
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    calls = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            calls.append(node)
    calls.sort(key=lambda call: call.lineno)
    options = [_option(call) for call in calls]
    return [option for option in options if option is not None]


def _option(call: ast.Call) -> ScriptOption | None:
    """Return the option that a call of `add_argument` declares, None if its flags are no literals."""
    names = [value.value for value in call.args if isinstance(value, ast.Constant)]
    flags = [name for name in names if isinstance(name, str)]
    if not flags:
        return None
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    default, required = keywords.get("default"), keywords.get("required")
    is_positional = not flags[0].startswith("-") and "nargs" not in keywords
    is_required = isinstance(required, ast.Constant) and required.value is True
    return ScriptOption(
        flags=flags,
        default=default.value if isinstance(default, ast.Constant) else None,
        is_required=is_positional or is_required,
    )
