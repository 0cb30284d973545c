"""Lists the commands, each with the module that defines it: only the module of the command that runs is imported."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import typer.main
from typer.core import TyperGroup

from harness.core.errors import BadInput, did_you_mean

# By the panel of `harness --help`: the module of each command, and when to use it.
PANELS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Run": {
        "init": ("run", "Begin: a first sweep, of your script or of an example."),
        "axes": ("run", "Look up what a sweep can vary."),
        "workloads": ("run", "Look up what can be trained."),
        "fetch": ("run", "Download a data set."),
        "plan": ("run", "Before a run: see its cells, trials and duration."),
        "check": ("run", "Before a long run: look for mistakes in the workloads."),
        "find-lr": ("run", "Before a long run: choose a learning rate."),
        "run": ("run", "Run a sweep on this machine, or resume it."),
        "submit": ("jobs", "Run a sweep on a Slurm cluster, or resume it."),
        "status": ("jobs", "During a run: follow its trials."),
        "cancel": ("jobs", "Cancel the jobs of a sweep."),
    },
    "Results": {
        "show": ("results", "After a run: read its results."),
        "compare": ("results", "Decide which of several results is better."),
        "report": ("stored", "Write a sweep's report as one HTML file."),
        "ui": ("results", "Browse results in MLflow."),
        "collect": ("stored", "Deliver records to MLflow that it lacks."),
        "verify": ("stored", "Check that recorded numbers are as they were written."),
        "prune": ("stored", "Remove trials, or a sweep."),
    },
    "Gate": {
        "gate": ("gate", "Before a merge: find out if a change makes training slower."),
        "bisect": ("gate", "Find the commit that made training slower."),
        "baseline": ("gate", "Save results that later runs are compared with."),
        "certify": ("gate", "Measure a machine's false alarms."),
    },
    "Reproduce": {
        "reproduce": ("reproduce", "Run a recorded trial again, and compare the bits."),
        "diff": ("reproduce", "Find out why two cells or two trials differ."),
        "parity": ("reproduce", "Find out which cells of a sweep compute the same."),
    },
    "Machine": {
        "doctor": ("machine", "On a new machine or cluster: check it."),
        "peak": ("machine", "Measure a machine's peak rates, for MFU."),
    },
    "Serve": {
        "export": ("export", "Export a trained model."),
    },
}
MODULES = {name: module for commands in PANELS.values() for name, (module, _) in commands.items()}


class Commands(TyperGroup):
    """All commands; the contexts and formatters that typer passes have no public classes."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, in the order of the help."""
        return list(MODULES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, None for a name that there is none of."""
        if cmd_name not in MODULES:
            return None
        app = import_module(f"harness.cli.{MODULES[cmd_name]}").app
        app.rich_markup_mode = None  # help is plain text, in which square brackets are no styles
        command: Any = typer.main.get_command(app)
        command = command.commands[cmd_name] if isinstance(command, TyperGroup) else command
        # \b keeps the lines of a paragraph from being joined.
        command.help = command.help.replace("Examples:", "\b\nExamples:")
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that `args` begin with; raises BadInput for one that there is none of."""
        if args[0] not in MODULES and not ctx.resilient_parsing:  # which is true for completion
            raise BadInput(f"{args[0]}: no such command; {did_you_mean(args[0], MODULES)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each panel, with a line for each command."""
        width = max(map(len, MODULES))  # so that all panels align
        for panel, commands in PANELS.items():
            with formatter.section(panel):
                formatter.write_dl(
                    [(f"{name:{width}}", line) for name, (_, line) in commands.items()]
                )
