"""A disk that is full or failing is named in one line, and never ends well."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.errors import StorageError
from harness.core.storage import DISK_ERRORS, storage_error, writing

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
def test_errors_of_the_disk_name_the_file(tmp_path: Path, number: int) -> None:
    path = tmp_path / "missing" / "file"
    reason = os.strerror(number)
    for error in (OSError(number, reason), RuntimeError(f"unable to write: {reason} (28)")):
        with (
            pytest.raises(StorageError, match=rf"^{path}: {reason}; free: [\d.]+ of "),
            writing(path),
        ):
            raise error


def test_other_errors_stay_as_they_are(tmp_path: Path) -> None:
    for error in (PermissionError(errno.EACCES, "no"), ValueError("no")):
        assert storage_error(error, tmp_path) is None
        with pytest.raises(type(error)), writing(tmp_path):
            raise error
