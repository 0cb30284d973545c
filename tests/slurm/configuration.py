"""A small Slurm on one machine, on paper: its configuration file and the command of each daemon.

Its delays are as short as a busy machine of two cores allows: in the defaults of a real cluster, a
requeued job waits for 121 s before it starts again, and a silent node is noticed after 300 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# cred_expire: a requeued job waits until the credentials of its earlier start have expired, which
#   is 120 s by default.
# sched_interval, bf_interval: seconds between two rounds of the schedulers, 60 and 30 by default.
# GraceTime: seconds that a preempted job has to end.
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
AuthInfo=socket={munge},cred_expire=5
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
SlurmdTimeout=12
ReturnToService=2
MaxArraySize=10001
SlurmctldParameters=preempt_send_user_signal
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
"""
PARTITIONS = """\
PartitionName=debug Nodes=ALL Default=YES MaxTime=60 PriorityTier=1 PreemptMode=REQUEUE GraceTime=45
PartitionName=urgent Nodes=ALL MaxTime=60 PriorityTier=10
"""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Everything about one such Slurm; all that its daemons write is in `folder`."""

    folder: Path
    nodes: Sequence[str]
    cpus: int  # of a node; those that the machine does not have are shared
    ports: Sequence[int]  # of loopback: the controller's, and that of each node

    @property
    def slurm_conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        return self.folder / "munge.socket"  # its path may have at most 108 bytes, man 7 unix

    def log(self, daemon: str) -> Path:
        return self.folder / f"{daemon}.log"


def slurm_conf(configuration: Configuration) -> str:
    """Return the text of slurm.conf."""
    cpus = configuration.cpus
    controller_port, *node_ports = configuration.ports
    resources = (
        f"CPUs={cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={cpus} ThreadsPerCore=1"
        " RealMemory=8000"
    )
    node_lines = []
    for name, port in zip(configuration.nodes, node_ports, strict=True):
        node_lines.append(f"NodeName={name} NodeAddr=127.0.0.1 Port={port} {resources}\n")
    template = SLURM + "".join(node_lines) + PARTITIONS
    return template.format(
        folder=configuration.folder,
        munge=configuration.munge_socket,
        controller=controller_port,
    )


def daemon_commands(configuration: Configuration) -> dict[str, list[str]]:
    """Return the command of each daemon by name, in the order in which they start; each stays in
    the foreground.
    """
    folder = configuration.folder
    munged = ["munged", "--foreground", "--force", f"--socket={configuration.munge_socket}"]
    munged += [f"--{name}-file={folder}/munge.{name}" for name in ("key", "log", "pid", "seed")]
    conf = str(configuration.slurm_conf)
    commands = {"munged": munged, "slurmctld": ["slurmctld", "-D", "-f", conf]}
    for name in configuration.nodes:
        commands[f"slurmd-{name}"] = ["slurmd", "-D", "-N", name, "-f", conf]
    return commands
