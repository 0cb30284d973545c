"""The formats that a trained model is exported to, and what each needs; loads no torch.

How a model is written and loaded is in `harness.serving.exporters`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.core.errors import BadInput, did_you_mean

EXTRA = "pip install 'distributed-training-harness[export]'"


@dataclass(frozen=True)
class Format:
    """A format, and what has to be there before a model can be exported to it."""

    about: str  # in a few words
    missing: Callable[[], str | None]  # what is not there and how to get it, None if all is


def _nothing() -> str | None:
    """Return None: the format needs torch and transformers alone, which are always there."""
    return None


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


FORMATS: Mapping[str, Format] = {
    "onnx": Format("a graph for onnxruntime and other runtimes", _missing_package),
    "torch-export": Format("torch's own graph, run by torch", _nothing),
    "aotinductor": Format("compiled machine code, run by torch without Python", missing_compiler),
    "save_pretrained": Format("a folder that transformers loads", _nothing),
}


def missing_runtime(name: str) -> str | None:
    """Return which package is not installed that runs a model in a format, None if none is needed."""
    if name == "onnx" and importlib.util.find_spec("onnxruntime") is None:
        return f"found no package onnxruntime; needed: {EXTRA}"
    return None


def check_formats(names: Sequence[str]) -> None:
    """Raise BadInput for a format that is unknown, twice there, or lacks what it needs here."""
    for name in names:
        if name not in FORMATS:
            raise BadInput(f"--to: found {name!r}; {did_you_mean(name, FORMATS)}")
        if names.count(name) > 1:
            raise BadInput(f"--to: found {name} twice; allowed: each format once")
        problem = FORMATS[name].missing()
        if problem is not None:
            raise BadInput(f"--to {name}: {problem}")
