"""Trials with less memory than data: `python -m tests.programs.perf.large FOLDER`, as root, in about nine minutes.

44,000 images of 224 x 224, a file of 2.1 GiB in FOLDER, are trained on for an epoch. All but one trial
run in a control group (version 1) in which command and ranks may take 1.5 GiB, page cache included.
Prints the table of the guide's page on data.
"""

from __future__ import annotations

import argparse
import os
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.core.paths import Results
from harness.records.files import read_record
from harness.records.record import Record

IMAGES, TEST_IMAGES, SIDE = 44_000, 1_000, 224
CHUNK = 1_000  # images that are drawn at once
GROUP = Path("/sys/fs/cgroup/memory/harness-large")
LIMIT = 3 << 29  # bytes
KILLED = 137  # of a shell, for a command that got SIGKILL
SWEEP = """\
name: {name}
workloads:
  mlp: {{data: {{source: {source}, path: {images}}}}}
axes: {axes}
"""


@dataclass(frozen=True)
class Case:
    """A row of the table."""

    title: str
    axes: str  # as a sweep file has them
    source: str = "mapped"
    is_limited: bool = True


CASES = (
    Case("mapped, cold, 1 rank", "{page_cache: cold}"),
    Case("mapped, cold, DDP at 2 ranks", "{page_cache: cold, strategy: ddp, world_size: 2}"),
    Case("mapped, cold, 1 rank, 2 loader workers", "{page_cache: cold, num_workers: 2}"),
    Case("mapped, warm, no limit", "{page_cache: warm}", is_limited=False),
    Case("the same files as `source: idx`, in memory", "{}", source="idx"),
)


def write_images(folder: Path) -> None:
    """Write IDX files of images whose brightness tells their class, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    for split, count in (("train", IMAGES), ("t10k", TEST_IMAGES)):
        path = folder / f"{split}-images-idx3-ubyte"
        if path.exists():
            continue
        labels = (np.arange(count) % 10).astype(np.uint8)
        label_bytes = struct.pack(">4BI", 0, 0, 8, 1, count) + labels.tobytes()
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(label_bytes)
        with path.open("wb") as file:
            file.write(struct.pack(">4B3I", 0, 0, 8, 3, count, SIDE, SIDE))
            for start in range(0, count, CHUNK):
                brightness = 25 * labels[start : start + CHUNK, None, None]
                noise = generator.integers(0, 25, (len(brightness), SIDE, SIDE), dtype=np.uint8)
                file.write((brightness + noise).tobytes())


def run(case: Case, folder: Path) -> Record | None:
    """Return the record of a trial, None if its command was killed; raises CalledProcessError."""
    name = case.title.replace(" ", "-").replace(",", "").replace("`", "").replace(":", "")
    sweep = folder / f"{name}.yaml"
    text = SWEEP.format(name=name, source=case.source, images=folder / "images", axes=case.axes)
    sweep.write_text(text, encoding="utf-8")
    harness = Path(sys.executable).with_name("harness")
    results = Results(folder / "results")
    command = f"exec {harness} run {sweep} --force --results {results.path} >&2"
    if case.is_limited:
        command = f"echo $$ > {GROUP}/cgroup.procs; {command}"
    ended = subprocess.run(["sh", "-c", command], check=False)
    if ended.returncode in (-9, KILLED):
        return None
    ended.check_returncode()
    (path,) = results.sweep_folder(name).record_paths()
    return read_record(path)


def row(case: Case, record: Record | None) -> str:
    """Return a row of the table in Markdown."""
    if record is None:
        return f"| {case.title} | killed for memory while they were checked | | |"
    assert record.rank0 is not None
    cache = record.rank0.page_cache
    first_rank = next(iter(record.ranks))
    began, ended = first_rank.epoch_began_at, first_rank.epoch_ended_at
    assert cache is not None
    assert began is not None
    assert ended is not None
    seconds = ended.unpack()[0] - began.unpack()[0]
    cached = f"{_megabytes(cache.cached_before)} to {_megabytes(cache.cached_after)}"
    digest = str(record.order_digest)[:8]
    return f"| {case.title} | {seconds:.0f} s | {cached} | `{digest}…` |"


def _megabytes(size: int | None) -> str:
    """Return bytes as in `4 MB` or `1.1 GB`, a dash for what is unknown."""
    if size is None:
        return "–"
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.perf.large", description=__doc__
    )
    parser.add_argument("folder", type=Path, help="for files of 2.3 GB, on a disk")
    folder = parser.parse_args().folder.absolute()
    write_images(folder / "images")
    GROUP.mkdir(exist_ok=True)
    (GROUP / "memory.limit_in_bytes").write_text(str(LIMIT), encoding="utf-8")
    print("| | an epoch | cached, first to last | order digest |\n| --- | --- | --- | --- |")
    for case in CASES:
        print(row(case, run(case, folder)), flush=True)
    GROUP.rmdir()
    print(f"\nload {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
