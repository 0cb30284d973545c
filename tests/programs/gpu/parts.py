"""Defines the parts of a run: which module each starts, what it shows, and what it needs.

Loads the standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Without these no part can train: what a rank and the assembly of its record import.
REQUIRED = ("torch", "numpy", "scipy", "xxhash", "safetensors", "msgspec", "psutil", "ruamel")
# What some parts need besides, and what makes a part show more.
OPTIONAL = ("transformers", "tokenizers", "pytest", "yaml", "pynvml")
TEXT = ("transformers", "tokenizers", "yaml")  # Hugging Face's hub reads YAML
PINNED: dict[str, Any] = {"num_workers": 2, "loader.pin_memory": True}
OFFLOADED: dict[str, Any] = {"fsdp.cpu_offload": True}
FIRST = "machine"  # the part without which none of the others makes sense


@dataclass(frozen=True, kw_only=True)
class Part:
    """One thing to try: `python -m MODULE FOLDER --device DEVICE ARGUMENTS`."""

    name: str  # of its folder and its row
    shows: str
    module: str
    arguments: Sequence[str] = ()
    seconds: float = 90.0  # the limit
    needs: Sequence[str] = ()  # packages besides REQUIRED
    gpu_only: bool = False
    goals: Mapping[str, float] = field(default_factory=dict)  # figure -> the least that is wanted


def parts(device: str, *, small: bool) -> list[Part]:
    """Return all parts in the order in which they run, those first that later ones read.

    `small` makes each as short as it can be, for a trial of the code rather than of the machine.
    """
    return [
        Part(
            name=FIRST,
            shows="the device, torch and the packages",
            module="tests.programs.gpu.machine",
        ),
        Part(
            name="peaks",
            shows="matrix products in each type, and copies",
            module="tests.programs.gpu.peaks",
        ),
        *_trials(12 if small else 300),
        *_races(device, "3" if small else "12"),
        *_distilbert(small=small),
        Part(
            name="tests",
            shows="the tests that are marked gpu, and those of NVML and telemetry",
            module="tests.programs.gpu.marked",
            needs=("pytest", "yaml", "pynvml"),
        ),
    ]


def _trials(steps: int) -> list[Part]:
    """Return a trial for each setting that is another program on a GPU."""
    return [
        _trial("mlp", "the MLP, CUDA events around its steps", steps, workload="mlp"),
        _trial("cnn", "the CNN, peaks of allocated memory", steps),
        _trial("tf32", "TensorFloat-32", steps, gpu_only=True, precision="tf32"),
        _trial("bf16", "autocast in bf16", steps, precision="bf16"),
        _trial("fp16", "autocast in fp16 with loss scaling", steps, gpu_only=True, precision="fp16"),
        _trial("compile", "torch.compile", steps, seconds=150, execution="compile"),
        _trial(
            "reduce-overhead", "CUDA graphs", steps, seconds=150, gpu_only=True,
            execution="compile:reduce-overhead",
        ),
        _trial("resident", "data on the device", steps, input="resident"),
        _trial(
            "pinned", "page-locked batches from two workers", steps, gpu_only=True,
            **PINNED,
        ),
        _trial("ddp", "DDP: NCCL on a GPU, gloo on a CPU", steps, strategy="ddp"),
        _trial("fsdp2", "FSDP2 on one device", steps, strategy="fsdp2"),
        _trial(
            "fsdp2-bf16", "FSDP2's own mixed precision", steps, strategy="fsdp2",
            precision="bf16:fsdp2",
        ),
        _trial(
            "offload", "FSDP2 with parameters on the host", steps, gpu_only=True, strategy="fsdp2",
            **OFFLOADED,
        ),
        _trial(
            "determinism", "two runs in deterministic mode, to the same bits", steps, times=2,
            deterministic=True,
        ),
    ]  # fmt: skip


def _trial(
    name: str,
    shows: str,
    steps: int,
    *,
    workload: str = "cnn",
    seconds: float = 90.0,
    gpu_only: bool = False,
    times: int = 1,
    **axes: Any,
) -> Part:
    """Return a part that trains a cell with these axes, `times` times to the same parameters."""
    cell = {"workload": workload, "steps": steps, "axes": {"batch_size": 64, **axes}}
    return Part(
        name=name,
        shows=shows,
        module="tests.programs.gpu.train",
        arguments=["--cell", json.dumps(cell), "--times", str(times)],
        seconds=seconds,
        gpu_only=gpu_only,
    )


def _races(device: str, windows: str) -> list[Part]:
    """Return the comparisons of the harness's loop with the bare one, and at its fastest with the textbook's."""
    fast = {"input": "resident"}
    if device == "cuda":
        fast["execution"] = "compile:reduce-overhead"
    races = []
    for workload in ("mlp", "cnn"):
        for against, axes, goal in (("bare", {}, 0.98), ("textbook", fast, 1.0)):
            arguments = ["--workload", workload, "--against", against, "--windows", windows]
            race = Part(
                name=f"{against}-{workload}",
                shows=f"samples/s of the {workload} beside the {against} loop",
                module="tests.programs.gpu.race",
                arguments=[*arguments, "--axes", json.dumps(axes)],
                goals={f"harness : {against}": goal},
            )
            races.append(race)
    return races


def _distilbert(*, small: bool) -> list[Part]:
    """Return the trials of DistilBERT in bf16, eager and compiled; `small` takes a tiny one.

    The batch is large enough that a step computes for longer than it takes to launch.
    """
    size, sequence, batch_size, steps = ("base", 128, 512, 60)
    if small:
        size, sequence, batch_size, steps = ("tiny", 16, 16, 12)
    trials = []
    for execution in ("eager", "compile"):
        cell = {
            "workload": "distilbert",
            "options": {"size": size, "sequence": sequence, "padding": "fixed"},
            "steps": steps,
            "axes": {"batch_size": batch_size, "precision": "bf16", "execution": execution},
        }
        goals = {"MFU of the measured peak": 0.5} if execution == "compile" else {}
        trials.append(
            Part(
                name=f"distilbert-{execution}",
                shows=f"DistilBERT-{size} in bf16, {execution}",
                module="tests.programs.gpu.train",
                arguments=["--cell", json.dumps(cell)],
                seconds=180,
                needs=TEXT,
                goals=goals,
            )
        )
    return trials
