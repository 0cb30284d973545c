"""What the doctor makes of what it hears, and what a node can tell of itself. The real thing: tests/slurm/."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.slurm.doctor import node, step
from harness.slurm.doctor.checks import of_job
from harness.slurm.doctor.lead import Examination, understand
from harness.slurm.doctor.node import Report, Software
from harness.slurm.doctor.step import Reduced
from harness.spec.cluster import Profile
from harness.spec.slurm import SlurmOptions
from tests.conftest import free_port
from tests.support.commands import harness

SAME = Software(python="3.11.7", torch="2.13.0", harness="0.1.0 (abcd)")
REDUCED = Reduced(ranks=4, backend="gloo", seconds=1.25)
NODES = ("n1", "n2")


def report(name: str, **changes: Any) -> Report:
    kept: dict[str, Any] = {
        "software": SAME,
        "interfaces": ["eth0", "lo"],
        "gpus": 0,
        "folder": None,
    }
    return Report(node=name, **(kept | {"gpus": 0, "folder": None, "ahead": 0.0} | changes))


def examined(*reports: Report, reduced: Reduced | None = REDUCED, **silent: str) -> Examination:
    return Examination(nodes=NODES, reports=reports, silent=silent, reduced=reduced)


def failing(found: Examination, *, here: Software = SAME, **keys: Any) -> dict[str, str]:
    """What fails -> what was found."""
    profile = Profile(launcher="slurm", slurm=SlurmOptions(nodes=2, **keys))
    checks = of_job(profile, Path("/shared/doctor"), here, found)
    return {check.what: check.found for check in checks if not check.passed}


class TestChecks:
    def test_all_well(self) -> None:
        found = examined(report("n1"), report("n2"))
        profile = Profile(launcher="slurm", slurm=SlurmOptions(nodes=2, interface="eth0"))
        checks = of_job(profile, Path("/shared/doctor"), SAME, found)
        assert all(check.passed for check in checks)
        assert {check.what: check.found for check in checks}[
            "all-reduce"
        ] == "gloo over 4 ranks in 1.2 s"

    def test_a_node_that_did_not_report(self) -> None:
        found = failing(
            examined(report("n1"), reduced=None, n2="execve(): /python: No such file or directory")
        )
        assert found == {
            "nodes": "n2 did not report: execve(): /python: No such file or directory",
            "all-reduce": "not tried",
        }

    def test_no_node_reported(self) -> None:
        found = failing(examined(n1="Killed", n2="Killed"))
        assert found == {"nodes": "n1 did not report: Killed; n2 did not report: Killed"}

    def test_a_folder_that_is_not_shared(self) -> None:
        found = failing(examined(report("n1"), report("n2", folder="No such file or directory")))
        assert found == {
            "folder": "n2: /shared/doctor: No such file or directory; is it shared with this node?"
        }

    @pytest.mark.parametrize(
        ("key", "other", "what"),
        [
            ("python", "3.12.1", "Python"),
            ("torch", "2.14.0", "torch"),
            ("harness", "0.2", "harness"),
        ],
    )
    def test_software_that_is_not_the_same(self, key: str, other: str, what: str) -> None:
        different = replace(SAME, **{key: other})
        (line,) = failing(examined(report("n1"), report("n2", software=different))).items()
        assert line[0] == what
        assert line[1].startswith(
            f"n2 has {other}; this machine has {getattr(SAME, key)}: let all use"
        )

    def test_torch_that_is_missing(self) -> None:
        (line,) = failing(
            examined(report("n1"), report("n2", software=replace(SAME, torch=None)))
        ).values()
        assert line.startswith("n2 has none; this machine has 2.13.0")

    def test_a_python_of_the_nodes_own_may_differ_from_that_here(self) -> None:
        found = examined(report("n1"), report("n2"))
        here = replace(SAME, python="3.13.0", torch=None)
        assert set(failing(found, here=here)) == {"Python", "torch"}
        assert failing(found, here=here, prefix=("apptainer", "exec", "x.sif")) == {}
        assert failing(found, here=replace(here, harness="0.2"), python="/opt/python").keys() == {
            "harness"
        }

    def test_names(self) -> None:
        found = failing(
            examined(report("n1", unresolved={"n2": "Name or service not known"}), report("n2"))
        )
        assert found == {
            "names": "n1 can't look up n2 (Name or service not known): add it to DNS or /etc/hosts"
        }

    def test_ports(self) -> None:
        found = failing(
            examined(
                report("n1"),
                report("n2", unreachable="n1, port 7: timed out", ahead=None),
                reduced=None,
            )
        )
        assert found == {
            "ports": "n2 can't reach n1, port 7: timed out: a firewall?",
            "all-reduce": "not tried",
        }

    def test_clocks(self) -> None:
        assert failing(examined(report("n1"), report("n2", ahead=0.4))) == {}
        found = failing(examined(report("n1"), report("n2", ahead=-3.0)))
        assert found == {"clocks": "n1 is behind n2: 3 s apart; allowed: 0.5 s (is NTP at work?)"}

    def test_interface(self) -> None:
        found = failing(
            examined(report("n1", interfaces=["ib0"]), report("n2"), reduced=None), interface="ib0"
        )
        assert found == {"interface": "n2 has no ib0; allowed: eth0, lo", "all-reduce": "not tried"}

    def test_gpus(self) -> None:
        found = failing(
            examined(report("n1", gpus=4), report("n2", gpus=3)), ranks_per_node=4, gpus_per_rank=1
        )
        assert found == {"GPUs": "n2 shows 3; needed: 4"}

    def test_ranks_that_cannot_talk(self) -> None:
        broken = Reduced(ranks=4, failure="rank 3 on n2: DistBackendError: connection refused")
        found = failing(examined(report("n1"), report("n2"), reduced=broken))
        assert found == {"all-reduce": "rank 3 on n2: DistBackendError: connection refused"}


class TestWords:
    def test_reports_and_noise(self) -> None:
        said = [
            f"{number}: {json.dumps(asdict(report(name)))}" for number, name in enumerate(NODES)
        ]
        reports, silent = understand(
            ["srun: warning: something", said[1], "0: a warning on stderr", said[0]], NODES
        )
        assert reports == [report("n1"), report("n2")]
        assert silent == {}

    def test_the_last_own_words_of_a_silent_node(self) -> None:
        lines = [
            "1: Traceback",
            "1: ModuleNotFoundError: No module named 'harness'",
            "srun: error: n2: task 1: Exited",
        ]
        assert understand(lines, NODES)[1] == {
            "n1": "no word of it",
            "n2": "ModuleNotFoundError: No module named 'harness'",
        }

    def test_or_the_last_that_name_it(self) -> None:
        lines = ["srun: error: n2: task 1: Exited with exit code 2", "srun: error: n22: unknown"]
        assert (
            understand(lines, NODES)[1]["n2"] == "srun: error: n2: task 1: Exited with exit code 2"
        )

    def test_a_report_of_another_harness_is_no_report(self) -> None:
        assert understand(['0: {"node": "n1", "colour": "red"}'], NODES)[0] == []


class TestNode:
    def test_clocks_that_agree(self) -> None:
        with step.clock() as port:
            assert abs(node.clock_ahead("127.0.0.1", port)) < 0.5

    @pytest.mark.parametrize("shift", [100.0, -100.0])
    def test_a_clock_that_is_apart(self, shift: float, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(step, "time", SimpleNamespace(time=lambda: time.time() + shift))
        with step.clock() as port:
            assert node.clock_ahead("127.0.0.1", port) == pytest.approx(shift, abs=0.5)

    def test_a_port_that_is_closed(self, tmp_path: Path) -> None:
        port = free_port()
        found = node.look(tmp_path, "127.0.0.1", port, [])
        assert (found.unreachable, found.ahead) == (
            f"127.0.0.1, port {port}: Connection refused",
            None,
        )

    def test_a_folder_that_is_there(self, tmp_path: Path) -> None:
        node.token(tmp_path).write_text("secret")
        assert node.try_folder(tmp_path, "n1") is None
        assert node.answer(tmp_path, "n1").read_text() == "secret"

    def test_a_folder_that_is_another(self, tmp_path: Path) -> None:
        assert node.try_folder(tmp_path, "n1") == "No such file or directory"
        assert list(tmp_path.iterdir()) == []

    def test_names(self) -> None:
        assert list(node.unresolved(["localhost", "no-such-node.invalid"])) == [
            "no-such-node.invalid"
        ]

    def test_code_that_differs_tells(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "harness").mkdir()
        found = set()
        for text in ("a = 1\n", "a = 2\n"):
            (tmp_path / "harness" / "x.py").write_text(text)
            monkeypatch.setattr("harness.__file__", str(tmp_path / "harness" / "__init__.py"))
            found.add(node.software().harness)
        assert len(found) == 2


class TestStep:
    def test_lines_of_both_streams(self) -> None:
        assert step.run(["sh", "-c", "echo one; echo; echo two >&2; exit 3"], {}) == ["one", "two"]

    def test_what_takes_too_long_is_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(step, "PATIENCE", 0.2)
        assert step.run(["sh", "-c", "echo one; exec sleep 60"], {"PATH": "/bin:/usr/bin"}) == [
            "one",
            "ended after 0.2 s",
        ]


class TestCommand:
    def test_no_slurm_here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        profile = tmp_path / "p.yaml"
        profile.write_text("launcher: slurm\n")
        monkeypatch.setenv("PATH", "")
        ended = harness(
            "doctor", "--cluster", str(profile), "--results", str(tmp_path / "results"), "--json"
        )
        assert ended.code == 1
        assert json.loads(ended.out) == {
            "cluster": str(profile),
            "well": False,
            "checks": [
                {"what": "Slurm", "passed": False, "found": "scontrol: No such file or directory"}
            ],
        }
        assert not (tmp_path / "results").exists()

    def test_results_outside_the_shared_folder(self, tmp_path: Path) -> None:
        profile = tmp_path / "p.yaml"
        profile.write_text("launcher: slurm\nslurm: {shared_folder: /shared}\n")
        ended = harness("doctor", "--cluster", str(profile), "--results", str(tmp_path))
        assert ended.code == 2
        assert "allowed: a folder in /shared, the slurm.shared_folder" in ended.err

    def test_results_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        ended = harness("doctor", "--results", str(tmp_path / "file"))
        assert ended.code == 2
        assert "can't be written" in ended.err

    def test_a_machine_without_the_gpus_that_are_asked_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        profile = tmp_path / "p.yaml"
        profile.write_text("device: cuda\n")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        ended = harness("doctor", "--cluster", str(profile), "--results", str(tmp_path / "results"))
        assert ended.code == 1
        assert "✗ ranks" in ended.out
        assert "room for none: one per GPU, and this machine has 0" in ended.out

    @pytest.mark.distributed
    def test_this_machine(self, tmp_path: Path) -> None:
        profile = tmp_path / "p.yaml"
        profile.write_text("device: cpu\nslots: 2\n")
        ended = harness("doctor", "--cluster", str(profile), "--results", str(tmp_path / "results"))
        assert (ended.code, ended.err) == (0, "")
        assert "✓ all-reduce  gloo over 2 ranks" in ended.out
        assert list((tmp_path / "results").iterdir()) == []
