"""A real Slurm of two nodes on loopback, which ends with whoever brought it up.

By hand, `python -m tests.slurm.daemons up --dir DIR [--accounting]` prints the SLURM_CONF to
export, and `python -m tests.slurm.daemons down --dir DIR` ends it.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.slurm import database
from tests.slurm.cluster import Slurm
from tests.slurm.configuration import Configuration, Ports, slurm_conf, slurmdbd_conf
from tests.support.running import wait_until
from tests.support.tree import TOP

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
ACCOUNTING_PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db")
LOG_CHARACTERS = 500  # of each log that an error shows


def missing(*, accounting: bool = False) -> str | None:
    """Return why no Slurm can run here, None if one can."""
    needed = PROGRAMS + ACCOUNTING_PROGRAMS if accounting else PROGRAMS
    absent = [name for name in needed if shutil.which(name) is None]
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
def running(folder: Path, **options: Any) -> Iterator[Slurm]:
    """Run a Slurm in `folder` as long as the block, or this process, lasts. `options` are those of
    Configuration.
    """
    slurm = Slurm(configure(folder, **options))
    supervisor = start_supervisor(slurm.configuration, with_parent=True)
    try:
        bring_up(slurm)
        yield slurm
    finally:
        supervisor.terminate()
        exit_code = supervisor.wait()
    if exit_code:
        raise RuntimeError(
            f"{folder}: the supervisor exited with {exit_code}, and may have left processes behind"
        )


def configure(
    folder: Path, *, nodes: Sequence[str] = ("n1", "n2"), **options: Any
) -> Configuration:
    """Return a configuration with ports that are free now."""
    with ExitStack() as stack:
        servers = []
        for _ in range(3 + len(nodes)):
            servers.append(stack.enter_context(socket.create_server(("127.0.0.1", 0))))
        controller, accounting, mariadb, *node_ports = [
            server.getsockname()[1] for server in servers
        ]
    ports = Ports(
        controller=controller, accounting=accounting, database=mariadb, nodes=tuple(node_ports)
    )
    return Configuration(folder=folder, ports=ports, nodes=tuple(nodes), **options)


def start_supervisor(configuration: Configuration, *, with_parent: bool) -> subprocess.Popen[bytes]:
    """Start the process that holds the daemons and, with `with_parent`, ends with this one."""
    write_files(configuration)
    command = [sys.executable, "-m", "tests.slurm.supervisor", str(configuration.folder)]
    if with_parent:
        command.append(str(os.getpid()))
    with configuration.log("supervisor").open("ab") as log:
        return subprocess.Popen(
            command,
            cwd=TOP,
            env={**os.environ, "SLURM_CONF": str(configuration.slurm_conf)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def write_files(configuration: Configuration) -> None:
    """Write every file and folder that the daemons need."""
    folder = configuration.folder
    (folder / "state").mkdir(parents=True)
    for node in configuration.nodes:
        (folder / f"spool-{node}").mkdir()
    configuration.slurm_conf.write_text(slurm_conf(configuration), encoding="utf-8")
    secret_files = {"munge.key": secrets.token_bytes(128)}
    if configuration.accounting:
        secret_files["slurmdbd.conf"] = slurmdbd_conf(configuration).encode()
    for name, content in secret_files.items():
        (folder / name).touch(0o600)  # the daemons refuse a file that others may read
        (folder / name).write_bytes(content)


def bring_up(slurm: Slurm) -> None:
    """Start the daemons; returns when the nodes are idle. Raises RuntimeError with the end of each
    log.
    """
    configuration = slurm.configuration
    try:
        slurm.start("munged")
        wait_until(configuration.munge_socket.exists)
        if configuration.accounting:
            database.bring_up(slurm)
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


def up(folder: Path, *, accounting: bool) -> None:
    """Leave a Slurm running in `folder`, and print what clients have to export."""
    slurm = Slurm(configure(folder, accounting=accounting))
    supervisor = start_supervisor(slurm.configuration, with_parent=False)
    try:
        bring_up(slurm)
    except BaseException:
        supervisor.terminate()
        raise
    for name, value in slurm.environment.items():
        print(f"export {name}={shlex.quote(value)}")


def down(folder: Path) -> None:
    """End the Slurm in `folder`; returns when none of its processes is left."""
    pid_file = folder / "supervisor.running"
    if pid_file.exists():
        os.kill(int(pid_file.read_text(encoding="ascii")), signal.SIGTERM)
        wait_until(lambda: not pid_file.exists())


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.slurm.daemons")
    parser.add_argument("action", choices=["up", "down"])
    parser.add_argument("--dir", type=Path, required=True, help="a folder for all that it writes")
    parser.add_argument("--accounting", action="store_true", help="with slurmdbd on MariaDB")
    arguments = parser.parse_args()
    if arguments.action == "down":
        return down(arguments.dir.resolve())
    if reason := missing(accounting=arguments.accounting):
        sys.exit(f"no Slurm here: {reason}")
    up(arguments.dir.resolve(), accounting=arguments.accounting)


if __name__ == "__main__":
    main()
