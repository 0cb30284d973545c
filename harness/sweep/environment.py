"""Environment variables as axes: which ones a sweep may set, and to which values.

In a sweep file such an axis is called `env.NAME`. Its value is text, or null for a variable that is
unset. All values end up in records, reports and MLflow, so secrets are refused. So are variables
that the harness or a launcher sets itself, since theirs would replace what the sweep asks for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from harness.core.slurm_environment import JOB_PREFIXES, OPTION_PREFIXES
from harness.core.validation import Line
from harness.core.variables import is_secret_name

PREFIX = "env."
Variables = Mapping[str, str | None]  # name -> value; None: unset
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")  # that a shell can set too
VariableName = Annotated[
    str,
    Meta(pattern=f"^{NAME.pattern}", description="letters, digits and _, no digit first"),
]
# What a sweep sets one to: booleans and other numbers are refused, since whether `1.10` or `on` was
# written can't be told any more.
VariableValue = Line | int | None
ALLOWED_VALUES = "text, a whole number, or null for unset"
# What torchrun sets for its ranks.
OF_TORCHRUN = re.compile(
    r"((LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_ADDR|MASTER_PORT|TORCHELASTIC_\w+)$"
)
# Variables that the harness or a launcher sets, or that would change what the harness believes of
# the machine.
RESERVED = re.compile(
    r"(CUDA_VISIBLE_DEVICES"
    r"|(OMP|MKL|OPENBLAS)_NUM_THREADS"  # which follow the axis num_threads
    r"|PYTHON(HOME|PATH|UNBUFFERED)|(TORCHINDUCTOR|TRITON)_CACHE_DIR)$"
)
RESERVED_PREFIXES = ("HARNESS_", *OPTION_PREFIXES, *JOB_PREFIXES)


def variable_of(axis: str) -> str | None:
    """Return the variable that an axis sets: `NCCL_ALGO` of `env.NCCL_ALGO`; None of other axes."""
    if axis.startswith(PREFIX):
        return axis.removeprefix(PREFIX)
    return None


def axis_hint(name: str) -> str:
    """Return the axis that an unknown name may stand for: `env.NCCL_ALGO` for `NCCL_ALGO`."""
    if NAME.fullmatch(name) and name.isupper():
        return f"{PREFIX}{name}"
    return f"{PREFIX}NAME"


def problem_of_variable(name: str) -> str | None:
    """Return why a variable can't be an axis, None if it can."""
    if not NAME.fullmatch(name):
        return f"found the name {name!r}; allowed: letters, digits and _, no digit first"
    patterns = (RESERVED, OF_TORCHRUN)
    if any(pattern.match(name) for pattern in patterns) or name.startswith(RESERVED_PREFIXES):
        return (
            "found a variable that the harness or a launcher sets;"
            " allowed: variables that nothing else sets"
        )
    if is_secret_name(name):
        return (
            "found a name that speaks of a secret, and values of axes are recorded; allowed:"
            " `environment` of the cluster profile, which withholds the value"
        )
    return None
