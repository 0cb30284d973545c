"""Turns JSON values into dataclasses, strictly, by msgspec: files of users as well as our own.

Types must match exactly: text is never taken for a number, nor 2.0 for a whole number. The only
widening is that a whole number may stand where a fraction is expected, because JSON writers drop the
`.0`. Bounds are msgspec's `Meta` in the annotation of a number.

msgspec stops at the first mistake, and does not say which key of a mapping has it. So a value that
it refuses is searched for the innermost part that it refuses, whose type says what is allowed.
"""

from __future__ import annotations

import json
import math
import re
import threading
import types
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from harness.core.errors import did_you_mean, one_line

T = TypeVar("T")

# The way to a value: keys of mappings and indexes of lists; () is the value as a whole.
Key = tuple[str | int, ...]

LONGEST_VALUE = 60  # characters of a value that an error shows
# What errors call the types of values.
TYPE_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "text",
    type(None): "null",
}
# Text without line breaks and other control characters: in a job script, one would begin a line of shell.
Line = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+\Z",
        description="one line of text that can be seen",
    ),
]
LIST, MAPPING = "a list", "keys with values"
BOUND = re.compile(r"(>=|<=) (\S+)")  # in msgspec's errors, as in "Expected `int` >= 1"
UNIONS = (Union, types.UnionType)  # `Optional[A]` and `A | None`

_prepared: set[Any] = set()  # the kinds whose types msgspec knows
_preparing = threading.Lock()


class InvalidValue(ValueError):
    """A value that its type does not allow: where it is, what was found and what is allowed."""

    def __init__(self, key: Key, problem: str) -> None:
        """Make the error of the value at `key`; as text it is `KEY: PROBLEM`."""
        super().__init__(f"{dotted(key)}: {problem}" if key else problem)
        self.key = key
        self.problem = problem


def decode_value(kind: Any, value: Any, *, refuse_unknown: bool = False, at: Key = ()) -> Any:
    """Return a JSON value, as `json.loads` gives it, as a `kind`; raises InvalidValue.

    `kind` is a type that JSON can hold: dataclasses (nested ones too), sequences, mappings,
    literals, optional values and paths. It may also be a union of dataclasses, which their literal
    `source` tells apart. Keys that are no field are ignored, or refused with `refuse_unknown`: one
    that is ignored in what somebody asked for would be a silently other result. Errors name the way to
    the wrong part from `at` on, which is where the value itself is.
    """
    if isinstance(value, Mapping):
        kind = choose(kind, value)
    prepare(kind)
    if refuse_unknown:
        _check(kind, value, refuse_unknown, at)
    try:
        return _convert(value, kind)
    except msgspec.ValidationError as problem:
        _check(kind, value, refuse_unknown, at)
        raise InvalidValue(at, str(problem)) from None


def decode_json(kind: type[T], text: str | bytes) -> T:
    """Return JSON in a text as a `kind`, as `decode_value` does, and sooner.

    Raises msgspec.DecodeError or ValueError, which may not say what is wrong: `decode_value` does.
    """
    prepare(kind)
    return msgspec.json.decode(text, type=kind, strict=True, dec_hook=_decode_custom)


def prepare(kind: Any) -> None:
    """Let msgspec look at the types of a kind's fields, in one thread at a time.

    Raises InvalidValue for a type that it does not support, such as one in a user's class. Without
    the lock, it shows a dataclass to other threads before it knows all of its fields; the process
    then ends with a segmentation fault. Looking at a large dataclass takes some 10 ms.
    """
    if kind in _prepared:
        return
    with _preparing:
        try:
            msgspec.json.Decoder(kind, dec_hook=_decode_custom)
        # NameError comes from a name that only type checkers import.
        except (NameError, TypeError) as error:
            name = getattr(kind, "__qualname__", kind)
            problem = f"{name}: found a type that can't be read: {error}; allowed: types of YAML"
            raise InvalidValue((), problem) from None
        _prepared.add(kind)


def _convert(value: Any, kind: Any) -> Any:
    """Return a value as a `kind`; raises msgspec.ValidationError."""
    return msgspec.convert(value, kind, strict=True, dec_hook=_decode_custom)


def _decode_custom(kind: type, value: Any) -> Any:
    """Return a value of a type that msgspec does not know: a path, or an object that is one already."""
    if kind is Path and isinstance(value, str):
        return Path(value)
    if isinstance(value, kind):
        return value
    raise ValueError(f"found {shown(value)}; allowed: {_name_of(kind)}")


def _check(kind: Any, value: Any, refuse_unknown: bool, key: Key) -> None:
    """Raise InvalidValue for the first part of a value, at `key`, that is refused."""
    members = members_of(kind)
    for member in members:
        if is_dataclass(member) and isinstance(value, Mapping):
            _check_keys(member, value, refuse_unknown, key)
        for name, part_kind, part in _parts(member, value):
            _check(part_kind, part, refuse_unknown, (*key, name))
    try:
        _convert(value, kind)
    except msgspec.ValidationError as refusal:
        raise InvalidValue(key, _problem(kind, members, value, str(refusal))) from None


def _check_keys(kind: Any, value: Mapping[str, Any], refuse_unknown: bool, key: Key) -> None:
    """Raise InvalidValue for a key that is no field of a dataclass, or that is missing.

    A misspelled key is missing too; that it is there and unknown says more.
    """
    names = [declared.name for declared in fields(kind)]
    for name in value if refuse_unknown else ():
        if name not in names:
            raise InvalidValue((*key, name), f"unknown key; {did_you_mean(name, names)}")
    for declared in fields(kind):
        has_default = (declared.default, declared.default_factory) != (MISSING, MISSING)
        if declared.name not in value and not has_default:
            raise InvalidValue((*key, declared.name), "missing; it has no default")


