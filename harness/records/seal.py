"""Seals: digests by which every reader of a file notices that its content was changed.

A sealed file is the text of a JSON object whose last key is `seal`. Its value is the SHA-256 of all
bytes before it. So a file is checked without decoding it, and spaces and the order of keys count.

A seal protects from damage and from changes by hand. It is no signature: whoever can run this module
can seal anything.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

KEY = "seal"
END = re.compile(rb',\n "seal": "(?P<digest>[0-9a-f]{64})"\n}\n\Z')
LONGEST_END = 100  # bytes; the seal is looked for in so many


def problem_of(text: bytes) -> str | None:
    """Return what is wrong with the seal of a file, None if it is that of the text before it."""
    seal = END.search(text, max(0, len(text) - LONGEST_END))
    if seal is None:
        return "seal: found none at the end; allowed: one, that of the text before it"
    found = seal["digest"].decode()
    expected = hashlib.sha256(memoryview(text)[: seal.start()]).hexdigest()
    if found != expected:
        return f"seal: found {found[:12]}…; allowed: {expected[:12]}…, that of the text before it"
    return None


def sealed_text(content: Mapping[str, Any]) -> str:
    """Return the text of a sealed JSON file; raises ValueError for numbers that JSON can't hold.

    Paths are written as text. Raises TypeError for any other value that JSON does not know: as text,
    no reader would accept it. Half a surrogate pair, as in the names of files that are no UTF-8, is
    replaced by a question mark.
    """
    unsealed = {key: value for key, value in content.items() if key != KEY}
    body = json_text(unsealed, indent=1).decode().removesuffix("\n}")
    digest = hashlib.sha256(body.encode()).hexdigest()
    return f'{body},\n "{KEY}": "{digest}"\n}}\n'


def json_text(content: Any, indent: int | None = None) -> bytes:
    """Return JSON in UTF-8, as `sealed_text` does, without a seal."""
    text = json.dumps(
        content, indent=indent, allow_nan=False, default=_path_text, ensure_ascii=False
    )
    return text.encode("utf-8", errors="replace")


def _path_text(value: object) -> str:
    """Return a path as text; raises TypeError for anything else."""
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"JSON has no {type(value).__name__}")
