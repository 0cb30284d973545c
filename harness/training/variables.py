"""Checks that a rank has the environment variables that its cell assigns, and its interpreter.

Most libraries read a variable once, when they are loaded. So a rank must not only have it: the
process that loaded torch must have begun with it. That is the rank itself, or the forkserver that
it was forked from.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from harness.core.errors import NotApplied
from harness.records.assignment import Assignment
from harness.spec.environment import PREFIX, Variables

CPU_CAPABILITY = "ATEN_CPU_CAPABILITY"
# Linux keeps the environment that a program was executed with; a fork inherits it, and a change of
# os.environ leaves it as it is.
INITIAL_ENVIRONMENT = Path("/proc/self/environ")


def check_interpreter(assignment: Assignment) -> None:
    """Raise NotApplied unless this process runs under the interpreter of its cell's stack."""
    if assignment.interpreter is not None and assignment.interpreter != sys.executable:
        raise NotApplied(
            f"stack={assignment.trial.cell.axes.stack} had no effect: the rank runs under"
            f" {sys.executable}, and the stack's interpreter is {assignment.interpreter}"
        )


def check_variables(assigned: Variables) -> None:
    """Raise NotApplied unless this process has the variables, and began with them."""
    _check("this rank has", assigned, os.environ)
    initial = read_initial_environment()
    if initial is not None:
        _check("the process that loaded torch began with", assigned, initial)
    _check_cpu_capability(assigned.get(CPU_CAPABILITY))


def read_initial_environment() -> dict[str, str] | None:
    """Return the environment that this program was executed with, None where there is no /proc."""
    try:
        content = INITIAL_ENVIRONMENT.read_bytes()
    except OSError:
        return None
    variables: dict[str, str] = {}
    for entry in content.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals:
            variables[os.fsdecode(name)] = os.fsdecode(value)
    return variables


def _check(whose: str, assigned: Variables, actual: Mapping[str, str]) -> None:
    """Raise NotApplied for the first variable whose actual value is another one."""
    for name, value in assigned.items():
        if actual.get(name) != value:
            raise NotApplied(
                f"{PREFIX}{name}={_shown(value)} was not passed on: {whose}"
                f" {name} {_shown(actual.get(name))}"
            )


def _shown(value: str | None) -> str:
    """Return a value as a sweep file has it, for errors."""
    return "unset" if value is None else value


def _check_cpu_capability(value: str | None) -> None:
    """Raise NotApplied if torch does not use the instructions that the variable names.

    Torch takes a value that it does not know for none, with a warning only. It calls `default`
    DEFAULT or NO AVX, by its version.
    """
    if value is None:
        return
    capability = torch.backends.cpu.get_cpu_capability()
    names = {"default": ("DEFAULT", "NO AVX")}.get(value, (value.upper(),))
    if capability not in names:
        raise NotApplied(f"{PREFIX}{CPU_CAPABILITY}={value} had no effect: torch uses {capability}")
