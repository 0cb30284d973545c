"""Says what the machine is, and fails where torch has no such device."""

from __future__ import annotations

import platform
import sys

import torch

from harness.core.worktree import run_git
from harness.records.environment import describe_hardware
from tests.programs.gpu.arguments import leave, parser
from tests.support.tree import TOP


def main() -> int:
    """Leave the names and versions of what the figures depend on; return the exit code."""
    options = parser().parse_args()
    hardware = describe_hardware()
    figures = {
        "device": f"{hardware.cpu}, {hardware.usable_cores} cores",
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "commit": run_git(TOP, "rev-parse", "--short", "HEAD").stdout.strip() or "unknown",
    }
    if options.device == "cuda":
        if not torch.cuda.is_available():
            print(f"device: torch {torch.__version__} found no CUDA device; allowed: --device cpu")
            return 1
        major, minor = torch.cuda.get_device_capability()
        figures["device"] = f"{torch.cuda.get_device_name()}, compute capability {major}.{minor}"
        figures |= {"CUDA": str(torch.version.cuda), "driver": str(hardware.driver)}
        figures["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    leave(options.folder, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
