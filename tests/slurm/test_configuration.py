"""The configuration of the tests' Slurm, without starting a daemon."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.configuration import (
    MAX_FOLDER_BYTES,
    Configuration,
    Ports,
    daemon_commands,
    slurm_conf,
    slurmdbd_conf,
)
from tests.slurm.conftest import skip_if
from tests.slurm.daemons import missing

PORTS = Ports(controller=1001, nodes=(1002, 1003), accounting=1004, database=1005)
NO_PROGRAMS = "no Slurm: no munged, slurmctld, slurmd, sbatch here"


def configuration(**options: Any) -> Configuration:
    """Return a configuration with ports that are known."""
    return Configuration(folder=Path("/scratch/slurm"), ports=PORTS, **options)


def settings(text: str) -> dict[str, str]:
    """Return the lines `Key=value` of a file, except those of nodes and partitions."""
    lines = text.splitlines()
    return dict(
        line.split("=", 1) for line in lines if not line.startswith(("NodeName", "PartitionName"))
    )


@pytest.mark.parametrize("accounting", [False, True])
def test_everything_that_is_written_lies_in_the_folder(accounting: bool) -> None:
    """Sockets, logs, process ids and state, so that nothing is left once the folder is gone."""
    values = [
        *settings(slurm_conf(configuration(accounting=accounting))).values(),
        *settings(slurmdbd_conf(configuration())).values(),
    ]
    paths = re.findall(r"(?<![\w/])/[^,\n]+", "\n".join(values))
    assert len(paths) > 5
    assert [path for path in paths if not path.startswith("/scratch/slurm/")] == []


def test_every_daemon_has_its_port() -> None:
    text = slurm_conf(configuration(accounting=True))
    controller = settings(text)
    assert controller["SlurmctldPort"] == "1001"
    assert controller["AccountingStoragePort"] == "1004"
    node_lines = [line for line in text.splitlines() if line.startswith("NodeName")]
    assert [line.split()[2] for line in node_lines] == ["Port=1002", "Port=1003"]
    database = settings(slurmdbd_conf(configuration(accounting=True)))
    assert (database["DbdPort"], database["StoragePort"]) == ("1004", "1005")


def test_without_accounting_nothing_mentions_it() -> None:
    assert "AccountingStorage" not in slurm_conf(configuration())
    names = list(daemon_commands(configuration()))
    assert names == ["munged", "slurmctld", "slurmd-n1", "slurmd-n2"]


def test_with_accounting_the_database_starts_before_the_controller() -> None:
    names = list(daemon_commands(configuration(accounting=True)))
    assert names == ["munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd-n1", "slurmd-n2"]


def test_passwords_differ() -> None:
    assert configuration().password != configuration().password


def test_a_folder_can_be_hidden_from_a_node() -> None:
    commands = daemon_commands(configuration(private={"n2": Path("/shared")}))
    assert commands["slurmd-n1"][0] == "slurmd"
    assert commands["slurmd-n2"][:2] == ["unshare", "--mount"]
    assert commands["slurmd-n2"][-5:] == ["-D", "-N", "n2", "-f", "/scratch/slurm/slurm.conf"]


@pytest.mark.parametrize("folder", [Path("/a b"), Path("/" + "x" * MAX_FOLDER_BYTES)])
def test_a_folder_in_which_sockets_can_not_lie_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="sockets can't lie there"):
        Configuration(folder=folder, ports=PORTS)


def test_without_slurm_tests_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=NO_PROGRAMS):
        skip_if(missing())


def test_without_slurm_tests_fail_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=NO_PROGRAMS):
        skip_if(missing())
