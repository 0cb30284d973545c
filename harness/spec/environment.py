"""Environment variables as axes: which ones a sweep may set, and to which values.

In a sweep file such an axis is called `env.NAME`. Its value is text, or null for a variable that is
unset. All values end up in records, reports and MLflow, so secrets are refused. So are variables
that the harness or a launcher sets itself, since theirs would replace what the sweep asks for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from harness.core.slurm_environment import JOB_PREFIXES, OPTION_PREFIXES
from harness.core.variables import is_secret_name

PREFIX = "env."
Variables = Mapping[str, str | None]  # name -> value; None: unset
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # that a shell can set too
MAX_VALUE = 1000  # characters; labels and tables show the value
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


def variable_value(value: Any) -> str | None:
    """Return the text that a variable is set to, None for unset; raises ValueError with the reason.

    Whole numbers become text. Other numbers and booleans are refused: whether `1.10` or `on` was
    written can't be told any more.
    """
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        shown = str(value).lower() if isinstance(value, bool) else value
        raise ValueError(f"found {shown} without quotes; allowed: {ALLOWED_VALUES}")
    if not value.isprintable():
        raise ValueError(f"found {value!r}; allowed: one line of text that can be seen")
    if len(value) > MAX_VALUE:
        raise ValueError(f"found {len(value):,} characters; allowed: at most {MAX_VALUE:,}")
    return value
