"""The table of what a pre-flight measures of a new model, for the terminal and the report."""

from __future__ import annotations

from collections.abc import Sequence

from harness.preflight.report import ParameterNorms
from harness.render.format import MISSING
from harness.render.table import Table


def norm_table(norms: Sequence[ParameterNorms]) -> Table:
    """Return a table with the norms of parameters and gradients of a new model."""
    table = Table(["parameter", "norm", "norm of gradient"], ["norm", "norm of gradient"])
    for parameter in norms:
        gradient = MISSING if parameter.gradient is None else f"{parameter.gradient:.3g}"
        table.add_row(parameter.name, f"{parameter.parameter:.3g}", gradient)
    return table
