"""Bounds of numbers: of what the harness measures and counts, and of what sweep files set.

A record's numbers have the types below, whose bounds msgspec enforces. Numbers that a sweep file sets
have `workloads.options.Between`, which pydantic enforces there and `check_bounds` in the files that
the harness wrote of them.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from msgspec import Meta

from workloads.options import Between

Number = Annotated[int, Meta(ge=0)]  # of anything that is counted, or counted from 0
Ordinal = Annotated[int, Meta(ge=1)]  # of anything that there is at least one of, or counted from 1
RankCount = Annotated[int, Meta(ge=0, le=2**31 - 1)]  # len() takes no number beyond 2**63
Amount = Annotated[float, Meta(ge=0)]  # seconds, samples/s and the like
Share = Annotated[float, Meta(ge=0, le=1)]
Duration = Annotated[float, Meta(ge=-1e9, le=1e9)]  # seconds; a difference of clocks may be below 0
Moment = Annotated[float, Meta(ge=0, le=2**37)]  # seconds since the epoch, up to the year 6325


def check_bounds(kind: Any, value: Any, key: str = "") -> None:
    """Raise ValueError if a number in a decoded value is outside the `Between` of its type.

    `kind` is the type of the value, and `key` its place for the error, such as `.axes.lr`.
    """
    if is_dataclass(value):
        numbers, nested = _bounded_fields(type(value))  # type: ignore[arg-type]  # is hashable
        for name, bounds in numbers.items():
            _check_number(bounds, getattr(value, name), f"{key}.{name}")
        for name, hint in nested.items():
            check_bounds(hint, getattr(value, name), f"{key}.{name}")
        return
    arguments = get_args(kind)
    number_bounds = _bounds_of(kind)
    if number_bounds is not None:
        _check_number(number_bounds, value, key)
    elif _is_union(kind):
        for member in arguments:
            check_bounds(member, value, key)
    elif arguments and isinstance(value, Mapping):
        for name, item in value.items():
            check_bounds(arguments[-1], item, f"{key}.{name}")
    elif arguments and isinstance(value, list | tuple):
        is_pair = get_origin(kind) is tuple and arguments[-1] is not Ellipsis
        for index, item in enumerate(value):
            check_bounds(arguments[index if is_pair else 0], item, f"{key}[{index}]")


def _check_number(bounds: Between, value: Any, key: str) -> None:
    """Raise ValueError for a number outside of bounds; a word or None in its place never is."""
    if not isinstance(value, (int, float)):
        return
    is_low = bounds.low is not None and value < bounds.low
    if is_low or (bounds.high is not None and value > bounds.high):
        raise ValueError(f"{key.lstrip('.')}: found {value}; allowed: {bounds}")


@cache
def _bounded_fields(kind: Any) -> tuple[dict[str, Between], dict[str, Any]]:
    """Return the bounds of a dataclass's numbers, and the types of other fields with bounds in them."""
    numbers, nested = {}, {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        bounds = _bounds_of(hint)
        if bounds is not None:
            numbers[name] = bounds
        elif _has_bounds(hint):
            nested[name] = hint
    return numbers, nested


def _bounds_of(kind: Any) -> Between | None:
    """Return the bounds of a number, or of a number that something else may stand for."""
    members = get_args(kind) if _is_union(kind) else (kind,)
    for member in members:
        if get_origin(member) is Annotated:
            for annotation in get_args(member)[1:]:
                if isinstance(annotation, Between):
                    return annotation
    return None


def _is_union(kind: Any) -> bool:
    """Return whether a type is a union: `A | B` or `Optional[A]`."""
    return get_origin(kind) in (Union, types.UnionType)


def _has_bounds(kind: Any) -> bool:
    """Return whether any part of a type has a `Between`."""
    if isinstance(kind, type) and is_dataclass(kind):
        return any(_bounded_fields(kind))
    return any(isinstance(part, Between) or _has_bounds(part) for part in get_args(kind))
