"""Loads and looks up what torch.compile needs, for forkservers of cells that are compiled.

A rank whose graphs all come from the cache of an earlier trial needs a fraction of a second for
them. Without this, it would spend seconds on imports before, on the digest of torch's own code, which
is part of the cache's key, and on finding out which instructions the compiler of C++ may use: for
each set of them, torch compiles a library and loads it in a process of its own, which imports torch.

Nothing of a cell is compiled here.
"""

from __future__ import annotations

import traceback
from importlib import import_module

# What torch imports at the first compilation.
MODULES = (
    "torch._inductor.compile_fx",
    "torch._dynamo.backends.inductor",
    "torch._dynamo.repro.after_dynamo",
)


def load() -> None:
    """Import, and look up once what torch remembers for as long as a process lives.

    These modules are torch's own business, and so may have other names in another version. Then,
    and without a compiler, the log of the forkserver says so, and ranks do it all themselves.
    """
    try:
        for name in MODULES:
            import_module(name)
        from torch._inductor.codecache import torch_key
        from torch._inductor.codegen.common import init_backend_registration
        from torch._inductor.cpu_vec_isa import pick_vec_isa

        init_backend_registration()
        pick_vec_isa()
        torch_key()
    except Exception:
        traceback.print_exc()


load()
