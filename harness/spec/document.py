"""YAML files, read once and strictly: every mistake is one line with file, line, key, found and allowed."""

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

Key = tuple[str | int, ...]


TAG = "tag:yaml.org,2002:"
INTEGER = re.compile(r"[-+]?(0b[01_]+|0[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$")
PLAIN = {TAG + kind for kind in ("null", "bool", "int", "float", "str", "seq", "map")}


class _Loader(yaml.SafeLoader):
    """What JSON can say and no more: a date stays text. As in YAML 1.2, 1e-3 is a number and 1:30:00 is not."""


_Loader.yaml_constructors = {
    tag: construct
    for tag, construct in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag in PLAIN
}
_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, INTEGER if tag == f"{TAG}int" else pattern)
        for tag, pattern in resolvers
        if tag in PLAIN
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    f"{TAG}float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)

ALLOWED = {  # pydantic's error types in the words of a sweep's author
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
    """The content of a file, and for each key the place that it comes from."""

    content: dict[str, Any]
    sources: dict[Key, str]  # `sweep.yaml:7`, or the flag that set it; () is the file as a whole

    def error(self, key: Key, problem: str) -> BadInput:
        """One line: `PLACE: KEY: PROBLEM`."""
        place = next(
            self.sources[key[:n]] for n in range(len(key), -1, -1) if key[:n] in self.sources
        )
        return BadInput(
            f"{place}: {dotted(key)}: {one_line(problem)}"
            if key
            else f"{place}: {one_line(problem)}"
        )

    def put(self, key: Key, value: Any, place: str) -> None:
        """Set what stands at `key`, as if the file had said so; mappings on the way are made."""
        below: dict[Any, Any] = self.content
        for depth, part in enumerate(key[:-1], start=1):
            if not isinstance(below.get(part), dict):
                below[part] = {}
                self.sources[key[:depth]] = place
            below = below[part]
        below[key[-1]] = value
        for old in [known for known in self.sources if known[: len(key)] == key]:
            del self.sources[old]
        self.sources[key] = place

    def validate(self, kind: Any, value: Any, key: Key = ()) -> Any:
        """`value`, found at `key`, as a `kind`: dataclasses with unknown keys refused, no type converted silently."""
        for place, found in _numberless(value):
            raise self.error(key + place, f"found {found}; allowed: a finite number")
        try:
            return TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
        except ValidationError as problems:
            first = problems.errors()[0]
            place = first["loc"]
            if first["type"] == "unexpected_keyword_argument":
                allowed = [f.name for f in fields(_kind_at(kind, place[:-1]))]
                raise self.error(
                    key + place, f"unknown key; {did_you_mean(place[-1], allowed)}"
                ) from None
            raise self.error(key + place, _explain(first)) from None


def read_document(path: Path) -> Document:
    """The YAML mapping in `path`; raises BadInput."""
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
    """The YAML mapping in `text`; raises BadInput for anything else, and for keys given twice."""
    places: dict[Key, str] = {}
    try:
        root = yaml.compose(text, Loader=_Loader)
        if not isinstance(root, yaml.MappingNode):
            raise BadInput(
                f"{source}: found {'nothing' if root is None else 'no mapping'}; allowed: keys with values"
            )
        _note_places(root, (), places, source)
        content = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = source if mark is None else f"{source}:{mark.line + 1}"
        raise BadInput(
            f"{place}: no valid YAML: {one_line(getattr(error, 'problem', None) or error)}"
        ) from None
    except RecursionError:
        raise BadInput(
            f"{source}: found an alias inside its own anchor, or endless nesting; allowed: neither"
        ) from None
    return Document(content, places | {(): source})


def _note_places(node: yaml.Node, key: Key, places: dict[Key, str], source: str) -> None:
    places[key] = f"{source}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for name, value in node.value:
            line = name.start_mark.line + 1
            if not isinstance(name, yaml.ScalarNode) or name.tag != f"{TAG}str":
                where = dotted((*key, name.value if isinstance(name, yaml.ScalarNode) else "?"))
                kind = name.tag.removeprefix(TAG)
                raise BadInput(
                    f"{source}:{line}: {where}: found a key of YAML type {kind}; allowed: text (quote it)"
                )
            if name.value in seen:
                raise BadInput(
                    f"{source}:{line}: {dotted((*key, name.value))}: given twice; allowed: once"
                )
            seen.add(name.value)
            _note_places(value, (*key, name.value), places, source)
            places[(*key, name.value)] = f"{source}:{line}"
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _note_places(value, (*key, index), places, source)


def _numberless(value: Any, key: Key = ()) -> Iterator[tuple[Key, float]]:
    """Where NaN and infinities stand in `value`: JSON has no such numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        yield key, value
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for part, item in items:
        yield from _numberless(item, (*key, part))


def dotted(key: Key) -> str:
    """`matrix.execution[1]` for ("matrix", "execution", 1)."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)
    return text.removeprefix(".") or "the file"


def _kind_at(kind: Any, key: Key) -> Any:
    """The type that stands at `key` below `kind`."""
    while get_origin(kind) in (Annotated, Union, types.UnionType):
        kind = next(member for member in get_args(kind) if member is not type(None))
    if not key:
        return kind
    if is_dataclass(kind):
        return _kind_at(get_type_hints(cast(type, kind), include_extras=True)[str(key[0])], key[1:])
    return _kind_at(get_args(kind)[-1 if get_origin(kind) is dict else 0], key[1:])


def _explain(error: Any) -> str:
    """pydantic's error in our words: what was found and what is allowed."""
    found, kind, context = error["input"], error["type"], error.get("ctx", {})
    if kind == "missing":
        return "missing; it has no default"
    if kind == "value_error":
        return str(context["error"])
    shown = json.dumps(found)
    if isinstance(found, bool) and kind != "bool_type":
        shown = f"the YAML boolean {shown} (on, off, yes and no are booleans too: put quotes around a word)"
    if kind == "literal_error":
        words = [word.strip("' ") for word in context["expected"].replace(" or ", ",").split(",")]
        return f"found {shown}; {did_you_mean(found, words)}"
    allowed = ALLOWED.get(kind, "").format_map(context) or error["msg"].removeprefix(
        "Input should be "
    )
    return f"found {shown}; allowed: {allowed}"


def choose(kind: Any, value: Mapping[str, Any]) -> Any:
    """The member of a union of dataclasses whose literal `source` is the value's, or the first; unions only."""
    members = [member for member in get_args(kind) if is_dataclass(member)] or [kind]
    by_source = {
        get_args(get_type_hints(member).get("source", Literal[""]))[0]: member for member in members
    }
    if "source" not in value:
        return members[0]
    try:
        return by_source[value["source"]]
    except (KeyError, TypeError):
        raise ValueError(
            f"found {value['source']!r}; {did_you_mean(value['source'], by_source)}"
        ) from None


def parse_value(text: str, place: str) -> Any:
    """One YAML value from the command line, `3`, `eager` or `[1, 2]`; raises BadInput."""
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise BadInput(
            f"{place}: no valid YAML: {one_line(getattr(error, 'problem', None) or error)}"
        ) from None
