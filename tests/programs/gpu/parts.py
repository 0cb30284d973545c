"""Defines the parts of a run: which task each does, what it shows, and what it needs.

Loads the standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Without these no part can train: what a rank and the assembly of its record import.
REQUIRED = ("torch", "numpy", "scipy", "xxhash", "safetensors", "msgspec", "psutil", "ruamel")
# What some parts need besides, and what makes a part show more.
OPTIONAL = ("transformers", "tokenizers", "pytest", "yaml", "pynvml")
TEXT = ("transformers", "tokenizers", "yaml")  # Hugging Face's hub reads YAML
FIRST = "machine"  # the part without which none of the others makes sense
# A trial for each setting that is another program on a GPU: its name, what it shows, and its axes.
TRIALS: Sequence[tuple[str, str, Mapping[str, Any]]] = (
    ("mlp", "the MLP, CUDA events around its steps", {}),
    ("cnn", "the CNN, peaks of allocated memory", {}),
    ("tf32", "TensorFloat-32", {"precision": "tf32"}),
    ("bf16", "autocast in bf16", {"precision": "bf16"}),
    ("fp16", "autocast in fp16 with loss scaling", {"precision": "fp16"}),
    ("compile", "torch.compile", {"execution": "compile"}),
    ("reduce-overhead", "CUDA graphs", {"execution": "compile:reduce-overhead"}),
    ("resident", "data on the device", {"input": "resident"}),
    (
        "pinned",
        "page-locked batches from two workers",
        {"num_workers": 2, "loader.pin_memory": True},
    ),
    ("ddp", "DDP: NCCL on a GPU, gloo on a CPU", {"strategy": "ddp"}),
    ("fsdp2", "FSDP2 on one device", {"strategy": "fsdp2"}),
    (
        "fsdp2-bf16",
        "FSDP2's own mixed precision",
        {"strategy": "fsdp2", "precision": "bf16:fsdp2"},
    ),
    (
        "offload",
        "FSDP2 with parameters on the host",
        {"strategy": "fsdp2", "fsdp.cpu_offload": True},
    ),
    ("determinism", "two runs in deterministic mode, to the same bits", {"deterministic": True}),
)
GPU_ONLY = ("tf32", "fp16", "reduce-overhead", "pinned", "offload")


@dataclass(frozen=True, kw_only=True)
class Part:
    """One thing to try: `python -m MODULE FOLDER DEVICE TASK KEYWORDS`."""

    name: str  # of its folder and its row
    shows: str
    module: str = "tests.programs.gpu.tasks"
    task: str = ""  # a function of the module
    keywords: Mapping[str, Any] = field(default_factory=dict)  # of the function
    seconds: float = 150.0  # the limit
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
            task="describe_machine",
        ),
        Part(
            name="peaks",
            shows="matrix products in each type, and copies",
            task="measure_peaks",
        ),
        *_trials(12 if small else 300),
        *_races(device, 3 if small else 12),
        *_distilbert(small=small),
        Part(
            name="tests",
            shows="the tests that are marked gpu, and those of NVML and telemetry",
            task="run_tests",
            needs=("pytest", "yaml", "pynvml"),
        ),
    ]


def _trials(steps: int) -> list[Part]:
    """Return the parts of TRIALS."""
    trials = []
    for name, shows, axes in TRIALS:
        workload = "mlp" if name == "mlp" else "cnn"
        cell = {"workload": workload, "steps": steps, "axes": {"batch_size": 64, **axes}}
        trial = Part(
            name=name,
            shows=shows,
            task="train",
            keywords={"cell": cell, "times": 2 if name == "determinism" else 1},
            gpu_only=name in GPU_ONLY,
        )
        trials.append(trial)
    return trials


def _races(device: str, windows: int) -> list[Part]:
    """Return the comparisons of the harness's loop with the bare one, and at its fastest with the textbook's."""
    fast = {"input": "resident"}
    if device == "cuda":
        fast["execution"] = "compile:reduce-overhead"
    races = []
    for workload in ("mlp", "cnn"):
        for against, axes, goal in (("bare", {}, 0.98), ("textbook", fast, 1.0)):
            race = Part(
                name=f"{against}-{workload}",
                shows=f"samples/s of the {workload} beside the {against} loop",
                task="race",
                keywords={
                    "workload": workload,
                    "against": against,
                    "axes": axes,
                    "windows": windows,
                },
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
                task="train",
                keywords={"cell": cell},
                seconds=180,
                needs=TEXT,
                goals=goals,
            )
        )
    return trials
