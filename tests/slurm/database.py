"""What slurmdbd needs: a MariaDB of its own, and the cluster's name in it."""

from __future__ import annotations

import subprocess

from tests.slurm.cluster import Slurm, is_listening
from tests.support.running import wait_until

CREATE_ACCOUNT = """\
CREATE DATABASE slurm_acct_db;
CREATE USER 'slurm'@'localhost' IDENTIFIED BY '{password}';
GRANT ALL ON slurm_acct_db.* TO 'slurm'@'localhost';
"""
INSTALL = (
    "mariadb-install-db",
    "--no-defaults",
    "--user=root",
    "--auth-root-authentication-method=normal",
)
CLIENT = ("mariadb", "--no-defaults", "--user=root")


def bring_up(slurm: Slurm) -> None:
    """Start MariaDB and slurmdbd; returns when slurmdbd knows the cluster."""
    configuration = slurm.configuration
    data = configuration.folder / "mysql"
    subprocess.run([*INSTALL, f"--datadir={data}"], check=True, capture_output=True)
    slurm.start("mariadbd")
    wait_until(lambda: is_listening(configuration.ports.database))
    subprocess.run(
        [*CLIENT, f"--socket={configuration.folder / 'mysql.socket'}"],
        input=CREATE_ACCOUNT.format(password=configuration.password),
        text=True,
        check=True,
        capture_output=True,
    )
    slurm.start("slurmdbd")
    wait_until(lambda: is_listening(configuration.ports.accounting))
    slurm.run("sacctmgr", "-i", "add", "cluster", "local")
