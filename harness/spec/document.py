"""YAML files, read strictly: every mistake is one line with file, line, key, found and allowed.

A file is read in three steps. PyYAML parses it with `_Loader`, which takes scalars as YAML 1.2
mostly does. A second look at the nodes of the text notes the line of each key, and refuses keys
that YAML would silently merge or convert. Then `Document.validate` turns the content into
dataclasses through pydantic, whose errors are put into our words, at the line of the key.
"""

from __future__ import annotations

import json
import math
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError

from harness.core.errors import BadInput, did_you_mean, one_line

# The way to a value: keys of mappings and indexes of lists; () is the file as a whole.
Key = tuple[str | int, ...]

TAG = "tag:yaml.org,2002:"  # begins the names of YAML's own types
# PyYAML's integers without those to the base 60: it reads 1:30:00, a time limit, as 5400.
INTEGER = re.compile(r"[-+]?(0b[01_]+|0[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$")
# The types of scalars and collections that JSON has too. What is left out: timestamp, binary, set,
# omap, pairs, and the merge key `<<`.
PLAIN = {TAG + kind for kind in ("null", "bool", "int", "float", "str", "seq", "map")}


class _Loader(yaml.SafeLoader):
    """Loads what JSON can hold and no more: a date stays text.

    As in YAML 1.2, 1e-3 is a number and 1:30:00 is not. As in YAML 1.1, unquoted on, off, yes and
    no are booleans: `_explain` adds a hint where one of them stands for a word.
    """


_Loader.yaml_constructors = {
    tag: construct
    for tag, construct in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag in PLAIN
}


def _plain_resolvers(resolvers: list[tuple[str, re.Pattern[str]]]) -> list[Any]:
    """Return those of PyYAML's (tag, pattern) pairs that are for plain types, ours for integers.

    A resolver decides the type of an unquoted scalar. PyYAML keeps them by the character that the
    scalar begins with, and takes the first whose pattern matches.
    """
    plain: list[Any] = []
    for tag, pattern in resolvers:
        if tag == f"{TAG}int":
            plain.append((tag, INTEGER))
        elif tag in PLAIN:
            plain.append((tag, pattern))
    return plain


