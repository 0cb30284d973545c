"""Keeps what was computed of an object, for as long as others may ask for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def cached_by_identity(limit: int) -> Callable[[Callable[[T], R]], Callable[[T], R]]:
    """Return a decorator that keeps the results of a function for the last `limit` objects.

    It is for objects that never change and can't be hashed, such as dataclasses with mappings, of
    which one is shared by many. The objects are kept too, so that no other one gets their identity.
    """

    def decorate(function: Callable[[T], R]) -> Callable[[T], R]:
        results: dict[int, tuple[T, R]] = {}

        @wraps(function)
        def cached(argument: T) -> R:
            entry = results.get(id(argument))
            if entry is not None:
                return entry[1]
            if len(results) == limit:
                del results[next(iter(results))]
            result = function(argument)
            results[id(argument)] = (argument, result)
            return result

        return cached

    return decorate
