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

# Raises Problem for a value of a decoded JSON document that has the right types.
Check = Callable[[Any], None]


class Problem(ValueError):
    """Says what is wrong with a value, and where it is.

    The place is put together on the way up: to name each of the hundred values of ten thousand
    records on the way down takes longer than to check them.
    """

    def __init__(self, key: str, text: str) -> None:
        """Take the value's key within what was checked, empty for that itself, and the problem."""
        super().__init__(f"{key}: {text}")
        self.key = key
        self.text = text

    def within(self, part: str) -> Problem:
        """Return the same problem, as seen from what has the checked value as its part."""
        dot = "." if self.key and not self.key.startswith("[") else ""
        return Problem(f"{part}{dot}{self.key}", self.text)


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
    names = frozenset(kind.__dataclass_fields__)  # type: ignore[attr-defined]
    numbers, checks = _field_checks(kind, ignore_unknown_keys)

    def check_keys(value: Any) -> None:
        if isinstance(value, kind):  # decoded, and so checked, before
            return
        if not ignore_unknown_keys and not names.issuperset(value):
            unknown = next(name for name in value if name not in names)
            raise Problem(unknown, f"unknown key; {did_you_mean(unknown, names)}")
        for name, (low, high, bounds) in numbers.items():
            number = value.get(name)
            if number is not None and not low <= number <= high:
                raise Problem(name, f"found {number}; allowed: {bounds}")
        for name, check in checks.items():
            if name in value:
                try:
                    check(value[name])
                except Problem as problem:
                    raise problem.within(name) from None

    return check_keys


def _field_checks(
    kind: type, ignore_unknown_keys: bool
) -> tuple[dict[str, tuple[float, float, Between]], dict[str, Check]]:
    """Return the bounds of those fields that are numbers, most of them, and the checks of others."""
    numbers: dict[str, tuple[float, float, Between]] = {}
    checks: dict[str, Check] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        bounds = _bounds_of_number(hint)
        if bounds is not None:
            numbers[name] = (*_ends(bounds), bounds)
            continue
        check = check_of(hint, ignore_unknown_keys=ignore_unknown_keys)
        if check is not None:
            checks[name] = check
    return numbers, checks


def _bounds_of_number(kind: Any) -> Between | None:
    """Return the bounds of a type that is a number with bounds, or that or None; else None."""
    members = [member for member in get_args(kind) if member is not types.NoneType]
    if get_origin(kind) in (Union, types.UnionType) and len(members) == 1:
        return _bounds_of_number(members[0])
    if get_origin(kind) is not Annotated:
        return None
    inner, *annotations = get_args(kind)
    bounds = [annotation for annotation in annotations if isinstance(annotation, Between)]
    return bounds[0] if inner in (int, float) and len(bounds) == 1 else None


def _ends(bounds: Between) -> tuple[float, float]:
    """Return the lowest and the highest number that is allowed."""
    low = float("-inf") if bounds.low is None else bounds.low
    high = float("inf") if bounds.high is None else bounds.high
    return low, high


def _bounds_check(bounds: Between, inner: Check | None) -> Check:
    """Return the check of a number against its bounds, both of which are allowed."""
    low, high = _ends(bounds)

    def check_bounds(value: Any) -> None:
        if isinstance(value, str):
            return  # the word of a union, as in `Count | Literal["auto"]`, which msgspec has checked
        if not low <= value <= high:
            raise Problem("", f"found {value}; allowed: {bounds}")
        if inner is not None:
            inner(value)

    return check_bounds


def _union_check(checks: Sequence[Check | None]) -> Check:
    """Return the check of a value of one of several types, as checks of the others can't apply.

    Of most unions the other member is None.
    """
    member_checks = list(filter(None, checks))

    def check_member(value: Any) -> None:
        if value is None:
            return
        for check in member_checks[:-1]:
            with suppress(Problem):
                return check(value)
        member_checks[-1](value)

    return check_member


def _tuple_check(checks: Sequence[Check | None]) -> Check:
    """Return the check of a list that has a type for each position."""

    def check_positions(items: Any) -> None:
        for index, (item, check) in enumerate(zip(items, checks, strict=True)):
            if check is None:
                continue
            try:
                check(item)
            except Problem as problem:
                raise problem.within(f"[{index}]") from None

    return check_positions


def _list_check(check: Check | None) -> Check | None:
    """Return the check of each item of a list."""
    if check is None:
        return None

    def check_items(items: Any) -> None:
        for index, item in enumerate(items):
            try:
                check(item)
            except Problem as problem:
                raise problem.within(f"[{index}]") from None

    return check_items


def _mapping_check(check: Check | None) -> Check | None:
    """Return the check of each value of a mapping."""
    if check is None:
        return None

    def check_values(mapping: Any) -> None:
        for name, value in mapping.items():
            try:
                check(value)
            except Problem as problem:
                raise problem.within(name) from None

    return check_values
