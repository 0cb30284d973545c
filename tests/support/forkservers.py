"""Ends forkservers that would stay for later commands."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

from harness.launch import kept_forkserver


def end_servers(folder: Path) -> list[psutil.Process]:
    """End all servers whose sockets lie in a folder; return their processes, which are about to go."""
    servers: list[psutil.Process] = []
    for path in folder.glob("*.socket"):
        connection = kept_forkserver._connect(path)
        if connection is None:
            continue  # it has ended already
        with connection, suppress(psutil.NoSuchProcess):
            server = psutil.Process(kept_forkserver._peer(connection)[0])
            server.kill()
            servers.append(server)
    return servers
