"""Words that people know from elsewhere, and the harness's own: what errors suggest first.

A word that is only misspelled is not listed: `harness.core.errors.did_you_mean` finds it by its letters.
"""

from __future__ import annotations

from collections.abc import Mapping

# For a value, an axis or a key, wherever the harness's word is allowed.
SYNONYMS: Mapping[str, str] = {
    # values of axes
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float": "fp32",
    "float64": "fp64",
    "double": "fp64",
    "torch.compile": "compile",
    "inductor": "compile",
    "fsdp": "fsdp2",
    "dp": "ddp",
    "compiled": "compile",
    "mnist": "idx",
    "fashion-mnist": "idx",
    # axes
    "compile": "execution",
    "mixed_precision": "precision",
    "bs": "batch_size",
    "wd": "weight_decay",
    "seed": "seeds",
    "nproc": "world_size",
    "dtype": "precision",
    "amp": "precision",
    "learning_rate": "lr",
    "batch": "batch_size",
    "micro_batch_size": "rank_batch_size",
    "ranks": "world_size",
    "gpus": "world_size",
    "num_gpus": "world_size",
    "nproc_per_node": "world_size",
    "workers": "num_workers",
    "threads": "num_threads",
    "accumulation": "grad_accum_steps",
    "gradient_accumulation_steps": "grad_accum_steps",
    "clip": "max_grad_norm",
    "grad_clip": "max_grad_norm",
    "scheduler": "lr_schedule",
    # keys of a sweep file, as `--set` names them
    "grid": "matrix",
    "parameters": "matrix",
    "params": "matrix",
    "model": "workloads",
    "models": "workloads",
    "epochs": "length.epochs",
    "num_epochs": "length.epochs",
    "max_epochs": "length.epochs",
    "steps": "length.steps",
    "num_steps": "length.steps",
    "max_steps": "length.steps",
}

# What true means for an axis whose values are words.
TRUE: Mapping[str, str] = {"execution": "compile", "precision": "bf16"}

# What to write for a key at the top level of a sweep file, and in one of its workloads. Axes and
# lengths need no line here: `harness.spec.shorthand` knows where they belong.
SWEEP_LINES: Mapping[str, str] = {
    "model": "workloads: {{{value}: {{}}}}",
    "dataset": "workloads: {{LABEL: {{data: {{source: {value}}}}}}}",
    "data": "workloads: {{LABEL: {{data: {{source: {value}}}}}}}",
}
WORKLOAD_LINES: Mapping[str, str] = {
    "model": "uses: {value}",
    "class": "uses: {value}",
    "dataset": "data: {{source: {value}}}",
}
