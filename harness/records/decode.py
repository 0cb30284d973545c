"""Reads JSON that the harness has written back into its dataclasses, by msgspec.

Errors are one line, as `harness.core.errors` has them.

Everything that is read from disk, from another process or from MLflow goes through here. Types must
match exactly: a string is never taken for a number, nor 2.0 for a whole number. The only widening
is that a whole number may stand where a fraction is expected, because JSON writers drop the `.0`.

A file format has a schema, `MAJOR.MINOR`. A new field that has a default raises the minor number;
everything else raises the major number. Files of the same major number can be read: fields that they
lack take their defaults, and fields that this version does not know are ignored. Files of another
major number are refused.

Most of these files are sealed (`harness.records.seal`). The seal is checked before the content is
decoded: any other problem of a file that was changed follows from the change.

Files that users write are read by `harness.spec.document`, which also knows lines.
"""

from __future__ import annotations

import json
import os
import re
import threading
import types
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from harness.core.errors import BadFile, FileUnavailable, did_you_mean, one_line
from harness.records import seal
from harness.records.checks import check_bounds

T = TypeVar("T")

# msgspec's names of types, in the words that our other errors use.
TYPE_NAMES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "keys with values",
    "null": "null",
}
# msgspec's errors are sentences, such as "Expected `int`, got `str` - at `$.ranks[0].pid`". The tests
# of this module notice if a new version words them in another way.
LOCATION = re.compile(r"(?P<problem>.*?)(?: - at `(?P<path>\$[^`]*)`)?", re.DOTALL)
MISSING_FIELD = re.compile(r"Object missing required field `(?P<field>[^`]+)`")
WRONG_TYPE = re.compile(r"Expected `(?P<types>[^`]+)`(?P<bounds> [^,]+)?(?:, got .*)?")
SCHEMA_NUMBERS = re.compile(r"(?P<major>\d{1,9})\.\d{1,9}")
LONGEST_VALUE = 60  # characters of a value that an error shows
LONGEST_PROBLEM = 500  # characters of an error without its file and its remedy
MAX_BYTES = 2**30  # of a file that is read

_prepared: set[Any] = set()  # the kinds whose types msgspec knows
_preparing = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class FileFormat:
    """A kind of JSON file: its name in errors, its schema, and what to do if it is unreadable."""

    name: str  # as in "not a valid record"
    schema: str | None = None  # MAJOR.MINOR; None for files that do not outlive a run
    remedy: str = ""  # as in "harness machine peak measures it again"
    is_sealed: bool = False

    def error(self, source: object, problem: str) -> BadFile:
        """Return the error for a problem in `source`, with the remedy."""
        remedy = f"; {self.remedy}" if self.remedy else ""
        return BadFile(f"{source}: {one_line(problem, LONGEST_PROBLEM)}{remedy}")

    def invalid(self, source: object, problem: object) -> BadFile:
        """Return the error for content that is JSON and no such file."""
        return self.error(source, f"not a valid {self.name}: {problem}")

    def unavailable(self, source: object, error: OSError) -> FileUnavailable:
        """Return the error for a file that could not be read, which says nothing of its content.

        The format's remedy is left out: removing the file might lose a good one.
        """
        problem = one_line(error.strerror or error, LONGEST_PROBLEM)
        return FileUnavailable(
            f"{source}: can't be read as a {self.name}: {problem}; try again, and look at the disk"
            " and the permissions if that does not help"
        )


def decode_file(kind: type[T], path: Path, file_format: FileFormat) -> T:
    """Read the file at `path` as a `kind`, such as Record.

    Raises BadFile if it is missing, incomplete, damaged or of another major schema.
    """
    return decode_content(kind, read_json(path, file_format), path, file_format)


def decode_text(kind: type[T], text: str | bytes, source: object, file_format: FileFormat) -> T:
    """Decode `text` as a `kind`; raises BadFile as `decode_file` does.

    `source` is the name of the text in errors: a path, or the name of a run in MLflow.
    """
    return decode_content(kind, parse_json(text, source, file_format), source, file_format)


