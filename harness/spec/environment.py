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
_OF_RANKS = "says which rank a process is"
_THREADS = "follows num_threads, which is an axis"
# Variables that the harness or a launcher sets, or that would change what the harness believes of
# the machine -> what they do, for errors.
RESERVED = {
    "RANK": _OF_RANKS,
    "LOCAL_RANK": _OF_RANKS,
    "GROUP_RANK": _OF_RANKS,
    "ROLE_RANK": _OF_RANKS,
    "WORLD_SIZE": "follows world_size, which is an axis",
    "LOCAL_WORLD_SIZE": "follows world_size, which is an axis",
    "ROLE_WORLD_SIZE": "follows world_size, which is an axis",
    "GROUP_WORLD_SIZE": "follows world_size, which is an axis",
    "MASTER_ADDR": "says where ranks meet",
    "MASTER_PORT": "says where ranks meet",
    "OMP_NUM_THREADS": _THREADS,
    "MKL_NUM_THREADS": _THREADS,  # torch.set_num_threads overrules it
    "OPENBLAS_NUM_THREADS": _THREADS,  # a forkserver loads NumPy with one thread
    "CUDA_VISIBLE_DEVICES": "decides which GPUs there are, which is the profile's to say",
    "PYTHONHOME": "decides which code runs",
    "PYTHONPATH": "decides which code runs",
    "PYTHONUNBUFFERED": "is set by the launcher",
    "TORCHINDUCTOR_CACHE_DIR": "follows cache, which is an axis",
    "TRITON_CACHE_DIR": "follows cache, which is an axis",
}
# The same for all names with these beginnings.
RESERVED_PREFIXES = {
    "HARNESS_": "is the harness's own",
    "TORCHELASTIC_": "is torchrun's own",
    **dict.fromkeys((*OPTION_PREFIXES, *JOB_PREFIXES), "is Slurm's own"),
}


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
    reason = RESERVED.get(name)
    for prefix, reason_of_prefix in RESERVED_PREFIXES.items():
        if name.startswith(prefix):
            reason = reason_of_prefix
    if reason is not None:
        return f"found a variable that {reason}; allowed: variables that nothing else sets"
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
