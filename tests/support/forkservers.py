"""Ends forkservers that would stay for later commands."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

from harness.launch import kept_forkserver

END_TIMEOUT = 30.0  # seconds that all servers may take to be gone


def end_servers(folder: Path) -> None:
    """End all servers whose sockets lie in a folder, and wait until they are gone.

    All are killed before the first is waited for: they are children of the system's first process,
    which may take seconds to notice that one has ended.
    """
    servers: list[psutil.Process] = []
    for path in folder.glob("*.socket"):
        connection = kept_forkserver._connect(path)
        if connection is None:
            continue  # it has ended already
        with connection, suppress(psutil.NoSuchProcess):
            server = psutil.Process(kept_forkserver._peer(connection)[0])
            server.kill()
            servers.append(server)
    psutil.wait_procs(servers, timeout=END_TIMEOUT)
