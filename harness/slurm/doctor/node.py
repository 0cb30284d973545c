"""What a node says of itself and of its way to the others: `python -m harness.slurm.doctor.node FOLDER ADDRESS PORT NODE…`.

Prints one line of JSON. Needs neither torch nor a shared folder, so that it can tell that they are missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

import harness
from harness.core.errors import one_line
from harness.core.paths import write_atomically

EXCHANGES = 8  # of clocks; the quickest one counts
PATIENCE = 10.0  # seconds that a connection may take


@dataclass(frozen=True, kw_only=True)
class Software:
    """What has to be the same everywhere."""

    python: str
    torch: str | None  # version; None: not installed
    harness: str  # version, and a digest of its code and the workloads'


@dataclass(frozen=True, kw_only=True)
class Report:
    """Of one node. Problems are in words; None where there is none."""

    node: str
    software: Software
    interfaces: Sequence[str]
    gpus: int
    folder: str | None
    unresolved: Mapping[str, str] = field(default_factory=dict)  # name of a node -> why
    unreachable: str | None = None
    ahead: float | None = None  # seconds by which the first node's clock is ahead of this one's


def software() -> Software:
    """This process's."""
    top, digest = Path(harness.__file__).parent.parent, hashlib.sha256()
    for path in sorted(
        path for package in ("harness", "workloads") for path in (top / package).rglob("*.py")
    ):
        digest.update(f"{path.relative_to(top)}\0".encode() + path.read_bytes())
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = None
    code = f"{harness.__version__} ({digest.hexdigest()[:8]})"
    return Software(python=platform.python_version(), torch=torch, harness=code)


def look(folder: Path, address: str, port: int, nodes: Iterable[str]) -> Report:
    """The report of the node that this process runs on."""
    import psutil

    from harness.spec.cluster import count_gpus

    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    unreachable, ahead = None, None
    try:
        ahead = clock_ahead(address, port)
    except OSError as error:
        unreachable = f"{address}, port {port}: {one_line(error.strerror or error)}"
    return Report(
        node=node,
        software=software(),
        interfaces=sorted(psutil.net_if_addrs()),
        gpus=count_gpus(),
        folder=try_folder(folder, node),
        unresolved=unresolved(nodes),
        unreachable=unreachable,
        ahead=ahead,
    )


def token(folder: Path) -> Path:
    """What the submitting machine has put into a folder that is to be shared."""
    return folder / "token"


def answer(folder: Path, node: str) -> Path:
    """What a node puts there."""
    return folder / f"seen-by-{node}"


def try_folder(folder: Path, node: str) -> str | None:
    """Read the token and leave a copy of it; why that can't be done, or None."""
    try:
        write_atomically(answer(folder, node), token(folder).read_bytes())
    except OSError as error:
        return one_line(error.strerror or error)
    return None


def unresolved(names: Iterable[str]) -> dict[str, str]:
    """The names that this machine can't look up, with the reason."""
    found = {}
    for name in names:
        try:
            socket.getaddrinfo(name, None)
        except OSError as error:
            found[name] = one_line(error.strerror or error)
    return found


def clock_ahead(address: str, port: int) -> float:
    """Seconds by which the clock there is ahead: NTP's offset (RFC 5905, section 8) of the quickest exchange.

    Raises OSError if nobody can be reached.
    """
    found = []
    with (
        socket.create_connection((address, port), timeout=PATIENCE) as link,
        link.makefile("rw") as line,
    ):
        for _ in range(EXCHANGES):
            sent = time.time()
            line.write("now?\n")
            line.flush()
            there = float(line.readline())
            received = time.time()
            found.append((received - sent, there - (sent + received) / 2))
    return min(found)[1]


def main() -> None:
    folder, address, port, *nodes = sys.argv[1:]
    print(json.dumps(asdict(look(Path(folder), address, int(port), nodes))), flush=True)


if __name__ == "__main__":
    main()
