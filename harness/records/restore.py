"""Frozen dataclasses from the JSON that they left: for workers and records, which need no validating library."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from harness.core.errors import BadInput, did_you_mean, one_line

T = TypeVar("T")


def restore_file(
    kind: type[T], path: Path, what: str, schema: int | None = None, remedy: str = ""
) -> T:
    """The `what` that lies at `path`, as a `kind`; raises BadInput, with the remedy, if it is none, not whole or of
    another schema."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BadInput(
            f"{path}: can't be read as a {what}: {one_line(error)}{remedy and f'; {remedy}'}"
        ) from None
    return restore_text(kind, text, str(path), what, schema, remedy)


def restore_text(
    kind: type[T], text: str, place: str, what: str, schema: int | None = None, remedy: str = ""
) -> T:
    """The same of a text that comes from `place`."""
    remedy = remedy and f"; {remedy}"
    try:
        content = json.loads(text)
    except ValueError as error:
        raise BadInput(f"{place}: can't be read as a {what}: {one_line(error)}{remedy}") from None
    found = content.get("schema") if isinstance(content, dict) else None
    if schema is not None and found != schema:
        raise BadInput(
            f"{place}: schema: found {found!r}; {did_you_mean(found, [str(schema)])}{remedy}"
        )
    try:
        return restore(kind, content)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise BadInput(f"{place}: no whole {what}: {one_line(error)}{remedy}") from None


def restore(kind: type[T], value: Any) -> T:
    """`value`, as `json.loads` gave it, as a `kind`: nested dataclasses, unions, tuples, lists, mappings, paths.

    Raises TypeError or ValueError where the JSON does not fit. Members of a union of dataclasses are told apart by
    their literal fields.
    """
    return cast(T, _restore(kind, value))


def _restore(kind: Any, value: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _restore(arguments[0], value)
    if origin in (Union, types.UnionType):
        return None if value is None else _restore(_member(arguments, value), value)
    if origin in (Mapping, dict):
        return {key: _restore(arguments[1], item) for key, item in value.items()}
    if origin in (Sequence, list):
        return [_restore(arguments[0], item) for item in value]
    if origin is tuple:
        return tuple(_restore(arguments[0], item) for item in value)
    if kind is Path:
        return Path(value)
    if kind is float:
        if isinstance(value, bool):
            raise TypeError(f"a number can't be read from {value}")
        return float(value)
    if isinstance(kind, type) and is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise TypeError(f"{kind.__name__} can't be read from {type(value).__name__}")
        hints = _hints(kind)
        known = {name: item for name, item in value.items() if name in hints}
        if len(known) != len(value):
            raise ValueError(f"{kind.__name__} has no field {sorted(set(value) - set(known))[0]!r}")
        return kind(**{name: _restore(hints[name], item) for name, item in known.items()})
    return value


def _member(members: tuple[Any, ...], value: Any) -> Any:
    """The member of a union that `value` is: the first whose literal fields hold the values found."""
    candidates = [member for member in members if member is not type(None)]
    if not isinstance(value, Mapping):
        return candidates[0]
    for member in candidates:
        if all(
            value.get(name, allowed[0]) in allowed for name, allowed in _literals(member).items()
        ):
            return member
    raise ValueError(f"no {' or '.join(member.__name__ for member in candidates)} in {value!r}")


@lru_cache
def _literals(kind: type) -> dict[str, tuple[Any, ...]]:
    """What each of its literal fields may be."""
    return {
        name: get_args(hint)
        for name, hint in get_type_hints(kind).items()
        if get_origin(hint) is Literal
    }


@lru_cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)
