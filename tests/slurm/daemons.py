"""A real two-node Slurm on loopback, which ends with whoever brought it up.

By hand: `python -m tests.slurm.daemons up --dir DIR [--accounting]` prints the SLURM_CONF to export, and
`python -m tests.slurm.daemons down --dir DIR` ends it.
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
from tests.slurm.cluster import Slurm, listens
from tests.slurm.configuration import Configuration, Ports, slurm_conf, slurmdbd_conf
from tests.support.running import wait_until
from tests.support.tree import TOP

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
ACCOUNTING = ("slurmdbd", "mariadbd", "mariadb-install-db")


def missing(*, accounting: bool = False) -> str | None:
    """Why there can be no Slurm here, or None."""
    absent = [
        name
        for name in (*PROGRAMS, *(ACCOUNTING if accounting else ()))
        if shutil.which(name) is None
    ]
    if absent:
        return f"no {', '.join(absent)} here"
    if os.geteuid():
        return "its daemons need root"
    try:
        nowhere = {socket.gethostbyname(name) for name in ("n1", "n2")} != {"127.0.0.1"}
    except OSError:
        nowhere = True
    return "no `127.0.0.1 n1 n2` in /etc/hosts" if nowhere else None


@contextmanager
def running(folder: Path, **options: Any) -> Iterator[Slurm]:
    """A Slurm in `folder` for as long as the block, and this process, last; options as Configuration's."""
    slurm = Slurm(configure(folder, **options))
    supervisor = supervise(slurm.configuration, with_parent=True)
    try:
        bring_up(slurm)
        yield slurm
    finally:
        supervisor.terminate()
        ended = supervisor.wait()
    if ended:
        raise RuntimeError(
            f"{folder}: its supervisor ended with {ended}, and may have left processes behind"
        )


def configure(
    folder: Path, *, nodes: Sequence[str] = ("n1", "n2"), **options: Any
) -> Configuration:
    """With ports that are free now."""
    with ExitStack() as stack:
        held = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            for _ in range(3 + len(nodes))
        ]
        numbers = [listening.getsockname()[1] for listening in held]
    ports = Ports(
        controller=numbers[0], accounting=numbers[1], database=numbers[2], nodes=tuple(numbers[3:])
    )
    return Configuration(folder=folder, ports=ports, nodes=tuple(nodes), **options)


def supervise(asked: Configuration, *, with_parent: bool) -> subprocess.Popen[bytes]:
    """Start the process that will hold the daemons and, if `with_parent`, end with this one."""
    write_files(asked)
    command = [
        sys.executable,
        "-m",
        "tests.slurm.supervisor",
        str(asked.folder),
        *[str(os.getpid())] * with_parent,
    ]
    variables = {**os.environ, "SLURM_CONF": str(asked.slurm_conf)}
    with asked.log("supervisor").open("ab") as log:
        return subprocess.Popen(
            command,
            cwd=TOP,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def write_files(asked: Configuration) -> None:
    """Everything that the daemons want to find."""
    for name in ("state", *(f"spool-{node}" for node in asked.nodes)):
        (asked.folder / name).mkdir(parents=True)
    asked.slurm_conf.write_text(slurm_conf(asked), encoding="utf-8")
    secret = {"munge.key": secrets.token_bytes(128)}
    if asked.accounting:
        secret["slurmdbd.conf"] = slurmdbd_conf(asked).encode()
    for name, content in secret.items():
        (asked.folder / name).touch(0o600)
        (asked.folder / name).write_bytes(content)


def bring_up(slurm: Slurm) -> None:
    """Start the daemons; returns when the nodes are idle. Raises RuntimeError with the last words of each."""
    asked = slurm.configuration
    try:
        slurm.start("munged")
        wait_until(asked.munge.exists)
        if asked.accounting:
            database.bring_up(slurm)
        slurm.start("slurmctld")
        wait_until(lambda: listens(asked.ports.controller))
        for node in asked.nodes:
            slurm.start(f"slurmd-{node}")
        wait_until(lambda: set(slurm.states().values()) == {"idle"})
    except (TimeoutError, subprocess.CalledProcessError) as error:
        said = [
            f"{log.name}: {log.read_text(errors='replace')[-500:]}"
            for log in asked.folder.glob("*.log")
        ]
        raise RuntimeError("\n".join([f"no Slurm in {asked.folder}: {error}", *said])) from error


def up(folder: Path, *, accounting: bool) -> None:
    """Leave a Slurm running in `folder`."""
    slurm = Slurm(configure(folder, accounting=accounting))
    supervisor = supervise(slurm.configuration, with_parent=False)
    try:
        bring_up(slurm)
    except BaseException:
        supervisor.terminate()
        raise
    for name, value in slurm.environment.items():
        print(f"export {name}={shlex.quote(value)}")


def down(folder: Path) -> None:
    """End it; returns when nothing of it is left."""
    running = folder / "supervisor.running"
    if running.exists():
        os.kill(int(running.read_text(encoding="ascii")), signal.SIGTERM)
        wait_until(lambda: not running.exists())


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.slurm.daemons")
    parser.add_argument("what", choices=["up", "down"])
    parser.add_argument("--dir", type=Path, required=True, help="a folder for all that it writes")
    parser.add_argument("--accounting", action="store_true", help="slurmdbd on MariaDB too")
    asked = parser.parse_args()
    if asked.what == "down":
        return down(asked.dir.resolve())
    if why := missing(accounting=asked.accounting):
        sys.exit(f"no Slurm here: {why}")
    up(asked.dir.resolve(), accounting=asked.accounting)


if __name__ == "__main__":
    main()
