"""Measures the device's peaks as `harness peak` does, and leaves them for the parts that follow."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from harness.core.validation import decode_value
from harness.hardware.machine import Machine
from harness.hardware.measured_peaks import measure
from harness.training.ranks import Ranks
from tests.programs.gpu.arguments import leave, parser

TYPES = ("fp32", "tf32", "bf16", "fp16")


def main() -> None:
    """Leave `machine.json`, and the highest FLOP/s of each type of product."""
    options = parser().parse_args()
    machine = measure(options.device, Ranks.from_environment(), lambda now: print(now, flush=True))
    assert machine is not None  # at rank 0
    (options.folder / "machine.json").write_text(json.dumps(asdict(machine)))
    figures: dict[str, float] = {}
    for dtype in TYPES:
        peak = machine.peak(dtype)
        if peak is not None:
            figures[f"{dtype} TFLOP/s"] = peak / 1e12
    leave(options.folder, figures)


def read_machine(output: Path) -> dict[str, Machine]:
    """Return the machine that the part `peaks` has measured by its key, none if it has not."""
    path = output / "peaks" / "machine.json"
    if not path.is_file():
        return {}
    machine: Machine = decode_value(Machine, json.loads(path.read_text()))
    return {machine.key: machine}


if __name__ == "__main__":
    main()
