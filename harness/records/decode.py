"""Reads JSON that the harness has written back into its dataclasses, strictly.

Errors are one line, as `harness.core.errors` has them.

Everything that is read from disk, from another process or from MLflow goes through here. Types must
match exactly: a string is never taken for a number, nor 2.0 for a whole number. The only widening
is that a whole number may stand where a fraction is expected, because JSON writers drop the `.0`.

A file format has a schema, `MAJOR.MINOR`. A new field that has a default raises the minor number;
everything else raises the major number. A file of the same major number can always be read: fields
that it lacks take their defaults, and fields of a later minor number are ignored. In a file of our
own or an earlier minor number an unknown field is damage, and an error.

Most of these files are sealed (`harness.records.seal`). The seal is checked before the content is
looked at: whatever else is wrong with a file that was changed follows from the change.

Files that users write are read by `harness.spec.document`, which also knows lines and bounds.
"""

from __future__ import annotations

import json
import os
import re
import threading
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from harness.core.errors import BadFile, FileUnavailable, did_you_mean, one_line
from harness.records import seal
from harness.records.checks import Problem, check_of

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
# The same names -> the types that a JSON parser makes of such values.
JSON_TYPES: dict[str, type] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}
# msgspec's errors are sentences, such as "Expected `int`, got `str` - at `$.ranks[0].pid`". These
# patterns take them apart; the tests of this module would show another wording of a new version.
LOCATION = re.compile(r"(?P<problem>.*?)(?: - at `(?P<path>\$[^`]*)`)?", re.DOTALL)
WRONG_TYPE = re.compile(r"Expected `(?P<expected>[^`]+)`(?P<length> of length \d+)?, got .*")
MISSING_FIELD = re.compile(r"Object missing required field `(?P<field>[^`]+)`")
PATH_PART = re.compile(r"\.(?P<field>[^.\[]+)|\[(?P<index>\d+|\.\.\.)\]")
SCHEMA_NUMBER = re.compile(r"(\d+)\.(\d+)")
LONGEST_VALUE = 60  # characters of a value that an error shows
LONGEST_PROBLEM = 500  # characters of an error without its file and its remedy
MAX_BYTES = 2**30  # of a file that is read
MAX_SCHEMAS = 64  # that are kept
MAX_NESTING = (
    50  # lists and objects around a value; what recurses over it must not run out of stack
)


NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")

_prepared: set[Any] = set()  # the kinds whose types msgspec knows
_preparing = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class FileFormat:
    """A kind of JSON file: its name in errors, its schema, and what to do if it is unreadable."""

    name: str  # as in "not a valid record"
    schema: str | None = None  # MAJOR.MINOR; None for files that do not outlive a run
    remedy: str = ""  # as in "harness peak measures it again"
    # The minor number of the first schema whose files are sealed, 0 for all; None for no seal. Where
    # an earlier major number is read too, it is one of that.
    sealed_since: int | None = None
    earlier_major: int | None = None  # whose files are read too, by a reader that knows them

    def error(self, source: object, problem: str) -> BadFile:
        """Return the error for a problem in `source`, with the remedy."""
        return BadFile(self._message(source, problem))

    def unavailable(self, source: object, error: OSError) -> FileUnavailable:
        """Return the error for a file that could not be read, which says nothing of its content.

        So the format's remedy is left out: whoever removed the file might lose a good one.
        """
        problem = one_line(error.strerror or error, LONGEST_PROBLEM)
        return FileUnavailable(
            f"{source}: can't be read as a {self.name}: {problem}; try again, and look at the disk"
            " and the permissions if that does not help"
        )

    def _message(self, source: object, problem: str) -> str:
        """Return the problem in one line, with the remedy if there is any."""
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"{source}: {one_line(problem, LONGEST_PROBLEM)}{remedy}"


def decode_file(kind: type[T], path: Path, file_format: FileFormat) -> T:
    """Read the file at `path` as a `kind`, such as Record.

    Raises BadFile if it is missing, incomplete, damaged or of another major schema.
    """
    return decode_content(kind, read_json(path, file_format), str(path), file_format)


def decode_text(kind: type[T], text: str | bytes, source: str, file_format: FileFormat) -> T:
    """Decode `text` as a `kind`; raises BadFile as `decode_file` does.

    `source` is what errors call the text: a path, or the name of a run in MLflow.
    """
    return decode_content(kind, parse_json(text, source, file_format), source, file_format)


