"""A lock is waited for as long as it should be."""

from __future__ import annotations

from pathlib import Path

from harness.core.locks import lock_file


def test_a_free_lock_is_had_at_once_and_is_free_again_once_its_file_is_closed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lock"
    with path.open("a") as first, path.open("a") as second:
        assert lock_file(first, 0)
        assert not lock_file(second, 0)
        first.close()
        assert lock_file(second, 0)
