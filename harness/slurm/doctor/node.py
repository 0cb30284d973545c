"""What a node reports about itself and about its way to the other nodes.

`python -m harness.slurm.doctor.node FOLDER ADDRESS PORT NODE...` prints one line of JSON. It needs
neither torch nor a shared folder, so that it can report that they are missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

import harness
from harness.core.errors import StorageError, one_line
from harness.core.import_path import ROOT
from harness.core.paths import write_atomically
from harness.slurm.doctor.clock import clock_offset


@dataclass(frozen=True, kw_only=True)
class NodeSoftware:
    """Versions that have to be the same on all machines."""

    python: str
    torch: str | None  # None: not installed
    harness: str  # its version, and a digest of its code and the workloads'


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """The report of one node. Problems are text, None where there is none."""

    node: str  # name
    software: NodeSoftware
    interfaces: Sequence[str]  # of its network
    gpus: int  # that the job sees
    folder_error: str | None  # why the shared folder could not be read and written
    unresolved_names: Mapping[str, str] = field(default_factory=dict)  # name of a node -> why
    unreachable: str | None = None  # address and port of the first node, and why
    clock_offset: float | None = None  # seconds by which the first node's clock is ahead


def installed_software() -> NodeSoftware:
    """Return the software that this process runs.

    The digest covers every Python file of the harness and of the workloads, by its path in the
    tree, so that a copy of the same code elsewhere has the same digest.
    """
    sources = [*(ROOT / "harness").rglob("*.py"), *(ROOT / "workloads").rglob("*.py")]
    digest = hashlib.sha256()
    for path in sorted(sources):
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    try:
        torch_version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch_version = None
    return NodeSoftware(
        python=platform.python_version(),
        torch=torch_version,
        harness=f"{harness.__version__} ({digest.hexdigest()[:8]})",
    )


def examine_node(folder: Path, address: str, port: int, nodes: Iterable[str]) -> NodeReport:
    """Return the report of the node that this process runs on.

    `folder` should be shared by all, `address` and `port` are those of the first node's clock,
    `nodes` are the names of all.
    """
    import psutil

    from harness.spec.cluster import count_gpus

    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    offset = None
    unreachable = None
    try:
        offset = clock_offset(address, port)
    except OSError as error:
        unreachable = f"{address}, port {port}: {one_line(error.strerror or error)}"
    return NodeReport(
        node=node,
        software=installed_software(),
        interfaces=sorted(psutil.net_if_addrs()),
        gpus=count_gpus(),
        folder_error=try_folder(folder, node),
        unresolved_names=unresolved_names(nodes),
        unreachable=unreachable,
        clock_offset=offset,
    )


def token_path(folder: Path) -> Path:
    """Return where the machine that submits leaves a secret.

    By it a node shows that it sees the same folder, not another one of the same name.
    """
    return folder / "token"


def answer_path(folder: Path, node: str) -> Path:
    """Return where a node leaves its copy of the token."""
    return folder / f"seen-by-{node}"


def try_folder(folder: Path, node: str) -> str | None:
    """Read the token and leave a copy of it. Return why that failed, None if it did not."""
    try:
        write_atomically(answer_path(folder, node), token_path(folder).read_bytes())
    except StorageError as error:
        return one_line(error)
    except OSError as error:
        return one_line(error.strerror or error)
    return None


def unresolved_names(names: Iterable[str]) -> dict[str, str]:
    """Return the names that this machine can't look up, each with the reason."""
    unresolved = {}
    for name in names:
        try:
            socket.getaddrinfo(name, None)
        except OSError as error:
            unresolved[name] = one_line(error.strerror or error)
    return unresolved


def main() -> None:
    """Print the report of this node as JSON."""
    folder, address, port, *nodes = sys.argv[1:]
    report = examine_node(Path(folder), address, int(port), nodes)
    print(json.dumps(asdict(report)), flush=True)


if __name__ == "__main__":
    main()
