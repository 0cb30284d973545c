"""What of a file is in the page cache is seen, and is dropped or read in where that is asked for."""

from __future__ import annotations

import mmap
from pathlib import Path

import psutil
import pytest

from harness.core.errors import NotApplied
from harness.measure import page_cache
from harness.measure.page_cache import PageCacheWatch, cached_bytes, prepare_page_cache

SIZE = 300 * mmap.PAGESIZE + 7


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a file that a disk has; what is kept in memory can't leave the page cache."""
    mounts = [
        part
        for part in psutil.disk_partitions(all=True)
        if tmp_path.is_relative_to(part.mountpoint)
    ]
    mount = max(mounts, key=lambda part: len(part.mountpoint))
    if mount.fstype in ("tmpfs", "ramfs"):
        pytest.skip(f"{mount.mountpoint} is in memory")
    path = tmp_path / "data"
    path.write_bytes(bytes(SIZE))
    return path


def test_a_file_is_cold_or_warm_as_it_was_asked_for(path: Path) -> None:
    prepare_page_cache([path], "warm")
    assert cached_bytes([path]) == SIZE
    prepare_page_cache([path], "any")
    assert cached_bytes([path]) == SIZE
    prepare_page_cache([path], "cold")
    assert cached_bytes([path]) == 0
    watch = PageCacheWatch([path])
    with path.open("rb") as file:
        file.read(mmap.PAGESIZE)
    noted = watch.read()
    assert (noted.files, noted.bytes, noted.cached_before) == (1, SIZE, 0)
    assert noted.cached_after is not None
    assert noted.cached_after >= mmap.PAGESIZE


def test_a_file_that_a_process_has_mapped_is_not_said_to_be_cold(path: Path) -> None:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        assert not any(mapping[:: mmap.PAGESIZE])  # which touches every page
        with pytest.raises(
            NotApplied,
            match=rf"^page_cache=cold had no effect: {SIZE} of the {SIZE} bytes .* has mapped them",
        ):
            prepare_page_cache([path], "cold")


def test_a_file_that_memory_does_not_hold_is_not_said_to_be_warm(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_page_cache([path], "cold")
    monkeypatch.setattr(page_cache, "_read_through", lambda _: None)
    with pytest.raises(NotApplied, match=r"^page_cache=warm had no effect: 0 of .* larger than"):
        prepare_page_cache([path], "warm")


def test_where_the_system_does_not_say_nothing_is_claimed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux tells nobody who neither owns a file nor may write it."""
    monkeypatch.setattr("os.geteuid", lambda: path.stat().st_uid + 1)
    monkeypatch.setattr("os.access", lambda *_: False)
    assert PageCacheWatch([path]).read().cached_before is None
    with pytest.raises(NotApplied, match="this system does not say what of these files is cached"):
        prepare_page_cache([path], "cold")