def members_of(kind: Any) -> list[Any]:
    """Return the types that a value may have: those of a union, without annotations."""
    if get_origin(kind) is Annotated:
        return members_of(get_args(kind)[0])
    if get_origin(kind) not in UNIONS:
        return [kind]
    members: list[Any] = []
    for argument in get_args(kind):
        members += members_of(argument)
    return members


def _parts(kind: Any, value: Any) -> Iterator[tuple[str | int, Any, Any]]:
    """Yield the parts of a value of a type that has some, each with its key and its type."""
    arguments = get_args(kind)
    if isinstance(value, Mapping) and is_dataclass(kind):
        for name, part_kind in _hints(kind).items():  # type: ignore[arg-type]  # is hashable
            if name in value:
                yield name, part_kind, value[name]
    elif isinstance(value, Mapping) and arguments and _name_of(kind) == MAPPING:
        for name, part in value.items():
            yield name, arguments[0], name
            yield name, arguments[1], part
    elif isinstance(value, list | tuple) and arguments and _name_of(kind) == LIST:
        is_fixed = get_origin(kind) is tuple and arguments[-1] is not Ellipsis
        kinds = arguments if is_fixed else repeat(arguments[0])
        for index, (part_kind, part) in enumerate(zip(kinds, value, strict=False)):
            yield index, part_kind, part


@lru_cache(maxsize=256)  # with a bound, since the classes of users' workloads may come and go
def _hints(kind: Any) -> dict[str, Any]:
    """Return the annotated types of a dataclass's fields."""
    return get_type_hints(kind, include_extras=True)


def _name_of(kind: Any) -> str:
    """Return what errors call a type."""
    origin = get_origin(kind) or kind
    if kind in TYPE_NAMES or not isinstance(origin, type):  # such as Literal
        return TYPE_NAMES.get(kind, str(kind))
    if is_dataclass(origin) or issubclass(origin, Mapping):
        return MAPPING
    return LIST if issubclass(origin, Collection) else f"a {origin.__name__}"


def _problem(kind: Any, members: list[Any], value: Any, refusal: str) -> str:
    """Return what is wrong with a value whose parts all fit; `refusal` is msgspec's error."""
    bound = BOUND.search(refusal)
    if bound is not None:
        words = "at least" if bound[1] == ">=" else "at most"
        return f"found {shown(value)}; allowed: {words} {float(bound[2]):.12g}"
    if "matching regex" in refusal:
        description = next(bounds.description for bounds in bounds_in(kind) if bounds.pattern)
        return f"found {shown(value)}; allowed: {description}"
    choices: list[str] = []
    names: list[str] = []
    for member in members:
        if get_origin(member) is Literal:
            choices += map(str, get_args(member))
        else:
            names.append(_name_of(member))
    if choices and (isinstance(value, str) or not names):
        return f"found {shown(value)}; {did_you_mean(value, [*choices, *names])}"
    if isinstance(value, Mapping) and MAPPING in names:
        return refusal  # of a `__post_init__`, which says what was found and what is allowed
    if TYPE_NAMES.get(type(value), LIST) in names and not isinstance(value, Mapping):
        return f"found {shown(value)}: {refusal}"  # such as the length of a tuple
    return f"found {shown(value)}; allowed: {' or '.join(names + choices)}"


def bounds_in(kind: Any) -> Iterator[msgspec.Meta]:
    """Yield the bounds in a type, such as those of `Annotated[int, Meta(ge=1)] | None`."""
    for argument in get_args(kind):
        if isinstance(argument, msgspec.Meta):
            yield argument
        yield from bounds_in(argument)


def choose(kind: Any, value: Mapping[str, Any]) -> Any:
    """Return the member of a union of dataclasses whose literal `source` is that of `value`.

    Without a `source` that is the first member; any other type is its own. Raises InvalidValue for
    an unknown source. msgspec takes no unions of several dataclasses.
    """
    by_source = members_by_source(kind)
    if len(by_source) < 2:
        return kind
    source = value.get("source", next(iter(by_source)))
    if source not in list(by_source):  # in a list, as it may be of any type
        problem = f"found {source!r}; {did_you_mean(source, by_source)}"
        raise InvalidValue(("source",), problem)
    return by_source[source]


@lru_cache(maxsize=256)  # as `_hints`
def members_by_source(kind: Any) -> Mapping[str, Any]:
    """Return the dataclasses of a union by their literal `source`, in their order.

    A single dataclass is its own only member; the source of one that declares none is "".
    """
    by_source: dict[str, Any] = {}
    for member in members_of(kind):
        if is_dataclass(member):
            words = get_args(_hints(member).get("source"))  # type: ignore[arg-type]  # is hashable
            by_source[words[0] if words else ""] = member
    return by_source


def finite(value: float | None) -> float | None:
    """Return a number, None for NaN and infinity, which JSON can't hold."""
    return value if value is not None and math.isfinite(value) else None


def shown(value: Any) -> str:
    """Return a value as JSON, cut where it is long."""
    return one_line(json.dumps(value, default=str), LONGEST_VALUE)


def dotted(key: Key) -> str:
    """Return `matrix.execution[1]` for ("matrix", "execution", 1)."""
    text = ""
    for part in key:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}"
    return text.removeprefix(".") or "the file"
