"""The JSON files that the harness writes and reads back: their schema, their seal, their types.

A file format has a schema, a number that every change of its meaning raises: files of another number
are refused. It is checked first, as of a file of another schema the first field that differs would be
a misleading error. Then the seal: any other problem of a file that was changed follows from the change.

A sealed file is the text of a JSON object whose last key is `seal`. Its value is the SHA-256 of all
bytes before it. So a file is checked without decoding it, and spaces and the order of keys count. A
seal protects from damage and from changes by hand. It is no signature: whoever can run this module can
seal anything.

Files that users write are read by `harness.sweep.document`, which also knows lines.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from harness.core.errors import BadFile, FileUnavailable, one_line
from harness.core.validation import decode_json, shown

T = TypeVar("T")

# The numbers that the harness measures and counts, with their bounds.
Number = Annotated[int, Meta(ge=0)]  # of anything that is counted, or counted from 0
Ordinal = Annotated[int, Meta(ge=1)]  # of anything that there is at least one of, or counted from 1
Amount = Annotated[float, Meta(ge=0)]  # seconds, samples/s and the like
Share = Annotated[float, Meta(ge=0, le=1)]
Moment = Amount  # seconds since the epoch

SEAL = re.compile(rb',\n "seal": "(?P<digest>[0-9a-f]{64})"\n}\n\Z')
LONGEST_SEAL = 100  # bytes; the seal is looked for in so many
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


def sealed_text(content: Mapping[str, Any]) -> str:
    """Return the text of a sealed JSON file; raises ValueError for numbers that JSON can't hold.

    Raises TypeError for values that JSON does not know: as text, no reader would accept them.
    """
    body = json_text(content, indent=1).decode().removesuffix("\n}")
    digest = hashlib.sha256(body.encode()).hexdigest()
    return f'{body},\n "seal": "{digest}"\n}}\n'


def json_text(content: Any, indent: int | None = None) -> bytes:
    """Return JSON in UTF-8, with paths as text.

    Half a surrogate pair, as in the names of files that are no UTF-8, becomes a question mark.
    """
    text = json.dumps(
        content, indent=indent, allow_nan=False, default=_path_text, ensure_ascii=False
    )
    return text.encode("utf-8", errors="replace")


def _path_text(value: object) -> str:
    """Return a path as text; raises TypeError for anything else."""
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"JSON has no {type(value).__name__}")


def decode_file(kind: type[T], path: Path, file_format: FileFormat) -> T:
    """Read the file at `path` as a `kind`, such as Preflight.

    Raises BadFile if it is missing, incomplete, damaged or of another schema.
    """
    return decode_text(kind, read_bytes(path, file_format), path, file_format)


def decode_text(kind: type[T], content: bytes, source: object, file_format: FileFormat) -> T:
    """Decode the content of a file as a `kind`; raises BadFile as `decode_file` does.

    `source` is its name in errors, such as a path.
    """
    try:
        if file_format.schema is not None:
            schema = msgspec.json.decode(content, type=_Head).schema
            if schema != file_format.schema:
                problem = f"schema: found {shown(schema)}; allowed: {file_format.schema}"
                raise file_format.error(
                    source, f"{problem}; another version of the harness wrote it"
                )
        if file_format.is_sealed and not _has_seal(content):
            problem = "seal: found none at the end that is of the text before it"
            raise file_format.error(source, f"{problem}: it was changed after it was written")
        return decode_json(kind, content)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise file_format.unreadable(source, error) from None


def _has_seal(content: bytes) -> bool:
    """Return whether a file ends with the seal of the text before it."""
    seal = SEAL.search(content, max(0, len(content) - LONGEST_SEAL))
    if seal is None:
        return False
    digest = hashlib.sha256(memoryview(content)[: seal.start()]).hexdigest()
    return digest == seal["digest"].decode()


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
