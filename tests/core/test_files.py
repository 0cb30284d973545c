"""Files that others read and write too: full disks, locks, permissions and logs."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.errors import StorageError
from harness.core.files import (
    DISK_ERRORS,
    last_log_line,
    lock_file,
    make_private_folder,
    open_log,
    private_umask,
    read_tail,
    writing,
)

# Writes files while the limit on their size stands for a disk that is full.
PROGRAM = """\
import resource, sys
from pathlib import Path
from harness.core.errors import StorageError
from harness.core.paths import write_atomically
path = Path(sys.argv[1])
write_atomically(path, "before")
resource.setrlimit(resource.RLIMIT_FSIZE, (3, 3))
try:
    write_atomically(path, "afterwards")
except StorageError as error:
    assert path.read_text() == "before"
    assert [name.name for name in path.parent.iterdir()] == [path.name]
    sys.stderr.write(str(error))
"""


def test_a_file_that_can_not_be_written_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    command = [sys.executable, "-c", PROGRAM, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.startswith(f"{path}: File too large; free: ")


@pytest.mark.parametrize("command", ["--help", "--version", "plan quickstart"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_is_lost_is_a_failure_in_one_line(command: str, unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "harness.cli", *command.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "harness: output: No space left on device\n")


@pytest.mark.parametrize("number", sorted(DISK_ERRORS))
def test_errors_of_the_disk_name_the_file_and_others_stay_as_they_are(
    tmp_path: Path, number: int
) -> None:
    path = tmp_path / "missing" / "file"
    reason = os.strerror(number)
    named = rf"^{path}: {reason}; free: [\d.]+ of "
    for error in (OSError(number, reason), RuntimeError(f"unable to write: {reason} (28)")):
        with pytest.raises(StorageError, match=named), writing(path):
            raise error
    for other in (PermissionError(errno.EACCES, "no"), ValueError("no")):
        with pytest.raises(type(other)), writing(path):
            raise other


def test_a_free_lock_is_had_at_once_and_is_free_again_once_its_file_is_closed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lock"
    with path.open("a") as first, path.open("a") as second:
        assert lock_file(first, 0)
        assert not lock_file(second, 0)
        first.close()
        assert lock_file(second, 0)


def test_what_is_private_others_may_not_read_and_the_umask_comes_back(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    make_private_folder(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
    before = os.umask(0o002)
    try:
        with private_umask() as umask:
            (tmp_path / "file").touch()
        assert umask == os.umask(0o002) == 0o002
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_what_is_no_file_of_the_trial_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "private").write_text("of the reader's own", encoding="utf-8")
    linked_file, named_pipe, folder = (tmp_path / name for name in ("link.log", "pipe.log", "log"))
    linked_file.symlink_to("private")
    os.mkfifo(named_pipe)
    folder.mkdir()
    for log in (linked_file, named_pipe, folder):
        with pytest.raises(OSError, match="regular file"):
            open_log(log)
        assert last_log_line(log) == "none"


def test_only_the_end_of_a_huge_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    with log.open("wb") as file:
        file.truncate(2**34)  # a hole of 16 GiB takes no room on the disk
        file.seek(0, os.SEEK_END)
        file.write(b"\nthe \xff last line\n=====\n")
    assert last_log_line(log) == "the \N{REPLACEMENT CHARACTER} last line"
    with open_log(log) as opened:
        assert len(read_tail(opened, 100)) == 100
