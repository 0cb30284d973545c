"""Removes secrets from the logs of an attempt that has ended.

Ranks write their logs themselves, with whatever the user's workload and the libraries print. Logs
stay on disk and go into reports and MLflow, from machines where nobody knows any more which values
are secret. So they are cleaned while that is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.core.errors import HarnessError
from harness.core.paths import TrialFolder
from harness.core.redaction import redact_text

CHUNK_BYTES = 2**20  # about so much of a log is in memory, and more only of a longer line
KEY_BYTES = 2**15  # the most bytes of a private key, which is in one piece
SUFFIX = ".clean"  # of the copy that replaces a log


def scrub_logs(folder: TrialFolder, secrets: Sequence[str]) -> None:
    """Remove secrets from a trial's logs, which nothing may be writing to any more.

    A log without any stays as it is. Links are left alone: what they lead to is no log of ours.

    Raises HarnessError if a log can't be replaced, because it must not stay.
    """
    for stale in folder.log_folder.glob(f"*{SUFFIX}"):  # of a process that was killed here
        stale.unlink()
    for log in sorted(folder.log_folder.glob("*.log")):
        if log.is_symlink():
            continue
        try:
            _scrub(log, secrets)
        except OSError as error:
            raise HarnessError(
                f"{log}: can't be cleaned of secrets: {error.strerror}; remove it"
            ) from None


def _scrub(log: Path, secrets: Sequence[str]) -> None:
    """Replace a log by one without secrets, if it has any."""
    if all(redact_text(text, secrets) == text for text in _chunks(log)):
        return
    copy = log.with_name(f"{log.name}{SUFFIX}")
    try:
        with copy.open("w", encoding="utf-8", errors="surrogateescape", newline="") as target:
            for text in _chunks(log):
                target.write(redact_text(text, secrets))
        copy.replace(log)
    finally:
        copy.unlink(missing_ok=True)


def _chunks(log: Path) -> Iterator[str]:
    """Yield a log in pieces of whole lines, whose bytes that are no UTF-8 can be written back.

    A private key is not cut.
    """
    with log.open("rb") as file:
        while lines := file.readlines(CHUNK_BYTES):
            chunk = b"".join(lines)
            while _ends_inside_key(chunk) and (line := file.readline()):
                chunk += line
            yield chunk.decode("utf-8", errors="surrogateescape")


def _ends_inside_key(chunk: bytes) -> bool:
    """Return whether a piece of a log has the beginning of a private key without its end."""
    tail = chunk[-KEY_BYTES:]
    return tail.rfind(b"-----BEGIN ") > tail.rfind(b"-----END ")
