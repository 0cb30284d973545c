"""Shares decoded data sets among processes: the first that needs one writes it, and all map its file.

Decoding MNIST takes half a second of CPU time and 200 MB of memory, which every rank of every trial
would spend again. Here it is decoded once, and is in memory once: a page is copied only for a process
that writes to it. Without a folder that somebody else has made for it, nothing is shared.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from torch import Tensor

PAGE_BYTES = 4096
_folders: list[Path] = []  # the folder of `share_in`, if there is one


def share_in(folder: Path) -> None:
    """Keep what this process decodes from now on in a folder, which exists, for other processes.

    All of them must have the same code, and nobody else may write there.
    """
    _folders[:] = [folder]


def shared_tensors(
    settings: object, files: Iterable[Path], decode: Callable[[], Mapping[str, Tensor]]
) -> Mapping[str, Tensor]:
    """Return what `decode` returns, from the file of another process if there is one.

    The result must follow from `settings`, whose text is taken for their identity, and from the
    content of `files`. Raises whatever `decode` raises.
    """
    if not _folders:
        return decode()
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save_file

    states: list[object] = [settings]
    for file in files:
        status = file.stat()
        states += [
            file.absolute(),
            status.st_ino,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
        ]
    path = _folders[0] / f"{hashlib.sha256(repr(states).encode()).hexdigest()}.safetensors"
    if not path.exists():
        tensors = decode()
        # Another name until it is whole; other ranks may write the same at the same time.
        unfinished = path.with_suffix(f".{os.getpid()}")
        try:
            save_file(dict(tensors), unfinished)
            unfinished.replace(path)
        except (OSError, SafetensorError):  # a full disk, say: this process has what it needs
            unfinished.unlink(missing_ok=True)
            return tensors
    tensors = load_file(path)  # which maps the file
    for tensor in tensors.values():
        # A number of every page is read, or the first epoch would wait while the kernel maps them.
        tensor.view(-1)[:: max(1, PAGE_BYTES // tensor.element_size())].sum()
    return tensors