def read_json(path: Path, file_format: FileFormat) -> Any:
    """Return the JSON value in a file; raises BadFile if there is no file or if it is no JSON."""
    try:
        with path.open("rb") as file:
            # Python makes room for all that it is told to read, so it is told what there is.
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
    prefix = f"can't be read as a {file_format.name}: "
    too_deep = f"{prefix}found lists or keys in more than {MAX_NESTING} others"
    try:
        content = msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError) as error:
        raise file_format.error(source, prefix + one_line(error)) from None
    except RecursionError:
        raise file_format.error(source, too_deep) from None
    if _may_be_nested_deeper(text, MAX_NESTING) and _is_nested_deeper(content, MAX_NESTING):
        raise file_format.error(source, too_deep)
    return content


def _may_be_nested_deeper(text: str | bytes, limit: int) -> bool:
    """Return whether JSON may have values inside of more than `limit` lists and objects.

    Brackets in texts count as well, so that it may say so of what is not. Takes a tenth of the time
    of `_is_nested_deeper`.
    """
    encoded = text.encode("utf-8", errors="replace") if isinstance(text, str) else text
    brackets = encoded.translate(None, delete=NO_BRACKETS)
    for _ in range(limit):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return True


def _is_nested_deeper(content: Any, limit: int) -> bool:
    """Return whether any value is inside of more than `limit` lists and objects."""
    level = [content]
    for _ in range(limit + 1):
        level = _items_with_items(level)
        if not level:
            return False
    return True


def _items_with_items(containers: Iterable[Any]) -> list[Any]:
    """Return the lists and objects that are items of lists or values of objects."""
    inner: list[Any] = []
    for container in containers:
        values: Iterable[Any] = ()
        if isinstance(container, dict):
            values = container.values()
        elif isinstance(container, list):
            values = container
        for value in values:
            if isinstance(value, (list, dict)):
                inner.append(value)
    return inner


def decode_content(
    kind: type[T], content: Any, source: str, file_format: FileFormat, *, is_part: bool = False
) -> T:
    """Decode a JSON value that was read from `source` as a `kind`; raises BadFile.

    With `is_part`, the kind has some of the file's keys, and the others are ignored.

    The schema is checked first, if the format has any: of a file of another major number, the first
    field that differs would be a misleading error.
    """
    opened = open_content(content, source, file_format)
    content = opened.content
    if file_format.schema is not None:
        content = with_our_schema(kind, content, file_format.schema)
    ignore_unknown_fields = is_part or opened.is_later_minor
    try:
        decoded: T = decode_value(kind, content, ignore_unknown_fields=ignore_unknown_fields)
    except ValueError as error:
        problem = f"not a valid {file_format.name}: {one_line(error)}"
        raise file_format.error(source, problem) from None
    return decoded


@dataclass(frozen=True, kw_only=True)
class OpenedFile:
    """The content of a file whose schema and seal have been checked."""

    content: Any  # without its seal
    major: int  # of its schema; 0 for a format without schemas
    is_later_minor: bool  # whether it is of a later minor schema than ours


def open_content(content: Any, source: str, file_format: FileFormat) -> OpenedFile:
    """Check the schema and the seal of a JSON value that was read from `source`; raises BadFile."""
    is_later_minor, major = False, 0
    if file_format.schema is not None:
        is_later_minor = check_schema(content, source, file_format)
        major, _ = _schema_numbers(content["schema"]) or (0, 0)
    return OpenedFile(
        content=unsealed(content, source, file_format), major=major, is_later_minor=is_later_minor
    )