_Loader.yaml_implicit_resolvers = {
    character: _plain_resolvers(resolvers)
    for character, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# PyYAML takes 1e-3 for text, because YAML 1.1 wants a point in every number with an exponent.
_Loader.add_implicit_resolver(
    f"{TAG}float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)

# pydantic's types of errors -> what is allowed, for the author of a sweep. The braces are fields of
# the error's context.
ALLOWED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "keys with values",
    "dataclass_type": "keys with values",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
}


@dataclass(frozen=True)
class Document:
    """The content of a file, and for each key the line or the flag that it comes from."""

    content: dict[str, Any]
    sources: dict[Key, str]  # `sweep.yaml:7`, or the flag that set it; () is the file as a whole

    def error(self, key: Key, problem: str) -> BadInput:
        """Return the error for a problem at `key`, in one line: `SOURCE: KEY: PROBLEM`."""
        source = self._source_of(key)
        message = one_line(problem)
        if key:
            message = f"{dotted(key)}: {message}"
        return BadInput(f"{source}: {message}")

    def _source_of(self, key: Key) -> str:
        """Return the source of a key, or else of the nearest key above it that has one.

        A missing key has no line of its own; the error then points at the mapping that lacks it.
        """
        for length in range(len(key), 0, -1):
            if key[:length] in self.sources:
                return self.sources[key[:length]]
        return self.sources[()]

    def put(self, key: Key, value: Any, source: str) -> None:
        """Set the value at `key` as if the file had it, making the mappings above it.

        A value on the way that is no mapping, such as null, is replaced by one. From now on errors
        at this key, and at all keys below it, name `source`.
        """
        mapping: dict[Any, Any] = self.content
        for depth, part in enumerate(key[:-1], start=1):
            if not isinstance(mapping.get(part), dict):
                mapping[part] = {}
                self.sources[key[:depth]] = source
            mapping = mapping[part]
        mapping[key[-1]] = value
        for other in list(self.sources):
            if other[: len(key)] == key:
                del self.sources[other]
        self.sources[key] = source

    def validate(self, kind: Any, value: Any, key: Key = ()) -> Any:
        """Return `value`, which is at `key`, as a `kind`; raises BadInput at the first mistake.

        Unknown keys of dataclasses are errors, and no type is converted silently. pydantic reads
        JSON rather than Python objects, because only then does its strict mode take a list for a
        tuple and text for a path.
        """
        for path, number in _numbers_without_json(value):
            raise self.error(key + path, f"found {number}; allowed: a finite number")
        try:
            return TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
        except ValidationError as problems:
            error = problems.errors()[0]
        path = error["loc"]  # below `key`; ends in the unknown key, if that is the error
        if error["type"] == "unexpected_keyword_argument":
            allowed = [field.name for field in fields(_kind_at(kind, path[:-1]))]
            raise self.error(key + path, f"unknown key; {did_you_mean(path[-1], allowed)}")
        raise self.error(key + path, _explain(error))


def read_document(path: Path) -> Document:
    """Return the YAML mapping in a file; raises BadInput if it can't be read or is no UTF-8.

    A byte order mark, with which some editors begin a file, is skipped.
    """
    try:
        content = path.read_bytes()
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise BadInput(f"{path}: can't be read: {error.strerror}; allowed: a YAML file") from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadInput(
            f"{path}:{line}: found byte 0x{content[error.start]:02x}; allowed: UTF-8 text"
        ) from None
    return parse_document(text, str(path))


def parse_document(text: str, source: str) -> Document:
    """Return the YAML mapping in `text`.

    Raises BadInput for anything else, and for a key that is there twice. `source` is what errors
    call the text: the file's path. The text is parsed twice, because PyYAML drops the lines when it
    makes objects of nodes, and silently takes the last of equal keys.
    """
    sources: dict[Key, str] = {}
    try:
        root = yaml.compose(text, Loader=_Loader)
        if root is None:
            raise BadInput(f"{source}: found nothing; allowed: keys with values")
        if not isinstance(root, yaml.MappingNode):
            raise BadInput(f"{source}: found no mapping; allowed: keys with values")
        _note_sources(root, (), sources, source)
        content = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = source if mark is None else f"{source}:{mark.line + 1}"
        raise _yaml_error(line, error) from None
    except RecursionError:  # PyYAML builds such a loop, and `_note_sources` follows it
        raise BadInput(
            f"{source}: found an alias inside its own anchor, or endless nesting; allowed: neither"
        ) from None
    return Document(content, {**sources, (): source})


def _yaml_error(source: str, error: Exception) -> BadInput:
    """Return the error for text that is no YAML."""
    problem = getattr(error, "problem", None) or error
    return BadInput(f"{source}: no valid YAML: {one_line(problem)}")


def _note_sources(node: yaml.Node, key: Key, sources: dict[Key, str], source: str) -> None:
    """Note the line of every key below a node in `sources`; `source` is the file.

    Raises BadInput for a key that is no text, or given twice.
    """
    sources[key] = f"{source}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _note_sources(value, (*key, index), sources, source)
    if not isinstance(node, yaml.MappingNode):
        return
    names: set[str] = set()
    for name_node, value in node.value:
        line = f"{source}:{name_node.start_mark.line + 1}"
        name = _key_name(name_node, key, line)
        if name in names:
            raise BadInput(f"{line}: {dotted((*key, name))}: given twice; allowed: once")
        names.add(name)
        _note_sources(value, (*key, name), sources, source)
        sources[(*key, name)] = line


def _key_name(node: yaml.Node, key: Key, line: str) -> str:
    """Return the text of a key below `key`; raises BadInput for a key of another type.

    An unquoted `on:`, for instance, would be the key True. `line` is where the key stands.
    """
    name = "?"  # a key may also be a list or a mapping
    if isinstance(node, yaml.ScalarNode):
        name = str(node.value)
        if node.tag == f"{TAG}str":
            return name
    kind = node.tag.removeprefix(TAG)
    raise BadInput(
        f"{line}: {dotted((*key, name))}: found a key of YAML type {kind}; allowed: text (quote it)"
    )


def _numbers_without_json(value: Any, key: Key = ()) -> Iterator[tuple[Key, float]]:
    """Yield NaN and infinities in `value`, each with its key: JSON has no such numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        yield key, value
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _numbers_without_json(item, (*key, name))
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _numbers_without_json(item, (*key, index))


def dotted(key: Key) -> str:
    """Return `matrix.execution[1]` for ("matrix", "execution", 1)."""
    text = ""
    for part in key:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}"
    return text.removeprefix(".") or "the file"


def _kind_at(kind: Any, key: Key) -> Any:
    """Return the type at `key` below the type `kind`: of a field, or of the items of a collection.

    `Annotated` and unions are unwrapped; of a union, the first member but None counts.
    """
    while get_origin(kind) in (Annotated, Union, types.UnionType):
        members = [member for member in get_args(kind) if member is not type(None)]
        kind = members[0]
    if not key:
        return kind
    if is_dataclass(kind):
        hints = get_type_hints(cast(type, kind), include_extras=True)
        return _kind_at(hints[str(key[0])], key[1:])
    arguments = get_args(kind)
    if get_origin(kind) is dict:
        return _kind_at(arguments[1], key[1:])
    return _kind_at(arguments[0], key[1:])


def _explain(error: Any) -> str:
    """Return pydantic's error in our words: what was found and what is allowed.

    An error of a `__post_init__` (`value_error`) has both already. For types of errors that are not
    in ALLOWED, pydantic's message says what the input should be.
    """
    value, kind, context = error["input"], error["type"], error.get("ctx", {})
    if kind == "missing":
        return "missing; it has no default"
    if kind == "value_error":
        return str(context["error"])
    shown = json.dumps(value)
    if isinstance(value, bool) and kind != "bool_type":
        hint = "(on, off, yes and no are booleans too: put quotes around a word)"
        shown = f"the YAML boolean {shown} {hint}"
    if kind == "literal_error":
        # pydantic lists the choices as text: 'eager', 'compile' or 'none'.
        listed = context["expected"].replace(" or ", ",").split(",")
        choices = [choice.strip("' ") for choice in listed]
        return f"found {shown}; {did_you_mean(value, choices)}"
    if kind in ALLOWED:
        allowed = ALLOWED[kind].format_map(context)
    else:
        allowed = error["msg"].removeprefix("Input should be ")
    return f"found {shown}; allowed: {allowed}"


def choose(kind: Any, value: Mapping[str, Any]) -> Any:
    """Return the member of a union of dataclasses whose literal `source` is that of `value`.

    Without a `source` that is the first member; a type that is no union is its own only member.
    Raises ValueError for an unknown source. pydantic would try every member of the union and report
    the errors of all.
    """
    members = [member for member in get_args(kind) if is_dataclass(member)] or [kind]
    if "source" not in value:
        return members[0]
    by_source: dict[str, Any] = {}
    for member in members:
        source_type = get_type_hints(member).get("source", Literal[""])
        by_source[get_args(source_type)[0]] = member
    source = value["source"]
    if not isinstance(source, str) or source not in by_source:
        raise ValueError(f"found {source!r}; {did_you_mean(source, by_source)}")
    return by_source[source]


def parse_value(text: str, source: str) -> Any:
    """Return one YAML value from the command line, such as `3`, `eager` or `[1, 2]`.

    Raises BadInput, which begins with `source`, for text that is no YAML.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise _yaml_error(source, error) from None
