"""Loads and looks up what torch.compile needs, for forkservers of cells that are compiled.

A rank whose graphs all come from the cache of an earlier trial needs a fraction of a second for
them. Without this, it would spend seconds before that on imports, on the digest of torch's own code,
which is part of the cache's key, and on finding out which instructions the compiler of C++ may use:
for each set of them, torch compiles a library and loads it in a process of its own.

Nothing of a cell is compiled here.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from importlib import import_module

# What torch imports at the first compilation.
MODULES = (
    "torch._inductor.compile_fx",
    "torch._dynamo.backends.inductor",
    "torch._dynamo.repro.after_dynamo",
    "torch._functorch._aot_autograd.subclass_codegen",
    "torch._higher_order_ops.passes.inline_invoke_subgraph",
    "torch._inductor.codegen.memory_planning",
    "torch._inductor.compiler_bisector",
    "torch.distributed.tensor.experimental",
    "torch.export._trace",
    "torch.fx.experimental.validator",
    "torch.profiler._cupti_monitor",
    "multiprocessing.synchronize",
    "numpy.ctypeslib",
)


def load() -> None:
    """Import, and look up once what torch remembers for as long as a process lives.

    These modules and functions are torch's own business, and so may have other names in another
    version. Then, and without a compiler, the log of the forkserver says so, and ranks do it all
    themselves.
    """
    for name in MODULES:
        attempt(import_module, name)
    attempt(look_up_compiler)
    attempt(list_backends)
    # It notes the files of all modules, by which dynamo names the line that it is called from.
    inspect.getmodule(load.__code__)


def attempt(action: Callable[..., object], *arguments: object) -> None:
    """Call a function; print what it raises."""
    try:
        action(*arguments)
    except Exception:
        traceback.print_exc()


def look_up_compiler() -> None:
    """Have torch find its own key, the instructions of the CPU, and the header of all kernels.

    Torch asks the C++ compiler for the header's whole text in each process, to see whether the
    precompiled one is still right. Nothing is compiled of the empty kernel that is named for it.
    """
    from torch._inductor.codecache import CppPythonBindingsCodeCache, torch_key
    from torch._inductor.codegen.common import init_backend_registration
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    init_backend_registration()
    pick_vec_isa()
    torch_key()
    CppPythonBindingsCodeCache.load_pybinding_async([], "")


def list_backends() -> None:
    """Have dynamo import its backends, which it does when the first is looked up."""
    import torch._dynamo

    torch._dynamo.list_backends()


load()