def check_schema(content: Any, source: str, file_format: FileFormat) -> bool:
    """Return whether a file is of a later minor schema than ours.

    Raises BadFile for another major one. `content` is its JSON value, whatever that is. A schema
    that is a bare whole number, as files had before there were minor numbers, is that major
    number's first.
    """
    if file_format.schema is None:
        raise ValueError(f"a {file_format.name} has no schema")
    schema = None
    if isinstance(content, dict):
        schema = content.get("schema")
    our_major, our_minor = _schema_numbers(file_format.schema) or (0, 0)
    numbers = _schema_numbers(schema)
    oldest_major = our_major
    allowed = f"{our_major}.x"
    if file_format.earlier_major is not None:
        oldest_major = file_format.earlier_major
        allowed = f"{oldest_major}.x or {allowed}"
    problem = f"schema: found {json.dumps(schema)}; allowed: {allowed}"
    if numbers is None:
        raise file_format.error(source, problem)
    major, minor = numbers
    if major > our_major:
        problem += "; a newer version of the harness wrote it: upgrade this one"
        raise BadFile(f"{source}: {problem}")
    if major < oldest_major:
        remedy = file_format.remedy or "read it with that version"
        raise BadFile(f"{source}: {problem}; an older version of the harness wrote it: {remedy}")
    return major == our_major and minor > our_minor


def unsealed(content: Any, source: str, file_format: FileFormat) -> Any:
    """Return the content of a file without its seal; raises BadFile if the seal is not its own.

    Files of schemas that had no seals yet have none, and neither have formats without seals. The
    schema has been checked.
    """
    if file_format.sealed_since is None or not isinstance(content, dict):
        return content
    found = content.get(seal.KEY)
    if found is None and _had_no_seal(content, file_format):
        return content
    expected = seal.digest_of(content)
    if found != expected:
        problem = f"seal: found {_shown(found)}; allowed: {expected[:12]}…, that of its content"
        raise file_format.error(source, f"{problem}: it was changed after it was written")
    return {key: value for key, value in content.items() if key != seal.KEY}


def _had_no_seal(content: Mapping[str, Any], file_format: FileFormat) -> bool:
    """Return whether a file is of a schema whose files had no seal yet."""
    if file_format.schema is None or file_format.sealed_since is None:
        return False
    major, minor = _schema_numbers(content.get("schema")) or (0, 0)
    if file_format.earlier_major is not None and major != file_format.earlier_major:
        return False
    return minor < file_format.sealed_since


def with_our_schema(kind: Any, content: Mapping[str, Any], schema: str) -> dict[str, Any]:
    """Return the content with our schema, or with none where the dataclass has no such field.

    What is read is written again in our schema, so a Record in memory always has that.
    """
    changed = dict(content)
    del changed["schema"]
    if "schema" in kind.__dataclass_fields__:
        changed["schema"] = schema
    return changed


def _schema_numbers(schema: object) -> tuple[int, int] | None:
    """Return the major and the minor number of a schema, None for what is no schema."""
    if isinstance(schema, int) and not isinstance(schema, bool):  # in Python, True is an int
        return schema, 0
    if not isinstance(schema, str):
        return None
    return _parse_schema(schema)


@lru_cache(MAX_SCHEMAS)
def _parse_schema(schema: str) -> tuple[int, int] | None:
    """Return the numbers of `MAJOR.MINOR`, which ten thousand records have in common."""
    match = SCHEMA_NUMBER.fullmatch(schema)
    if match is None:
        return None
    return int(match[1]), int(match[2])


def decode_value(kind: Any, value: Any, *, ignore_unknown_fields: bool = False) -> Any:
    """Return a JSON value, as `json.loads` gives it, as a `kind`.

    `kind` is a type that JSON can hold: dataclasses (nested ones too), sequences, mappings,
    literals, optional values and paths. It may also be a union of dataclasses, which their literal
    fields tell apart. Raises ValueError naming the key, the value that was found and what is
    allowed.
    """
    kind = _union_member(kind, value)
    prepare_types(kind)
    try:
        decoded = msgspec.convert(value, kind, strict=True, dec_hook=decode_custom)
    except msgspec.ValidationError as error:
        raise ValueError(_explain(str(error), kind, value)) from None
    check = check_of(kind, ignore_unknown_keys=ignore_unknown_fields)
    if check is not None:
        try:
            check(value)
        except Problem as problem:
            raise ValueError(str(problem)) from None
    return decoded


def prepare_decoding(kind: Any) -> None:
    """Look at the types of a kind's fields, as its first decoding does for some 10 ms."""
    prepare_types(kind)
    check_of(kind, ignore_unknown_keys=False)


def prepare_types(kind: Any) -> None:
    """Let msgspec look at the types of a kind's fields, in one thread at a time.

    It shows a dataclass to other threads before it knows all of its fields; the process then ends
    with a segmentation fault. So this comes before all that decodes a dataclass.
    """
    if kind in _prepared:
        return
    with _preparing:
        msgspec.json.Decoder(kind, dec_hook=decode_custom)
        _prepared.add(kind)


