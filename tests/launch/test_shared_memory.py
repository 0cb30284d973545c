"""What a killed loader worker leaves in shared memory is removed, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from harness.launch.shared_memory import MIN_AGE, remove_abandoned_blocks


def ended_process() -> int:
    """Return the id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def block(folder: Path, creator: int, *, content: bytes = b"", age: float = 2 * MIN_AGE) -> Path:
    """Return a block as torch names it, last changed `age` seconds ago."""
    path = folder / f"torch_{creator}_1234567_0"
    path.write_bytes(content)
    changed = path.stat().st_mtime - age
    os.utime(path, (changed, changed))
    return path


def test_only_blocks_that_nobody_can_use_are_removed(tmp_path: Path) -> None:
    ended, others = ended_process(), tmp_path / "others"
    others.mkdir()
    abandoned = block(tmp_path, ended)
    kept = [
        block(tmp_path, os.getpid()),
        block(others, ended, content=b"in use"),
    ]
    remove_abandoned_blocks(tmp_path)
    remove_abandoned_blocks(others)
    assert not abandoned.exists()
    assert all(path.exists() for path in kept)


def test_a_block_that_was_just_created_is_left(tmp_path: Path) -> None:
    created = block(tmp_path, ended_process(), age=0)
    remove_abandoned_blocks(tmp_path)
    assert created.exists()


def test_a_machine_without_such_a_folder(tmp_path: Path) -> None:
    remove_abandoned_blocks(tmp_path / "none")
    assert not (tmp_path / "none").exists()
