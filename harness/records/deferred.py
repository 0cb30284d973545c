"""Makes objects of a dataclass of which some fields are decoded when they are first read.

A command looks at a few numbers of each of ten thousand records. To make the objects of all other
numbers would take most of its time. So a record whose header was checked before is an object of a
subclass of `Record`: its numbers and texts are decoded at once, in one call, and what is large when
it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, fields
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar, cast, get_type_hints

import msgspec

from harness.records.decode import decode_custom, prepare_types

T = TypeVar("T")

# A field as MessagePack, or what returns its value.
Content = msgspec.Raw | Callable[[], Any]
CONTENTS = "_contents"  # the attribute that has the fields by name, until they are read


class DecodedFields(NamedTuple):
    """The fields of an object, by name."""

    values: dict[str, Any]  # of those that are decoded
    later: dict[str, msgspec.Raw]  # the others


class Deferred(Generic[T]):
    """A frozen dataclass of which some fields are decoded when they are first read.

    `later` are the names of these. What is encoded may have further keys that are named there, for
    the caller.
    """

    def __init__(self, kind: type[T], later: Collection[str]) -> None:
        self.kind: Any = kind
        self.later = later

    def decode(self, encoded: bytes | msgspec.Raw) -> DecodedFields:
        """Return the fields of an object, of which `encoded` is the MessagePack.

        It must have passed the checks of `decode_value` before: an error would come late, and without
        the name of its file.
        """
        values = self._decoder.decode(encoded)
        later = {name: values.pop(name) for name in self.later if name in values}
        return DecodedFields(values, later)

    def make(self, values: dict[str, Any], contents: Mapping[str, Content]) -> T:
        """Return an object with these values, whose other fields are decoded when they are read.

        It equals an object that was decoded at once. `values` become its attributes.
        """
        values[CONTENTS] = contents
        deferred: object = object.__new__(self._class)
        object.__setattr__(deferred, "__dict__", values)
        return cast(T, deferred)

    @cached_property
    def _hints(self) -> dict[str, Any]:
        """The types of all fields."""
        return get_type_hints(self.kind, include_extras=True)

    @cached_property
    def _decoder(self) -> msgspec.msgpack.Decoder[dict[str, Any]]:
        """Decodes the fields to a dict, in which those of `later` stay as they are."""
        hints = {**self._hints, **dict.fromkeys(self.later, msgspec.Raw)}
        make_typed_dict: Any = TypedDict
        kind = make_typed_dict(self.kind.__name__, hints, total=False)
        prepare_types(kind)
        return msgspec.msgpack.Decoder(kind, strict=True, dec_hook=decode_custom)

    @cached_property
    def _class(self) -> type:
        """A subclass of the same name, of which no field needs to be there."""
        namespace: dict[str, Any] = {"__eq__": _is_equal, "__hash__": None}
        for field in fields(self.kind):
            namespace[field.name] = _DeferredField(field, self._hints[field.name])
        return type(self.kind.__name__, (self.kind,), namespace)


class _DeferredField:
    """A field that is decoded when it is first read, unless it has a value already.

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


def _is_equal(self: Any, other: object) -> Any:
    """Return whether two objects have equal fields; a dataclass compares those of one class only."""
    kind = type(self).__mro__[1]
    if not isinstance(other, kind):
        return NotImplemented
    return all(getattr(self, field.name) == getattr(other, field.name) for field in fields(self))