def decode_custom(kind: type, value: Any) -> Any:
    """Decode a type that msgspec does not know: a path, or a class of ours that says how.

    msgspec makes a ValueError one of its own, which names where in the content it was.
    """
    if kind is Path:
        return Path(value)
    if hasattr(kind, "decode"):
        return kind.decode(value)
    raise NotImplementedError(f"{kind} can't be read from JSON")


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


def _explain(error: str, kind: Any, content: Any) -> str:
    """Return msgspec's error as `KEY: found VALUE; allowed: …`.

    `content` is the value that was to be a `kind`. msgspec names only the types of what it found,
    so the value is looked up at the error's path.
    """
    located = LOCATION.fullmatch(error)
    assert located is not None
    problem = located["problem"]
    parts = _path_parts(located["path"] or "$")
    missing = MISSING_FIELD.fullmatch(problem)
    if missing:
        return f"{_dotted([*parts, missing['field']])}: missing; it has no default"
    key, value = _look_up(content, parts, problem)
    prefix = ""
    if key:
        prefix = f"{key}: "
    wrong_type = WRONG_TYPE.fullmatch(problem)
    if wrong_type:
        expected = wrong_type["expected"].split(" | ")
        names = " or ".join(TYPE_NAMES.get(name, name) for name in expected)
        return f"{prefix}found {_shown(value)}; allowed: {names}{wrong_type['length'] or ''}"
    if problem.startswith("Invalid enum value"):
        choices = _literal_choices(kind, parts)
        return f"{prefix}found {_shown(value)}; {did_you_mean(value, choices)}"
    return f"{prefix}{problem}"


def _path_parts(path: str) -> list[str | int]:
    """Return the keys and indexes in msgspec's path, `["ranks", 0, "pid"]` for `$.ranks[0].pid`.

    `...` is some key of a mapping, which msgspec does not name.
    """
    parts: list[str | int] = []
    for match in PATH_PART.finditer(path.removeprefix("$")):
        index = match["index"]
        if match["field"] is not None:
            parts.append(match["field"])
        elif index.isdigit():
            parts.append(int(index))
        else:
            parts.append(index)
    return parts


def _look_up(content: Any, parts: Sequence[str | int], problem: str) -> tuple[str, Any]:
    """Return the dotted key and the value at a path of `content`; None where the path ends early.

    `problem` is msgspec's, whose type of the value decides which key `...` stands for.
    """
    wrong = problem.rpartition("got ")[2].strip("`")
    key: list[str | int] = []
    for part in parts:
        step = part
        if part == "..." and isinstance(content, dict):
            step = _key_of_type(content, wrong)
        key.append(step)
        try:
            content = content[step]
        except (KeyError, IndexError, TypeError):
            return _dotted(key), None
    return _dotted(key), content


def _key_of_type(mapping: Mapping[str, Any], type_name: str) -> str:
    """Return the first key of a mapping whose value is of a type, by msgspec's name of it.

    Such a value is what the error is about, as all values of a mapping have one type.
    """
    for key, value in mapping.items():
        if type(value) is JSON_TYPES.get(type_name):
            return key
    return "..."


def _literal_choices(kind: Any, parts: Sequence[str | int]) -> list[str]:
    """Return what the literal field at a path below a dataclass allows.

    Returns nothing where the path leaves the dataclasses, as in a list of literals.
    """
    for part in parts:
        members = [member for member in (kind, *get_args(kind)) if is_dataclass(member)]
        if isinstance(part, str) and members:
            kind = get_type_hints(members[0]).get(part)
    choices: list[str] = []
    for literal in (kind, *get_args(kind)):  # the members of a union, such as Literal[…] | None
        if get_origin(literal) is Literal:
            choices += map(str, get_args(literal))
    return choices


def _dotted(parts: Sequence[str | int]) -> str:
    """Return `ranks[0].host` for ["ranks", 0, "host"]."""
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}"
    return text.removeprefix(".")


def _shown(value: Any) -> str:
    """Return a value as JSON, cut where it is long."""
    return one_line(json.dumps(value, default=str), LONGEST_VALUE)
