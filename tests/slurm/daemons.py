"""A real Slurm of two nodes on loopback, which ends with whoever brought it up."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.slurm.cluster import Slurm
from tests.slurm.configuration import Configuration, slurm_conf
from tests.support.running import wait_until
from tests.support.tree import TOP

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
LOG_CHARACTERS = 500  # of each log that an error shows


def missing() -> str | None:
    """Return why no Slurm can run here, None if one can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"no {', '.join(absent)} here"
    if os.geteuid():
        return "its daemons need root"
    try:
        addresses = {socket.gethostbyname(name) for name in ("n1", "n2")}
    except OSError:
        addresses = set()
    if addresses != {"127.0.0.1"}:
        return "no `127.0.0.1 n1 n2` in /etc/hosts"
    return None


@contextmanager
def running(folder: Path, *, nodes: Sequence[str] = ("n1", "n2"), cpus: int = 4) -> Iterator[Slurm]:
    """Run a Slurm in `folder`, whose path has to be short, for as long as the block or this process lasts."""
    configuration = Configuration(
        folder=folder, nodes=nodes, cpus=cpus, ports=free_ports(1 + len(nodes))
    )
    write_files(configuration)
    # Its standard input ends with the block, or with this process.
    with subprocess.Popen(
        [sys.executable, "-m", "tests.slurm.supervisor"],
        cwd=TOP,
        env={**os.environ, "SLURM_CONF": str(configuration.slurm_conf)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as supervisor:
        slurm = Slurm(configuration, supervisor)
        bring_up(slurm)
        yield slurm


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that are free now."""
    with ExitStack() as stack:
        servers = []
        for _ in range(count):
            servers.append(stack.enter_context(socket.create_server(("127.0.0.1", 0))))
        return [server.getsockname()[1] for server in servers]


def write_files(configuration: Configuration) -> None:
    """Write every file and folder that the daemons need."""
    folder = configuration.folder
    (folder / "state").mkdir(parents=True)
    for node in configuration.nodes:
        (folder / f"spool-{node}").mkdir()
    configuration.slurm_conf.write_text(slurm_conf(configuration), encoding="utf-8")
    key = folder / "munge.key"
    key.touch(0o600)  # munged refuses a file that others may read
    key.write_bytes(secrets.token_bytes(128))


def bring_up(slurm: Slurm) -> None:
    """Start the daemons; returns when the nodes are idle. Raises RuntimeError with the end of each
    log.
    """
    configuration = slurm.configuration
    try:
        slurm.start("munged")
        wait_until(configuration.munge_socket.exists)
        slurm.start("slurmctld")
        slurm.wait_for_controller()
        for node in configuration.nodes:
            slurm.start(f"slurmd-{node}")
        wait_until(slurm.is_idle)
    except (TimeoutError, subprocess.CalledProcessError) as error:
        lines = [f"no Slurm in {configuration.folder}: {error}"]
        for log in configuration.folder.glob("*.log"):
            lines.append(f"{log.name}: {log.read_text(errors='replace')[-LOG_CHARACTERS:]}")
        raise RuntimeError("\n".join(lines)) from error
