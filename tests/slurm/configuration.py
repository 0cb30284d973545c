"""A small Slurm on one machine, on paper: its configuration files and the command of each daemon.

Its delays are as short as a busy machine of two cores allows: in the defaults of a real cluster, a
requeued job waits for 121 s before it starts again, and a silent node is noticed after 300 s.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

# cred_expire: a requeued job waits until the credentials of its earlier start have expired, which
#   is 120 s by default.
# sched_interval, bf_interval: seconds between two rounds of the schedulers, 60 and 30 by default.
# preempt_send_user_signal: a preempted job gets the signal of its --signal before its grace time.
# config_overrides: nodes may have more CPUs than the machine.
# ReturnToService=2: a node that was down is used again as soon as its daemon reports.
# KillWait: seconds that a cancelled job has to save, 30 by default.
# SlurmdTimeout: seconds after which a silent node is down, 300 by default.
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
ACCOUNTING = """\
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
MAX_FOLDER_BYTES = 70  # the path of a socket has at most 108, man 7 unix


@dataclass(frozen=True, kw_only=True)
class Ports:
    """The ports of loopback on which the daemons listen."""

    controller: int
    nodes: tuple[int, ...]
    accounting: int = 0
    database: int = 0


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Everything about one such Slurm; all that its daemons write lies in `folder`."""

    folder: Path
    ports: Ports
    nodes: tuple[str, ...] = ("n1", "n2")
    cpus: int = 4  # of a node; those that the machine does not have are shared
    accounting: bool = False  # slurmdbd on MariaDB
    grace: int = 45  # seconds that a preempted job has to end
    requeue_delay: int = 5  # seconds that a requeued job waits: the lifetime of Slurm's credentials
    node_timeout: int = 12  # seconds after which a silent node is down
    password: str = field(default_factory=secrets.token_hex)  # slurmdbd's, for the database

    # By node, a folder in place of which it sees an empty one.
    private: dict[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        is_too_long = len(os.fsencode(self.folder)) > MAX_FOLDER_BYTES
        if is_too_long or " " in str(self.folder):
            raise ValueError(
                f"{self.folder}: sockets can't lie there;"
                f" allowed: {MAX_FOLDER_BYTES} bytes without spaces"
            )

    @property
    def slurm_conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        return self.folder / "munge.socket"

    def log(self, daemon: str) -> Path:
        return self.folder / f"{daemon}.log"


def slurm_conf(configuration: Configuration) -> str:
    """Return the text of slurm.conf."""
    cpus = configuration.cpus
    resources = (
        f"CPUs={cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={cpus} ThreadsPerCore=1"
        " RealMemory=8000"
    )
    node_lines = []
    for name, port in zip(configuration.nodes, configuration.ports.nodes, strict=True):
        node_lines.append(f"NodeName={name} NodeAddr=127.0.0.1 Port={port} {resources}\n")
    accounting = ACCOUNTING if configuration.accounting else ""
    template = SLURM + accounting + "".join(node_lines) + PARTITIONS
    return template.format(
        folder=configuration.folder,
        munge=configuration.munge_socket,
        controller=configuration.ports.controller,
        accounting=configuration.ports.accounting,
        requeue_delay=configuration.requeue_delay,
        node_timeout=configuration.node_timeout,
        grace=configuration.grace,
    )


def slurmdbd_conf(configuration: Configuration) -> str:
    """Return the text of slurmdbd.conf, which holds a password."""
    return SLURMDBD.format(
        folder=configuration.folder,
        munge=configuration.munge_socket,
        accounting=configuration.ports.accounting,
        database=configuration.ports.database,
        password=configuration.password,
    )


def daemon_commands(configuration: Configuration) -> dict[str, list[str]]:
    """Return the command of each daemon by name, in the order in which they start; each stays in
    the foreground.
    """
    folder = configuration.folder
    munge_files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "log", "pid", "seed")]
    commands = {
        "munged": [
            "munged",
            "--foreground",
            "--force",
            f"--socket={configuration.munge_socket}",
            *munge_files,
        ]
    }
    if configuration.accounting:
        commands["mariadbd"] = [
            "mariadbd",
            "--no-defaults",
            "--user=root",
            f"--datadir={folder}/mysql",
            f"--socket={folder}/mysql.socket",
            f"--port={configuration.ports.database}",
            "--bind-address=127.0.0.1",
            f"--pid-file={folder}/mysql.pid",
        ]
        commands["slurmdbd"] = ["slurmdbd", "-D"]
    conf = str(configuration.slurm_conf)
    commands["slurmctld"] = ["slurmctld", "-D", "-f", conf]
    for name in configuration.nodes:
        command = ["slurmd", "-D", "-N", name, "-f", conf]
        hidden = configuration.private.get(name)
        if hidden is not None:
            command = [*in_mount_namespace(hidden), *command]
        commands[f"slurmd-{name}"] = command
    return commands


def in_mount_namespace(hidden: Path) -> list[str]:
    """Return what a command is put behind to see an empty folder in place of this one."""
    mount_and_run = 'mount -t tmpfs none "$0" && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", mount_and_run, str(hidden)]
