"""Seals: digests by which every reader of a file notices that its content was changed.

A sealed file is a JSON object with a key `seal`. Its value is the SHA-256 of all other keys, encoded
as MessagePack with sorted keys. Unlike JSON, MessagePack has one form for each number, so that the
digest depends on no library's way to print a fraction; spaces and the order of keys do not count.

A seal protects from damage and from changes by hand. It is no signature: whoever can run this module
can seal anything.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

KEY = "seal"


def digest_of(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON object without its seal, in hexadecimal."""
    try:
        encoded = msgspec.msgpack.encode(content, order="sorted")
    except OverflowError:  # MessagePack has no whole numbers beyond 64 bits
        encoded = json.dumps(content, sort_keys=True).encode()
    return hashlib.sha256(encoded).hexdigest()


def sealed_text(content: Mapping[str, Any]) -> str:
    """Return the text of a sealed JSON file; raises ValueError for numbers that JSON can't hold.

    Paths and other values that JSON does not know are written as text. Half a surrogate pair, as in
    the names of files that are no UTF-8, is replaced by a question mark: no reader accepts one.
    """
    # What readers will get: keys of objects as text, and tuples as lists.
    plain = msgspec.json.decode(json_text(content))
    plain.pop(KEY, None)  # of content that was read from a sealed file
    plain[KEY] = digest_of(plain)
    return json.dumps(plain, indent=1) + "\n"


def json_text(content: Any) -> bytes:
    """Return JSON in UTF-8, as `sealed_text` does, without a seal."""
    text = json.dumps(content, allow_nan=False, default=str, ensure_ascii=False)
    return text.encode("utf-8", errors="replace")


def clean_text(text: str, clean: Callable[[str], str]) -> str:
    """Return the text of a sealed file without secrets, with a seal of what is left.

    `clean` removes secrets from a text. So readers accept copies of the file as they are. A file
    without secrets stays as it is.
    """
    if clean(text) == text:
        return text
    return sealed_text(cleaned(msgspec.json.decode(text), clean))


def cleaned(value: Any, clean: Callable[[str], str]) -> Any:
    """Return a JSON value with each text in it cleaned; keys stay."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [cleaned(item, clean) for item in value]
    if isinstance(value, dict):
        return {key: cleaned(item, clean) for key, item in value.items()}
    return value