def decode_content(kind: type[T], content: Any, source: object, file_format: FileFormat) -> T:
    """Decode a JSON value that was read from `source` as a `kind`; raises BadFile.

    The schema and the seal are checked first: of a file of another major number, the first field
    that differs would be a misleading error.
    """
    content = checked_content(content, source, file_format)
    try:
        decoded: T = decode_value(kind, content)
    except ValueError as error:
        raise file_format.invalid(source, error) from None
    return decoded


def read_json(path: Path, file_format: FileFormat) -> Any:
    """Return the JSON value in a file; raises BadFile if there is no file or if it is no JSON."""
    try:
        with path.open("rb") as file:
            # Python allocates as many bytes as it is asked to read, so it is asked for the file's size.
            size = min(os.fstat(file.fileno()).st_size, MAX_BYTES)
            text = file.read(size + 1)
    except OSError as error:
        raise file_format.unavailable(path, error) from None
    if len(text) > MAX_BYTES:
        problem = f"can't be read as a {file_format.name}: found more than {MAX_BYTES} bytes"
        raise file_format.error(path, problem)
    return parse_json(text, path, file_format)


def parse_json(text: str | bytes, source: object, file_format: FileFormat) -> Any:
    """Return the JSON value in a text from `source`; raises BadFile if it is none.

    NaN and Infinity, which Python's own JSON writer would put there, are refused too.
    """
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError) as error:
        problem = one_line(error)
    except RecursionError:
        problem = "found too many lists or keys inside each other"
    raise file_format.error(source, f"can't be read as a {file_format.name}: {problem}")


def checked_content(content: Any, source: object, file_format: FileFormat) -> Any:
    """Return a file's JSON value without its seal once schema and seal have been checked.

    It has our schema, as it would have if it were written again. Raises BadFile.
    """
    if file_format.schema is not None:
        _check_schema(content, source, file_format)
    if not isinstance(content, dict):
        return content
    if file_format.is_sealed:
        found, expected = content.get(seal.KEY), seal.digest_of(content)
        if found != expected:
            problem = f"seal: found {_shown(found)}; allowed: {expected[:12]}…, that of its content"
            raise file_format.error(source, f"{problem}: it was changed after it was written")
        content = {key: value for key, value in content.items() if key != seal.KEY}
    if file_format.schema is not None:
        content["schema"] = file_format.schema
    return content


def _check_schema(content: Any, source: object, file_format: FileFormat) -> None:
    """Raise BadFile for a file of another major schema; `content` is its JSON value."""
    assert file_format.schema is not None
    schema = content.get("schema") if isinstance(content, dict) else None
    major = file_format.schema.partition(".")[0]
    problem = f"schema: found {_shown(schema)}; allowed: {major}.x"
    numbers = SCHEMA_NUMBERS.fullmatch(str(schema))
    if numbers is None:
        raise file_format.error(source, problem)
    if int(numbers["major"]) > int(major):
        problem += "; a newer version of the harness wrote it: upgrade this one"
        raise BadFile(f"{source}: {problem}")
    if numbers["major"] != major:
        raise file_format.error(source, f"{problem}; an older version of the harness wrote it")


def decode_value(kind: Any, value: Any) -> Any:
    """Return a JSON value, as `json.loads` gives it, as a `kind`.

    `kind` is a type that JSON can hold: dataclasses (nested ones too), sequences, mappings,
    literals, optional values and paths. It may also be a union of dataclasses, which their literal
    fields tell apart. Keys that are no field are ignored. Raises ValueError naming the key, the
    value that was found and what is allowed.
    """
    kind = _union_member(kind, value)
    prepare_decoding(kind)
    try:
        decoded = msgspec.convert(value, kind, strict=True, dec_hook=_decode_custom)
    except msgspec.ValidationError as error:
        raise ValueError(_explain(str(error), value)) from None
    check_bounds(kind, decoded)
    return decoded


