"""A small Slurm on one machine, on paper: its configuration files and the command of each daemon."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

SLURM = """\
ClusterName=local
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={munge},cred_expire={requeue_delay}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=100000,bf_interval=2
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
KillWait=5
SlurmdTimeout={node_timeout}
ReturnToService=2
MaxArraySize=10001
SlurmctldParameters=preempt_send_user_signal
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
"""
ACCOUNTED = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={accounting}
AccountingStoragePass={munge}
"""
PARTITIONS = """\
PartitionName=debug Nodes=ALL Default=YES MaxTime=60 PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace}
PartitionName=urgent Nodes=ALL MaxTime=60 PriorityTier=10
"""
SLURMDBD = """\
AuthType=auth/munge
AuthInfo=socket={munge}
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={accounting}
SlurmUser=root
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm_acct_db
"""


@dataclass(frozen=True, kw_only=True)
class Ports:
    """On loopback, one for each daemon that listens."""

    controller: int
    nodes: tuple[int, ...]
    accounting: int = 0
    database: int = 0


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Everything about one such Slurm; all that it writes lies in `folder`."""

    folder: Path
    ports: Ports
    nodes: tuple[str, ...] = ("n1", "n2")
    cpus: int = 4  # of a node; more than the machine has are shared
    accounting: bool = False  # slurmdbd on MariaDB
    grace: int = 15  # seconds that a preempted job has to end
    requeue_delay: int = (
        10  # seconds that a requeued job waits: the lifetime of Slurm's credentials, 120 by default
    )
    node_timeout: int = 20  # seconds after which a silent node is down
    password: str = field(default_factory=secrets.token_hex)  # slurmdbd's, for the database
    private: dict[str, Path] = field(
        default_factory=dict
    )  # node -> a folder of which it sees only its own, empty copy

    def __post_init__(self) -> None:
        if len(os.fsencode(self.folder)) > 70 or " " in str(self.folder):
            raise ValueError(
                f"{self.folder}: sockets can't lie there; allowed: 70 bytes without spaces"
            )

    @property
    def slurm_conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def munge(self) -> Path:
        return self.folder / "munge.socket"

    def log(self, daemon: str) -> Path:
        return self.folder / f"{daemon}.log"


def slurm_conf(asked: Configuration) -> str:
    """The text of slurm.conf."""
    shape = f"CPUs={asked.cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={asked.cpus} ThreadsPerCore=1 RealMemory=8000"
    nodes = "".join(
        f"NodeName={name} NodeAddr=127.0.0.1 Port={port} {shape}\n"
        for name, port in zip(asked.nodes, asked.ports.nodes, strict=True)
    )
    return (SLURM + (ACCOUNTED if asked.accounting else "") + nodes + PARTITIONS).format(
        folder=asked.folder,
        munge=asked.munge,
        controller=asked.ports.controller,
        accounting=asked.ports.accounting,
        requeue_delay=asked.requeue_delay,
        node_timeout=asked.node_timeout,
        grace=asked.grace,
    )


def slurmdbd_conf(asked: Configuration) -> str:
    """The text of slurmdbd.conf, which nobody else may read."""
    return SLURMDBD.format(
        folder=asked.folder,
        munge=asked.munge,
        accounting=asked.ports.accounting,
        database=asked.ports.database,
        password=asked.password,
    )


def daemons(asked: Configuration) -> dict[str, list[str]]:
    """Name -> command, in the order in which they start; each stays in the foreground."""
    conf, folder = str(asked.slurm_conf), asked.folder
    found = {"munged": ["munged", "--foreground", "--force", f"--socket={asked.munge}"]}
    found["munged"] += [
        f"--{name}-file={folder}/munge.{name}" for name in ("key", "log", "pid", "seed")
    ]
    if asked.accounting:
        found["mariadbd"] = [
            "mariadbd", "--no-defaults", "--user=root", f"--datadir={folder}/mysql", f"--socket={folder}/mysql.socket",
            f"--port={asked.ports.database}", "--bind-address=127.0.0.1", f"--pid-file={folder}/mysql.pid",
        ]  # fmt: skip
        found["slurmdbd"] = ["slurmdbd", "-D"]
    found["slurmctld"] = ["slurmctld", "-D", "-f", conf]
    for name in asked.nodes:
        slurmd = ["slurmd", "-D", "-N", name, "-f", conf]
        hidden = asked.private.get(name)
        mounted = [
            "unshare",
            "--mount",
            "sh",
            "-c",
            'mount -t tmpfs none "$0" && exec "$@"',
            str(hidden),
        ]
        found[f"slurmd-{name}"] = [*mounted, *slurmd] if hidden else slurmd
    return found
