"""Decodes only once what many records have in common: cells, environments and settings.

Ten thousand records of a sweep have a few environments and a trial of each cell for every seed. Their
decoded parts are shared, which saves most of the time and the memory of reading them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from harness.records.decode import decode_value
from harness.records.environment import Environment
from harness.records.record import RunSettings
from harness.spec.cell import Cell

# Where a record has such parts, and what they are.
PARTS: tuple[tuple[tuple[str, ...], type], ...] = (
    (("trial", "cell"), Cell),
    (("rank0", "environment"), Environment),
    (("settings",), RunSettings),
)
MAX_PARTS = 2**16  # that are kept; the oldest are dropped


def share_parts(content: dict[str, Any]) -> None:
    """Put decoded parts into the JSON of a record, those that equal ones were decoded to before.

    What can't be decoded is left as it is, for an error that says where it is in the record.
    """
    for path, kind in PARTS:
        holder = _holder(content, path)
        if holder is not None and isinstance(holder.get(path[-1]), dict):
            holder[path[-1]] = share(kind, holder[path[-1]])


def without_parts(content: dict[str, Any]) -> tuple[dict[str, Any], tuple[bytes | None, ...]]:
    """Return the JSON of a record without its parts, and these as MessagePack, None if one lacks.

    `shared_part` decodes them. Raises OverflowError for whole numbers beyond 64 bits.
    """
    remaining = dict(content)
    parts: list[bytes | None] = []
    for path, _ in PARTS:
        part = None
        holder: Any = remaining
        for key in path[:-1]:
            if isinstance(holder.get(key), dict):
                holder[key] = dict(holder[key])
            holder = holder.get(key)
        if isinstance(holder, dict) and isinstance(holder.get(path[-1]), dict):
            part = msgspec.msgpack.encode(holder.pop(path[-1]))
        parts.append(part)
    return remaining, tuple(parts)


def shared_part(kind: type, encoded: bytes | None) -> Any:
    """Return a part that `without_parts` has taken out, the same object for equal ones."""
    return None if encoded is None else _decoded(kind, encoded)


def _holder(content: dict[str, Any], path: Sequence[str]) -> dict[str, Any] | None:
    """Return the JSON object that has the last key of a path, None where there is none."""
    holder: Any = content
    for key in path[:-1]:
        holder = holder.get(key) if isinstance(holder, dict) else None
    return holder if isinstance(holder, dict) else None


def share(kind: type, value: Any) -> Any:
    """Return what a JSON value is decoded to, the same object for equal ones.

    Returns the value itself if it can't be decoded.
    """
    try:
        return _decoded(kind, msgspec.msgpack.encode(value))
    except (ValueError, OverflowError):  # MessagePack has no whole numbers beyond 64 bits
        return value


@lru_cache(maxsize=MAX_PARTS)
def _decoded(kind: type, encoded: bytes) -> Any:
    """Return what a value is decoded to; raises ValueError for one that can't be."""
    return decode_value(kind, msgspec.msgpack.decode(encoded))
