"""Decodes the fields of a dataclass when they are first read.

A command looks at a few numbers of each of ten thousand records. To make the objects of all other
numbers would take most of its time. So a record whose header was checked before is an object of a
subclass of `Record`, whose fields are decoded one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Any, TypeVar, cast, get_type_hints

import msgspec

from harness.records.decode import decode_custom, prepare_types

T = TypeVar("T")

# A field as MessagePack, or what returns its value.
Content = msgspec.Raw | Callable[[], Any]
CONTENTS = "_contents"  # the attribute that has the fields by name, until they are read


class _DeferredField:
    """A field that is decoded when it is first read.

    Like `functools.cached_property`, it keeps the value among the object's attributes, which Python
    looks up before it asks this class.
    """

    def __init__(self, field: Field[Any], kind: Any) -> None:
        self.field = field
        self.name = field.name
        prepare_types(kind)
        self.decode = msgspec.msgpack.Decoder(kind, strict=True, dec_hook=decode_custom).decode

    def __get__(self, instance: object | None, owner: type) -> Any:
        if instance is None:
            return self
        attributes = instance.__dict__
        content = attributes[CONTENTS].get(self.name)
        if content is None:
            value = self._default()
        elif isinstance(content, msgspec.Raw):
            value = self.decode(content)
        else:
            value = content()
        attributes[self.name] = value
        return value

    def _default(self) -> Any:
        """Return the value of a field that an earlier minor schema did not have."""
        if self.field.default_factory is not MISSING:
            return self.field.default_factory()
        return self.field.default


def defer(kind: type[T], contents: Mapping[str, Content]) -> T:
    """Return a `kind`, a frozen dataclass, whose fields are decoded when they are first read.

    `contents` must have passed the checks of `decode_value` before: an error would come late, and
    without the name of its file. It equals an object that was decoded at once.
    """
    deferred: Any = object.__new__(_deferred_class(cast(Hashable, kind)))
    vars(deferred)[CONTENTS] = contents
    return cast(T, deferred)


@cache
def _deferred_class(kind: Any) -> type:
    """Return a subclass with the same name, all fields of which are deferred."""
    hints = get_type_hints(kind, include_extras=True)
    namespace: dict[str, Any] = {"__eq__": _is_equal, "__hash__": None}
    for field in fields(kind):
        namespace[field.name] = _DeferredField(field, hints[field.name])
    return type(kind.__name__, (kind,), namespace)


def _is_equal(self: Any, other: object) -> Any:
    """Return whether two objects have equal fields; a dataclass compares those of one class only."""
    kind = type(self).__mro__[1]
    if not isinstance(other, kind):
        return NotImplemented
    return all(getattr(self, field.name) == getattr(other, field.name) for field in fields(self))
