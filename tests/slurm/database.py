"""What slurmdbd stands on: a MariaDB of its own, and the cluster's name in it."""

from __future__ import annotations

import subprocess

from tests.slurm.cluster import Slurm, listens
from tests.support.running import wait_until

ACCOUNT = """\
CREATE DATABASE slurm_acct_db;
CREATE USER 'slurm'@'localhost' IDENTIFIED BY '{password}';
GRANT ALL ON slurm_acct_db.* TO 'slurm'@'localhost';
"""


def bring_up(slurm: Slurm) -> None:
    """Start MariaDB and slurmdbd; returns when slurmdbd knows the cluster."""
    asked = slurm.configuration
    install = [
        "mariadb-install-db",
        "--no-defaults",
        "--user=root",
        "--auth-root-authentication-method=normal",
    ]
    subprocess.run(
        [*install, f"--datadir={asked.folder / 'mysql'}"], check=True, capture_output=True
    )
    slurm.start("mariadbd")
    wait_until(lambda: listens(asked.ports.database))
    client = [
        "mariadb",
        "--no-defaults",
        "--user=root",
        f"--socket={asked.folder / 'mysql.socket'}",
    ]
    subprocess.run(
        client,
        input=ACCOUNT.format(password=asked.password),
        text=True,
        check=True,
        capture_output=True,
    )
    slurm.start("slurmdbd")
    wait_until(lambda: listens(asked.ports.accounting))
    slurm.ask("sacctmgr", "-i", "add", "cluster", "local")
