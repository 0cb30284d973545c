"""The formats for exporting a trained model, and the requirements of each; loads no torch.

`harness.serving.exporters` writes and loads models.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Mapping, Sequence

from harness.core.errors import BadInput, did_you_mean

EXTRA = "pip install 'distributed-training-harness[export]'"


def _missing_package() -> str | None:
    """Return which package of the extra `export` is not installed."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(name) is None:
            return f"found no package {name}; needed: {EXTRA}"
    return None


def missing_compiler() -> str | None:
    """Return that there is no C++ compiler, found as Inductor finds it."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        return f"found no C++ compiler {compiler}; needed: g++, or another one that CXX names"
    return None


# What says which requirement of a format is missing and how to get it, None for nothing. Torch and
# transformers are always installed.
FORMATS: Mapping[str, Callable[[], str | None]] = {
    "onnx": _missing_package,  # a graph for onnxruntime and other runtimes
    "torch-export": lambda: None,  # torch's own graph, run by torch
    "aotinductor": missing_compiler,  # compiled machine code, run by torch without Python
    "save_pretrained": lambda: None,  # a folder that transformers loads
}


def missing_runtime(name: str) -> str | None:
    """Return which package for running a format is not installed, None if none is missing."""
    if name == "onnx" and importlib.util.find_spec("onnxruntime") is None:
        return f"found no package onnxruntime; needed: {EXTRA}"
    return None


def check_formats(names: Sequence[str]) -> None:
    """Raise BadInput for a format that is unknown, given twice, or lacks a requirement here."""
    for name in names:
        if name not in FORMATS:
            raise BadInput(f"--to: found {name!r}; {did_you_mean(name, FORMATS)}")
        if names.count(name) > 1:
            raise BadInput(f"--to: found {name} twice; allowed: each format once")
        problem = FORMATS[name]()
        if problem is not None:
            raise BadInput(f"--to {name}: {problem}")
