"""What the daemons of the tests' Slurm are told, without starting any."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.configuration import Configuration, Ports, daemons, slurm_conf, slurmdbd_conf
from tests.slurm.conftest import refuse
from tests.slurm.daemons import missing

PORTS = Ports(controller=1001, nodes=(1002, 1003), accounting=1004, database=1005)


def configuration(**options: Any) -> Configuration:
    return Configuration(folder=Path("/scratch/one"), ports=PORTS, **options)


def settings(text: str) -> dict[str, str]:
    """The lines `Key=value` of a file, but those of nodes and partitions."""
    return dict(
        line.split("=", 1)
        for line in text.splitlines()
        if not line.startswith(("NodeName", "PartitionName"))
    )


@pytest.mark.parametrize("accounting", [False, True])
def test_all_that_is_written_lies_in_the_folder(accounting: bool) -> None:
    found = settings(slurm_conf(configuration(accounting=accounting))) | settings(
        slurmdbd_conf(configuration())
    )
    paths = [path for value in found.values() for path in re.findall(r"(?<![\w/])/[^,]+", value)]
    assert len(paths) > 5
    assert [path for path in paths if not path.startswith("/scratch/one/")] == []


def test_every_port_is_its_own() -> None:
    text = slurm_conf(configuration(accounting=True))
    found = settings(text)
    assert (found["SlurmctldPort"], found["AccountingStoragePort"]) == ("1001", "1004")
    assert [line.split()[2] for line in text.splitlines() if line.startswith("NodeName")] == [
        "Port=1002",
        "Port=1003",
    ]
    database = settings(slurmdbd_conf(configuration(accounting=True)))
    assert (database["DbdPort"], database["StoragePort"]) == ("1004", "1005")


def test_without_accounting_nothing_speaks_of_it() -> None:
    assert "AccountingStorage" not in slurm_conf(configuration())
    assert list(daemons(configuration())) == ["munged", "slurmctld", "slurmd-n1", "slurmd-n2"]


def test_with_accounting_the_database_comes_first() -> None:
    started = list(daemons(configuration(accounting=True)))
    assert started == ["munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd-n1", "slurmd-n2"]


def test_passwords_differ() -> None:
    assert configuration().password != configuration().password


def test_a_node_can_be_kept_from_a_folder() -> None:
    found = daemons(configuration(private={"n2": Path("/shared")}))
    assert found["slurmd-n1"][0] == "slurmd"
    assert found["slurmd-n2"][:2] == ["unshare", "--mount"]
    assert found["slurmd-n2"][-5:] == ["-D", "-N", "n2", "-f", "/scratch/one/slurm.conf"]


@pytest.mark.parametrize("folder", [Path("/a b"), Path("/" + "x" * 80)])
def test_a_folder_that_sockets_cannot_lie_in(folder: Path) -> None:
    with pytest.raises(ValueError, match="sockets can't lie there"):
        Configuration(folder=folder, ports=PORTS)


def test_without_slurm_tests_are_skipped_and_in_ci_they_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(
        pytest.skip.Exception, match="no Slurm: no munged, slurmctld, slurmd, sbatch here"
    ):
        refuse(missing())
    monkeypatch.setenv("CI", "true")
    with pytest.raises(
        pytest.fail.Exception, match="no Slurm: no munged, slurmctld, slurmd, sbatch here"
    ):
        refuse(missing())
