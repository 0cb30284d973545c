"""Checks what msgspec does not check of a decoded dataclass: unknown keys, and bounds of numbers.

Bounds are those of sweep files, `workloads.options.Between`, so that a number that no sweep file may
have is not accepted from a recorded sweep either. A type is looked at once; of its values, only the
parts that can have such problems are.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from harness.core.errors import did_you_mean
from workloads.options import Between

Number = Annotated[int, Between(0)]  # of anything that is counted, or counted from 0
Ordinal = Annotated[int, Between(1)]  # of anything that there is at least one of, or counted from 1
RankCount = Annotated[int, Between(0, 2**31 - 1)]  # len() takes no number beyond 2**63
Amount = Annotated[float, Between(0)]  # seconds, samples/s and the like
Share = Annotated[float, Between(0, 1)]
Duration = Annotated[float, Between(-1e9, 1e9)]  # seconds; a difference of clocks may be below 0
Moment = Annotated[float, Between(0, 2**37)]  # seconds since the epoch, up to the year 6325

# Raises ValueError for a value of a decoded JSON document that has the right types. The text is the
# value's key, for the error.
Check = Callable[[Any, str], None]


@cache
def check_of(kind: Any, *, ignore_unknown_keys: bool = False) -> Check | None:
    """Return the check of values of a type, None where msgspec has checked all there is."""
    if isinstance(kind, type) and is_dataclass(kind):
        return _dataclass_check(kind, ignore_unknown_keys)
    origin = get_origin(kind)
    if origin is Annotated:
        return _annotated_check(kind, ignore_unknown_keys)
    arguments = get_args(kind)
    checks = [check_of(argument, ignore_unknown_keys=ignore_unknown_keys) for argument in arguments]
    if not any(checks):
        return None
    if origin in (Union, types.UnionType):
        return _union_check(checks)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _tuple_check(checks)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping_check(checks[-1])
    return _list_check(checks[0])


def _annotated_check(kind: Any, ignore_unknown_keys: bool) -> Check | None:
    """Return the check of a type with annotations, of which the bounds of a number count."""
    inner, *annotations = get_args(kind)
    check = check_of(inner, ignore_unknown_keys=ignore_unknown_keys)
    for annotation in annotations:
        if isinstance(annotation, Between):
            check = _bounds_check(annotation, check)
    return check


def _dataclass_check(kind: type, ignore_unknown_keys: bool) -> Check:
    """Return the check of the keys of a dataclass and of their values."""
    hints = get_type_hints(kind, include_extras=True)
    names = frozenset(kind.__dataclass_fields__)  # type: ignore[attr-defined]
    checks: dict[str, Check] = {}
    for name in names:
        check = check_of(hints[name], ignore_unknown_keys=ignore_unknown_keys)
        if check is not None:
            checks[name] = check

    def check_keys(value: Any, key: str) -> None:
        if isinstance(value, kind):  # decoded, and so checked, before
            return
        prefix = f"{key}." if key else ""
        if not ignore_unknown_keys and not names.issuperset(value):
            unknown = next(name for name in value if name not in names)
            raise ValueError(f"{prefix}{unknown}: unknown key; {did_you_mean(unknown, names)}")
        for name, check in checks.items():
            if name in value:
                check(value[name], prefix + name)

    return check_keys


def _bounds_check(bounds: Between, inner: Check | None) -> Check:
    """Return the check of a number against its bounds, both of which are allowed."""
    low = float("-inf") if bounds.low is None else bounds.low
    high = float("inf") if bounds.high is None else bounds.high

    def check_bounds(value: Any, key: str) -> None:
        if isinstance(value, str):
            return  # the word of a union, as in `Count | Literal["auto"]`, which msgspec has checked
        if not low <= value <= high:
            raise ValueError(f"{key}: found {value}; allowed: {bounds}")
        if inner is not None:
            inner(value, key)

    return check_bounds


def _union_check(checks: Sequence[Check | None]) -> Check:
    """Return the check of a value of one of several types, as checks of the others can't apply.

    Of most unions the other member is None.
    """
    member_checks = list(filter(None, checks))

    def check_member(value: Any, key: str) -> None:
        if value is None:
            return
        for check in member_checks[:-1]:
            with suppress(ValueError):
                return check(value, key)
        member_checks[-1](value, key)

    return check_member


def _tuple_check(checks: Sequence[Check | None]) -> Check:
    """Return the check of a list that has a type for each position."""

    def check_positions(items: Any, key: str) -> None:
        for index, (item, check) in enumerate(zip(items, checks, strict=True)):
            if check is not None:
                check(item, f"{key}[{index}]")

    return check_positions


def _list_check(check: Check | None) -> Check | None:
    """Return the check of each item of a list."""
    if check is None:
        return None

    def check_items(items: Any, key: str) -> None:
        for index, item in enumerate(items):
            check(item, f"{key}[{index}]")

    return check_items


def _mapping_check(check: Check | None) -> Check | None:
    """Return the check of each value of a mapping."""
    if check is None:
        return None

    def check_values(mapping: Any, key: str) -> None:
        for name, value in mapping.items():
            check(value, f"{key}.{name}")

    return check_values
