"""Says what the machine is, and fails where torch has no such device."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import torch

from tests.gpu.arguments import leave, parser


def main() -> int:
    """Leave the names and versions of what the figures depend on; return the exit code."""
    options = parser().parse_args()
    for distribution in sorted(metadata.distributions(), key=lambda package: package.name.lower()):
        print(f"{distribution.name}=={distribution.version}")
    figures = {"torch": torch.__version__, "CUDA": str(torch.version.cuda)}
    if options.device == "cuda":
        if not torch.cuda.is_available():
            print(f"device: torch {torch.__version__} found no CUDA device; allowed: --device cpu")
            return 1
        major, minor = torch.cuda.get_device_capability()
        figures |= {"GPU": torch.cuda.get_device_name(), "capability": f"{major}.{minor}"}
        figures["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
        try:
            subprocess.run(["nvidia-smi", "-q"], check=False)
        except FileNotFoundError:
            print("nvidia-smi: not in PATH")
    leave(options.folder, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