def decode_settings(kind: Any, value: Mapping[str, Any]) -> Any:
    """Return JSON as `decode_value` does; raises ValueError for a key that is no field too.

    It is for settings that were asked for: one that is ignored would be a silently other result.
    """
    kind = _union_member(kind, value)
    names = kind.__dataclass_fields__
    for name in value:
        if name not in names:
            raise ValueError(f"{name}: unknown key; {did_you_mean(name, names)}")
    return decode_value(kind, value)


def prepare_decoding(kind: Any) -> None:
    """Let msgspec look at the types of a kind's fields, in one thread at a time.

    It shows a dataclass to other threads before it knows all of its fields; the process then ends
    with a segmentation fault. The first decoding of a large dataclass takes some 10 ms for it.
    """
    if kind in _prepared:
        return
    with _preparing:
        msgspec.json.Decoder(kind, dec_hook=_decode_custom)
        _prepared.add(kind)


def _decode_custom(kind: type, value: Any) -> Any:
    """Return a value of a type that msgspec does not know: a path, or an object that is one already."""
    if kind is Path and isinstance(value, str):
        return Path(value)
    if isinstance(value, kind):
        return value
    raise ValueError(f"found {_shown(value)}; allowed: a {kind.__name__}")


def _union_member(kind: Any, value: Any) -> Any:
    """Return the dataclass of a union that `value` belongs to; `kind` where it is no such union.

    msgspec decodes unions of at most one dataclass, so we choose: the first whose literal fields
    allow what `value` has there. Raises ValueError if there is none.
    """
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    members = [member for member in get_args(kind) if is_dataclass(member)]
    if len(members) < 2 or not isinstance(value, Mapping):
        return kind
    for member in members:
        if _literals_allow(member, value):
            return member
    names = " or ".join(getattr(member, "__name__", str(member)) for member in members)
    raise ValueError(f"found {_shown(value)}; allowed: {names}")


def _literals_allow(kind: Any, value: Mapping[str, Any]) -> bool:
    """Return whether each literal field of a dataclass allows what `value` has there.

    A field that `value` lacks is allowed.
    """
    for name, hint in get_type_hints(kind).items():
        if get_origin(hint) is Literal and name in value and value[name] not in get_args(hint):
            return False
    return True


def _explain(error: str, content: Any) -> str:
    """Return msgspec's error about a JSON value as `KEY: found VALUE; allowed: …`."""
    located = LOCATION.fullmatch(error)
    assert located is not None
    problem = located["problem"]
    key = (located["path"] or "").removeprefix("$").removeprefix(".")
    missing = MISSING_FIELD.fullmatch(problem)
    if missing:
        return f"{key}.{missing['field']}: missing; it has no default".removeprefix(".")
    prefix = f"{key}: " if key else ""
    value = _shown(_value_at(content, key))
    if problem.startswith("Invalid enum value"):
        return f"{prefix}found {value}; allowed: what this version knows"
    wrong_type = WRONG_TYPE.fullmatch(problem)
    if wrong_type:
        allowed = wrong_type["types"].split(" | ")
        names = " or ".join(TYPE_NAMES.get(name, name) for name in allowed)
        return f"{prefix}found {value}; allowed: {names}{wrong_type['bounds'] or ''}"
    return f"{prefix}{problem}"


def _value_at(content: Any, key: str) -> Any:
    """Return the value at `ranks[0].host` of a JSON value.

    Returns the mapping itself for one of its values, as msgspec does not say which: `shares[...]`.
    """
    for part in re.findall(r"[^.\[\]]+|\.\.\.", key):
        if part == "...":
            return content
        content = content[int(part) if isinstance(content, list) else part]
    return content


def _shown(value: Any) -> str:
    """Return a value as JSON, cut where it is long."""
    return one_line(json.dumps(value, default=str), LONGEST_VALUE)
