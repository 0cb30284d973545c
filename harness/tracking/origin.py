"""Tells a results folder from its copies: in a store that they share, each has runs of its own.

The id of a folder lies in a file in it, which is copied along, so the file also says where it is. A
file that is moved on its file system keeps its inode, as seen from any host.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TextIO

import msgspec

MAX_CHARACTERS = 8192  # that are read of the file
OLD_FORM = 32  # characters of a file that says the id alone


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The content of the file."""

    id: str  # which the folder's runs have as a tag
    host: str
    path: str  # of the file
    device: int  # of its file system, which other hosts know by another number
    inode: int


def origin_id(file: TextIO, path: Path) -> str:
    """Return the id of the results folder that has the file at `path`, which is open to be changed.

    An empty file gets a new one, and so does a copy. Raises nothing for a file that is damaged: its
    folder gets a new id too.
    """
    status = os.fstat(file.fileno())
    current = Origin(
        id=uuid.uuid4().hex,
        host=socket.gethostname(),
        path=str(path.resolve()),
        device=status.st_dev,
        inode=status.st_ino,
    )
    file.seek(0)
    text = file.read(MAX_CHARACTERS)
    stored = _decode(text, current)
    if stored is not None and not _is_copy(stored, current):
        current = replace(current, id=stored.id)
    content = json.dumps(asdict(current))
    if text != content:
        file.seek(0)
        file.write(content)
        file.truncate()
        file.flush()
    return current.id


def _decode(text: str, current: Origin) -> Origin | None:
    """Return what a file says, None if it is empty or damaged; one in the old form says no place."""
    if len(text) == OLD_FORM and text.isalnum():
        return replace(current, id=text)
    try:
        return msgspec.json.decode(text, type=Origin)
    except msgspec.MsgspecError:
        return None


def _is_copy(stored: Origin, current: Origin) -> bool:
    """Return whether a file that is here now was copied from where it says that it is.

    One from another host counts as a copy unless hosts share the file: to deliver runs twice does no
    harm, to replace those of another folder does.
    """
    if stored.host != current.host:
        return stored.inode != current.inode
    is_same_file = (stored.device, stored.inode) == (current.device, current.inode)
    if is_same_file or stored.path == current.path:  # or it was restored from a backup
        return False
    return Path(stored.path).exists()  # otherwise it was moved to another file system
