"""Changes to files that were written well: of their bytes, and of the JSON that they hold."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

# What a JSON value may be replaced by: of every type, at the edges of what readers take.
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 3.5, -0.0, 1e308, -1e308, 5e-324, 2**31, 2**63, 2**64, -(2**63), 10**25, "", "x",
    "\x1b[2J", "\u2028", "../../etc/passwd", "/etc/passwd", "9" * 400, "é" * 70, [], {}, [None], {"": None}, [[]] * 3,
]  # fmt: skip
DEEP = '{"a":' * 3000 + "1" + "}" * 3000


def paths(content: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield where every value below a JSON value is, by keys and indexes."""
    items: Any = ()
    if isinstance(content, dict):
        items = content.items()
    elif isinstance(content, list):
        items = enumerate(content)
    for key, value in items:
        yield (*path, key)
        yield from paths(value, (*path, key))


def changed_content(content: Any, seed: int) -> Any:
    """Return a JSON value with one to three changes: a value replaced, dropped, moved or added."""
    choice = random.Random(seed)
    changed = copy.deepcopy(content)
    for _ in range(choice.choice((1, 1, 1, 2, 3))):
        places = list(paths(changed))
        if not places:
            return choice.choice(VALUES)
        *folders, key = choice.choice(places)
        parent = changed
        for step in folders:
            parent = parent[step]
        _change(parent, key, choice)
    return changed


def _change(parent: Any, key: Any, choice: random.Random) -> None:
    """Change one item of an object or a list."""
    kind = choice.randrange(6)
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, dict):
        parent[choice.choice(["new", "", "\x00", key * 2])] = parent[key]
    elif kind == 1:
        parent.insert(choice.randrange(len(parent) + 1), copy.deepcopy(parent[key]))
    elif kind == 2 and isinstance(parent[key], int | float):
        parent[key] = parent[key] * choice.choice([-1, 2, 0.5, 1.000001]) + choice.choice([0, 1])
    elif kind == 3 and isinstance(parent[key], str):
        parent[key] = parent[key][: choice.randrange(len(parent[key]) + 1)] + choice.choice("aZ0=/")
    else:
        parent[key] = copy.deepcopy(choice.choice(VALUES))


def changed_bytes(content: bytes, seed: int) -> bytes:
    """Return a file's bytes with a bit flipped, a page zeroed, or a part dropped or doubled."""
    choice = random.Random(seed)
    changed = bytearray(content)
    start = choice.randrange(len(changed) + 1)
    end = min(len(changed), start + choice.choice((1, 2, 8, 64, 512, 4096)))
    kind = choice.randrange(7)
    if kind == 0:
        return bytes(changed[:start])
    if kind == 1:
        del changed[start:end]
    elif kind == 2:
        changed[start:start] = changed[start:end]
    elif kind == 3:
        changed[start:end] = bytes(end - start)
    elif kind == 4:
        changed[start:end] = choice.randbytes(end - start)
    elif kind == 5 and choice.randrange(20) == 0:
        return DEEP.encode()
    elif start < len(changed):
        changed[start] ^= 1 << choice.randrange(8)
    return bytes(changed)


# A number decides a change: hypothesis would otherwise spend its time on the shape of the files.
SEEDS = st.integers(0, 2**48)
