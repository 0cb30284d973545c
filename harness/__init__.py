"""A benchmark and reproducibility harness for distributed training in PyTorch."""

import os

__version__ = "0.1.0"
# Noted before torch is imported: with OMP_PROC_BIND, its OpenMP binds this thread to a single core
# (`harness.core.cores`).
CORES_AT_START = tuple(sorted(os.sched_getaffinity(0)))
