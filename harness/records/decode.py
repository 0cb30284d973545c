"""Reads JSON files that the harness has written back into its dataclasses.

Errors are one line, as `harness.core.errors` has them. Everything that is read from disk or from
another process goes through here; `harness.core.validation` decodes it.

A file format has a schema, a number that every change of its meaning raises: files of another number
are refused. It is checked first, as of a file of another schema the first field that differs would be
a misleading error. Then the seal (`harness.records.seal`): any other problem of a file that was
changed follows from the change.

Files that users write are read by `harness.sweep.document`, which also knows lines.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from harness.core.errors import BadFile, FileUnavailable, one_line
from harness.core.validation import decode_json, shown
from harness.records import seal

T = TypeVar("T")

LONGEST_PROBLEM = 500  # characters of an error without its file and its remedy
MAX_BYTES = 2**30  # of a file that is read


@dataclass(frozen=True, kw_only=True)
class FileFormat:
    """A kind of JSON file: its name in errors, its schema, and what to do if it is unreadable."""

    name: str  # as in "can't be read as a record"
    schema: int | None = None  # None for files that do not outlive a run
    remedy: str = ""  # as in "harness peak measures it again"
    is_sealed: bool = False

    def error(self, source: object, problem: object) -> BadFile:
        """Return the error for a problem in `source`, with the remedy."""
        remedy = f"; {self.remedy}" if self.remedy else ""
        return BadFile(f"{source}: {one_line(problem, LONGEST_PROBLEM)}{remedy}")

    def unreadable(self, source: object, problem: object) -> BadFile:
        """Return the error for content that is no such file."""
        return self.error(source, f"can't be read as a {self.name}: {problem}")


class _Head(msgspec.Struct):
    """What is read of a file before its content is decoded."""

    schema: Any = None


def decode_file(kind: type[T], path: Path, file_format: FileFormat) -> T:
    """Read the file at `path` as a `kind`, such as Preflight.

    Raises BadFile if it is missing, incomplete, damaged or of another schema.
    """
    return decode_text(kind, read_bytes(path, file_format), path, file_format)


def decode_text(kind: type[T], text: str | bytes, source: object, file_format: FileFormat) -> T:
    """Decode `text` as a `kind`; raises BadFile as `decode_file` does.

    `source` is the name of the text in errors, such as a path.
    """
    content = text.encode() if isinstance(text, str) else text
    try:
        if file_format.schema is not None:
            schema = msgspec.json.decode(content, type=_Head).schema
            if schema != file_format.schema:
                problem = f"schema: found {shown(schema)}; allowed: {file_format.schema}"
                raise file_format.error(
                    source, f"{problem}; another version of the harness wrote it"
                )
        problem_of_seal = seal.problem_of(content) if file_format.is_sealed else None
        if problem_of_seal is not None:
            raise file_format.error(
                source, f"{problem_of_seal}: it was changed after it was written"
            )
        return decode_json(kind, content)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise file_format.unreadable(source, error) from None


def read_bytes(path: Path, file_format: FileFormat, limit: int = MAX_BYTES) -> bytes:
    """Return the content of a file; raises BadFile if there is none, or if it is too large.

    What could not be read says nothing of the content. The format's remedy is left out of that error:
    removing the file might lose a good one.
    """
    try:
        with path.open("rb", buffering=0) as file:  # it is read at once
            size = os.fstat(file.fileno()).st_size
            if size <= limit:
                return file.readall()
    except OSError as error:
        problem = one_line(error.strerror or error, LONGEST_PROBLEM)
        raise FileUnavailable(
            f"{path}: can't be read as a {file_format.name}: {problem}; try again, and look at the disk"
            " and the permissions if that does not help"
        ) from None
    raise file_format.unreadable(path, f"found {size} bytes; allowed: {limit}")
