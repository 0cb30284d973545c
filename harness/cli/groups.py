"""Orders the commands: the panels of `harness --help`, groups with a default command, former names.

typer's own panels are drawn by rich, which takes square brackets in help for styles and would have
to be imported for every `--help`. Help here is plain text with a section for each panel.

The contexts and formatters that typer passes are annotated `Any`: their classes are not public.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup

from harness.core.errors import BadInput
from harness.core.synonyms import COMMANDS

ALIKE = 0.75  # how similar a misspelt command is at least, from 0 to 1

# The commands of `harness`, and when to use each. A test checks that none is missing.
PANELS: Mapping[str, Mapping[str, str]] = {
    "Run": {
        "init": "Begin: a first sweep, of your script or of an example.",
        "axes": "Look up what a sweep can vary.",
        "workloads": "Look up what can be trained, and fetch its data.",
        "plan": "Before a run: see its cells, trials and duration.",
        "check": "Before a long run: look for mistakes in the workloads.",
        "find-lr": "Before a long run: choose a learning rate.",
        "run": "Run a sweep on this machine, or resume it.",
        "submit": "Run a sweep on a Slurm cluster, or resume it.",
        "status": "During a run: follow trials, read logs, cancel jobs.",
    },
    "Results": {
        "show": "After a run: read its results.",
        "compare": "Decide which of several results is better.",
        "ui": "Browse results in MLflow.",
        "results": "Manage recorded sweeps: report, verify, archive, prune, …",
        "export": "Export a trained model for serving, and time its calls.",
    },
    "Gate": {
        "gate": "Before a merge: find out if a change makes training slower.",
        "explain": "After a gate: find out what makes training slower.",
    },
    "Reproduce": {
        "reproduce": "Run a recorded trial again, and compare the bits.",
        "diff": "Find out why two cells or two trials differ.",
    },
    "Machine": {
        "machine": "On a new machine: check it, and measure its peaks.",
    },
}
# Where the commands of earlier versions are now.
RENAMED: Mapping[str, str] = {
    "audit": "diff audit",
    "baseline": "gate baseline",
    "bisect": "gate bisect",
    "cancel": "status cancel",
    "certify": "gate certify",
    "collect": "results collect",
    "data": "workloads fetch",
    "doctor": "machine doctor",
    "logs": "status logs",
    "parity": "diff parity",
    "peak": "machine peak",
    "report": "results report",
    "verify": "results verify",
}


class MainGroup(TyperGroup):
    """All commands: their help has a section for each panel."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the panels, with a line for each command."""
        width = max(len(command) for command in self.commands)  # so that all panels align
        for panel, commands in PANELS.items():
            with formatter.section(panel):
                formatter.write_dl([(f"{name:{width}}", line) for name, line in commands.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that `args` begin with; raises BadInput for a former name or a synonym."""
        name = args[0]
        if name in RENAMED and not ctx.resilient_parsing:  # which is true for completion
            raise BadInput(f"{name}: moved; did you mean `harness {RENAMED[name]}`?")
        if name in COMMANDS and not ctx.resilient_parsing:
            raise BadInput(f"{name}: no such command; did you mean `harness {COMMANDS[name]}`?")
        return super().resolve_command(ctx, args)


class SubGroup(TyperGroup):
    """A group that is no command itself: without arguments, it shows its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return the arguments that are left, those of `--help` for none."""
        return super().parse_args(ctx, args or ["--help"])

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that `args` begin with; raises BadInput for one outside of the group."""
        name = args[0]
        if name not in self.commands and not ctx.resilient_parsing:
            elsewhere = name in ctx.parent.command.commands
            command = name if elsewhere else COMMANDS.get(name)
            if command is not None:
                where = f"harness {command}"
                raise BadInput(
                    f"{ctx.command_path} {name}: no such command; did you mean `{where}`?"
                )
        return super().resolve_command(ctx, args)


class DefaultGroup(TyperGroup):
    """A group that is a command too, such as `harness gate SWEEP` and `harness gate bisect`.

    Its default is the command of the group's own name, whose class is `DefaultCommand`. It runs
    where the first argument is no command of the group. Where a sweep has the name of a command,
    `--` goes before it: `harness status -- logs`.
    """

    def __init__(self, *, name: str, commands: dict[str, Any], **attributes: Any) -> None:
        """Take the default out of the commands, which are then those that the help lists."""
        super().__init__(name=name, commands=commands, **attributes)
        self.default = self.commands.pop(name)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the default's name, which is empty here, before arguments that name no command."""
        is_command = bool(args) and args[0] in self.commands
        if is_command or (not args and ctx.resilient_parsing):
            return super().parse_args(ctx, args)
        if args and not ctx.resilient_parsing:
            self._refuse_misspelt(ctx, args[0])
        return super().parse_args(ctx, ["", *args])

    def _refuse_misspelt(self, ctx: Any, name: str) -> None:
        """Raise BadInput for a name that is spelled much like a command, and known as nothing else.

        What is known is what would complete the first argument of the default, and files.
        """
        nearest = get_close_matches(name, self.commands, n=1, cutoff=ALIKE)
        if not nearest or Path(name).exists():
            return
        known = {candidate.value for candidate in self._complete_first_argument(ctx, "")}
        if name not in known:
            command = f"{ctx.command_path} {nearest[0]}"
            raise BadInput(f"{name}: no such command; did you mean `{command}`?")

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of this name, the default for none."""
        return super().get_command(ctx, cmd_name) if cmd_name else self.default

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return the commands of the group, and what the first argument of its default may be."""
        candidates: list[Any] = super().shell_complete(ctx, incomplete)
        return candidates + self._complete_first_argument(ctx, incomplete)

    def _complete_first_argument(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return what the first argument of the default may be."""
        default_context = self.default.make_context("", [], parent=ctx, resilient_parsing=True)
        for parameter in self.default.params:
            if parameter.param_type_name == "argument":
                candidates: list[Any] = parameter.shell_complete(default_context, incomplete)
                return candidates
        return []


class DefaultCommand(TyperCommand):
    """The default of a `DefaultGroup`, whose help is that of the group."""

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        """Write the usage with the group's name alone: its own is empty."""
        formatter.write_usage(ctx.parent.command_path, " ".join(self.collect_usage_pieces(ctx)))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, then the other commands of the group."""
        super().format_options(ctx, formatter)
        ctx.parent.command.format_commands(ctx.parent, formatter)
