"""How far forecasts of memory are from what ranks on CPUs took, for every strategy at 1, 2 and 4 ranks.

    python -m tests.programs.perf.memory

Blocks that glibc would keep are returned to the system (`MALLOC_MMAP_THRESHOLD_`), or it would be
measured too. Then it forecasts what no machine here could run: 512 and 4,096 ranks.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from harness.core.paths import Results
from harness.interface.fitting import forecast_memory
from harness.preflight.memory import CellMemory
from harness.spec.cluster import load_profile
from harness.spec.sweep import load_sweep

MIB = 2**20
PROFILE = """\
slots: 4
device: cpu
environment: {MALLOC_MMAP_THRESHOLD_: "131072"}
"""
SWEEP = """\
name: memory-forecasts
workloads:
  mlp:
    data: {source: digits}
    options: {hidden: [4096, 2048, 2048]}
  distilbert:
    data: {source: tickets, rows: 256}
    options: {size: small, sequence: 64, padding: fixed}
length: {steps: 3}
warmup: 1
axes: {batch_size: 32}
zip:
  - strategy: [single, ddp, ddp, ddp, fsdp2, fsdp2, fsdp2, hsdp, tp, tp]
    world_size: [1, 1, 2, 4, 1, 2, 4, 4, 2, 4]
    shard_size: [null, null, null, null, null, null, null, 2, null, null]
"""
VARIANTS = """\
name: memory-variants
workloads:
  distilbert:
    data: {source: tickets, rows: 256}
    options: {size: small, sequence: 64, padding: fixed}
length: {steps: 3}
warmup: 1
axes: {batch_size: 32}
zip:
  - strategy: [single, single, single, ddp, fsdp2, fsdp2, fsdp2, pp, pp]
    world_size: [1, 1, 1, 2, 2, 2, 2, 2, 4]
    precision: [bf16, fp32, fp32, bf16, bf16, "bf16:fsdp2", fp32, fp32, fp32]
    activation_checkpointing: [false, true, false, false, false, false, true, false, false]
    grad_accum_steps: [1, 1, 4, 2, 1, 1, 2, 2, 4]
"""
RANKS = (512, 4096)


def measured(folder: Path, text: str) -> list[CellMemory]:
    """Run a sweep, and return its cells with forecasts and measured peaks."""
    sweep_file, profile_file = folder / "sweep.yaml", folder / "profile.yaml"
    sweep_file.write_text(text, encoding="utf-8")
    profile_file.write_text(PROFILE, encoding="utf-8")
    results = Results(folder / "results")
    command = [sys.executable, "-m", "harness.cli", "run", str(sweep_file), "--tolerate-load"]
    command += ["--cluster", str(profile_file), "--results", str(results.path)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    sweep = load_sweep(sweep_file, [], [])
    return forecast_memory(sweep, load_profile(str(profile_file)), results, lambda label: None)


def print_table(cells: Sequence[CellMemory]) -> None:
    """Print a row for each trial: forecast, measured peak and error."""
    print("| cell | forecast, MiB | measured, MiB | error |\n| --- | ---: | ---: | ---: |")
    for memory in cells:
        for peak, error in zip(memory.measured, memory.errors, strict=True):
            forecast = (memory.forecast.bytes or 0) / MIB
            print(f"| {memory.cell.label} | {forecast:.1f} | {peak / MIB:.1f} | {error:+.1%} |")
    errors = [abs(error) for memory in cells for error in memory.errors]
    print(f"\nlargest error of {len(errors)} trials: {max(errors):.1%}\n", flush=True)


def print_seconds(folder: Path) -> None:
    """Print how long the forecast of one cell takes, with the start of its process."""
    results = Results(folder / "nothing")
    for ranks in RANKS:
        for strategy, shard_size in (("ddp", "null"), ("hsdp", "8"), ("fsdp2", "null")):
            settings = [f"strategy={strategy}", f"world_size={ranks}", f"batch_size={ranks}"]
            settings += [f"shard_size={shard_size}", "data.sequence=64"]
            sweep = load_sweep(Path("workloads/sweeps/gpt.yaml"), settings, [])
            start = time.perf_counter()
            (memory,) = forecast_memory(sweep, load_profile("local"), results, lambda label: None)
            seconds = time.perf_counter() - start
            found = (memory.forecast.bytes or 0) / MIB
            print(
                f"{strategy} at {ranks:,} ranks: {seconds:.1f} s, {found:.1f} MiB a rank",
                flush=True,
            )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both tables, and how long forecasts of many ranks take."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.perf.memory", description=__doc__
    )
    parser.add_argument("--ranks-only", action="store_true", help="measure no trials")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        if not options.ranks_only:
            print_table(measured(Path(folder), SWEEP))
            print_table(measured(Path(folder), VARIANTS))
        print_seconds(Path(folder))


if __name__ == "__main__":
    main()
