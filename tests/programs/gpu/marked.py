"""Runs the tests that are marked `gpu`, and those of NVML and telemetry."""

from __future__ import annotations

import subprocess
import sys

from tests.programs.gpu.arguments import parser

FILES = ("tests/training/test_determinism.py", "tests/measure/test_gpu.py")
# Without the project's settings and conftest.py, which need plugins and MLflow.
BARE = ("--noconftest", "-c", "/dev/null", "--rootdir", ".", "-p", "no:cacheprovider")
MARKS = ("-o", "markers=gpu: needs a GPU")


def main() -> int:
    """Return pytest's exit code."""
    parser().parse_args()
    command = [sys.executable, "-m", "pytest", "-q", "-rs", *BARE, *MARKS, *FILES]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
