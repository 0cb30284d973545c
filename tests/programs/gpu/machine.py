"""Says what the machine is, and fails where torch has no such device."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib import metadata

import torch

from harness.records.environment import describe_hardware
from tests.programs.gpu.arguments import leave, parser


def main() -> int:
    """Leave the names and versions of what the figures depend on; return the exit code."""
    options = parser().parse_args()
    for distribution in sorted(metadata.distributions(), key=lambda package: package.name.lower()):
        print(f"{distribution.name}=={distribution.version}")
    hardware = describe_hardware()
    figures = {
        "device": f"{hardware.cpu}, {hardware.usable_cores} cores",
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "commit": commit(),
    }
    if options.device == "cuda":
        if not torch.cuda.is_available():
            print(f"device: torch {torch.__version__} found no CUDA device; allowed: --device cpu")
            return 1
        major, minor = torch.cuda.get_device_capability()
        figures["device"] = f"{torch.cuda.get_device_name()}, compute capability {major}.{minor}"
        figures |= {"CUDA": str(torch.version.cuda), "driver": str(hardware.driver)}
        figures["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
        try:
            subprocess.run(["nvidia-smi", "-q"], check=False)
        except FileNotFoundError:
            print("nvidia-smi: not in PATH")
    leave(options.folder, figures)
    return 0


def commit() -> str:
    """Return the short name of the commit that is checked out, `unknown` outside a repository."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())
