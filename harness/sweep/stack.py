"""Stacks: other interpreters or containers, with packages of their own, that ranks run under.

A sweep declares them under its key `stacks`, and the values of the axis are their names:

    stacks:
      torch-2.11: {python: /envs/t211/bin/python}
      nightly: {prefix: [apptainer, exec, image.sif]}
    matrix: {stack: [torch-2.11, nightly]}

A cell's id has the name and the definition. What is
installed there is no part of it, as it is not for the interpreter of the harness: records say it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.core.validation import Line

PYTHON_OF_PREFIX = "python3"  # where a container names no interpreter


@dataclass(frozen=True, kw_only=True)
class Stack:
    """An interpreter, or the command of a container with the interpreter in it."""

    # A path, relative to the sweep file's folder, or a name on PATH; null: python3 of the prefix.
    python: Line | None = None
    # A command that runs the command after it. It has to pass on the environment, the working
    # directory and signals, and to show the files of this machine under their own paths.
    prefix: Sequence[Line] = ()

    def __post_init__(self) -> None:
        """Raise ValueError for a stack that is none."""
        if self.python is None and not self.prefix:
            raise ValueError("found neither python nor prefix; allowed: one of them, or both")

    @property
    def command(self) -> list[str]:
        """Return the command that begins with the prefix and ends with the interpreter."""
        return [*self.prefix, self.python or PYTHON_OF_PREFIX]

    def __str__(self) -> str:
        return " ".join(self.command)
