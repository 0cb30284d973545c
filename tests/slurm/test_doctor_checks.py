"""What the doctor concludes from reports, and what a node can report. Against a real Slurm:
test_doctor.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from harness.slurm.doctor import clock, node
from harness.slurm.doctor.all_reduce import AllReduce
from harness.slurm.doctor.allocation import Examination, parse_reports
from harness.slurm.doctor.checks import (
    Check,
    checks_of_job,
    checks_of_measurement,
    nodes_with_other_bits,
)
from harness.slurm.doctor.measurement import Exchange, NodeMeasurement, RankTraining, rounds
from harness.slurm.doctor.node import NodeReport, NodeSoftware
from harness.spec.cluster import Profile
from harness.spec.slurm import SlurmOptions
from tests.conftest import free_port
from tests.support.commands import harness

SOFTWARE = NodeSoftware(python="3.11.7", torch="2.13.0", harness="0.1.0 (abcd)")
ALL_REDUCE = AllReduce(ranks=4, backend="gloo", seconds=1.25)
NODES = ("n1", "n2")
FOLDER = Path("/shared/doctor")


def report(name: str, **changes: Any) -> NodeReport:
    """Return the report of a node without problems, except for these."""
    fields: dict[str, Any] = {
        "software": SOFTWARE,
        "interfaces": ["eth0", "lo"],
        "gpus": 0,
        "folder_error": None,
        "clock_offset": 0.0,
    }
    return NodeReport(node=name, **(fields | changes))


def conclude(
    *reports: NodeReport,
    all_reduce: AllReduce | None = ALL_REDUCE,
    silent_nodes: dict[str, str] | None = None,
    submitter: NodeSoftware = SOFTWARE,
    **slurm: Any,
) -> list[Check]:
    """Return the checks of a job on two nodes; `slurm` are keys of the profile."""
    profile = Profile(launcher="slurm", slurm=SlurmOptions(nodes=2, **slurm))
    examination = Examination(
        nodes=NODES, reports=reports, silent_nodes=silent_nodes or {}, all_reduce=all_reduce
    )
    return checks_of_job(profile, FOLDER, submitter, examination)


def problems(checks: Sequence[Check]) -> dict[str, str]:
    """Return the detail of each check that did not pass, by name."""
    return {check.name: check.detail for check in checks if not check.passed}


class TestChecks:
    def test_without_problems_all_pass(self) -> None:
        checks = conclude(report("n1"), report("n2"), interface="eth0")
        assert all(check.passed for check in checks)
        details = {check.name: check.detail for check in checks}
        assert details["all-reduce"] == "gloo over 4 ranks in 1.2 s"

    def test_name_a_node_that_did_not_report(self) -> None:
        message = "execve(): /python: No such file or directory"
        checks = conclude(report("n1"), all_reduce=None, silent_nodes={"n2": message})
        assert problems(checks) == {
            "nodes": f"n2 did not report: {message}",
            "all-reduce": "not tried",
        }

    def test_are_a_single_one_if_no_node_reported(self) -> None:
        checks = conclude(silent_nodes={"n1": "Killed", "n2": "Killed"})
        assert problems(checks) == {"nodes": "n1 did not report: Killed; n2 did not report: Killed"}

    def test_name_a_folder_that_is_not_shared(self) -> None:
        checks = conclude(report("n1"), report("n2", folder_error="No such file or directory"))
        assert problems(checks) == {
            "folder": "n2: /shared/doctor: No such file or directory; is it shared with this node?"
        }

    @pytest.mark.parametrize(
        ("attribute", "version", "name"),
        [
            ("python", "3.12.1", "Python"),
            ("torch", "2.14.0", "torch"),
            ("harness", "0.2", "harness"),
        ],
    )
    def test_name_software_that_differs(self, attribute: str, version: str, name: str) -> None:
        different = replace(SOFTWARE, **{attribute: version})
        failed = problems(conclude(report("n1"), report("n2", software=different)))
        assert list(failed) == [name]
        expected = getattr(SOFTWARE, attribute)
        assert failed[name].startswith(
            f"n2 has {version}; this machine has {expected}: use one environment"
        )

    def test_name_torch_that_is_missing(self) -> None:
        without_torch = replace(SOFTWARE, torch=None)
        failed = problems(conclude(report("n1"), report("n2", software=without_torch)))
        assert failed["torch"].startswith("n2 has none; this machine has 2.13.0")

    def test_let_the_python_of_ranks_differ_from_the_submitters_if_the_profile_names_it(
        self,
    ) -> None:
        reports = (report("n1"), report("n2"))
        submitter = replace(SOFTWARE, python="3.13.0", torch=None)
        prefix = ("apptainer", "exec", "x.sif")
        other_harness = replace(submitter, harness="0.2")
        assert set(problems(conclude(*reports, submitter=submitter))) == {"Python", "torch"}
        assert problems(conclude(*reports, submitter=submitter, prefix=prefix)) == {}
        failed = problems(conclude(*reports, submitter=other_harness, python="/opt/python"))
        assert set(failed) == {"harness"}

    def test_name_a_node_that_another_can_not_look_up(self) -> None:
        unresolved = {"n2": "Name or service not known"}
        checks = conclude(report("n1", unresolved_names=unresolved), report("n2"))
        assert problems(checks) == {
            "names": "n1 can't look up n2 (Name or service not known): add it to DNS or /etc/hosts"
        }

    def test_name_a_port_that_can_not_be_reached(self) -> None:
        cut_off = report("n2", unreachable="n1, port 7: timed out", clock_offset=None)
        assert problems(conclude(report("n1"), cut_off, all_reduce=None)) == {
            "ports": "n2 can't reach n1, port 7: timed out: a firewall?",
            "all-reduce": "not tried",
        }

    def test_name_the_clocks_that_differ_most(self) -> None:
        assert problems(conclude(report("n1"), report("n2", clock_offset=0.4))) == {}
        checks = conclude(report("n1"), report("n2", clock_offset=-3.0))
        assert problems(checks) == {
            "clocks": "n1 is behind n2: 3 s apart; allowed: 0.5 s (is NTP running?)"
        }

    def test_name_an_interface_that_is_missing(self) -> None:
        reports = (report("n1", interfaces=["ib0"]), report("n2"))
        assert problems(conclude(*reports, all_reduce=None, interface="ib0")) == {
            "interface": "n2 has no ib0; allowed: eth0, lo",
            "all-reduce": "not tried",
        }

    def test_name_gpus_that_are_missing(self) -> None:
        reports = (report("n1", gpus=4), report("n2", gpus=3))
        failed = problems(conclude(*reports, ranks_per_node=4, gpus_per_rank=1))
        assert failed == {"GPUs": "n2 shows 3; needed: 4"}

    def test_name_the_rank_that_failed(self) -> None:
        failure = "rank 3 on n2: DistBackendError: connection refused"
        failed = AllReduce(ranks=4, failure=failure)
        checks = conclude(report("n1"), report("n2"), all_reduce=failed)
        assert problems(checks) == {"all-reduce": failure}


class TestParsingReports:
    def test_skips_noise(self) -> None:
        lines = [f"{task}: {json.dumps(asdict(report(name)))}" for task, name in enumerate(NODES)]
        warning = "srun: warning: something"
        reports, silent_nodes = parse_reports(
            [warning, lines[1], "0: a warning on stderr", lines[0]], NODES
        )
        assert reports == [report("n1"), report("n2")]
        assert silent_nodes == {}

    def test_returns_the_last_line_of_a_silent_node(self) -> None:
        lines = [
            "1: Traceback",
            "1: ModuleNotFoundError: No module named 'harness'",
            "srun: error: n2: task 1: Exited",
        ]
        assert parse_reports(lines, NODES)[1] == {
            "n1": "it wrote nothing",
            "n2": "ModuleNotFoundError: No module named 'harness'",
        }

    def test_returns_the_last_line_that_names_a_node_which_wrote_nothing(self) -> None:
        exited = "srun: error: n2: task 1: Exited with exit code 2"
        lines = [exited, "srun: error: n22: unknown"]
        assert parse_reports(lines, NODES)[1]["n2"] == exited

    def test_takes_a_report_of_another_harness_for_none(self) -> None:
        assert parse_reports(['0: {"node": "n1", "colour": "red"}'], NODES)[0] == []


class TestClock:
    def test_that_agrees_has_no_offset(self) -> None:
        with clock.serve_clock() as port:
            assert abs(clock.clock_offset("127.0.0.1", port)) < 0.5

    @pytest.mark.parametrize("shift", [100.0, -100.0])
    def test_that_differs_has_an_offset(
        self, shift: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The handler alone is shifted, because server and client share this process."""

        def handle(handler: Any) -> None:
            for _ in handler.rfile:
                handler.wfile.write(f"{time.time() + shift!r}\n".encode())

        monkeypatch.setattr(clock._ClockHandler, "handle", handle)
        with clock.serve_clock() as port:
            assert clock.clock_offset("127.0.0.1", port) == pytest.approx(shift, abs=0.5)

    def test_behind_a_proxy_that_closes_the_connection_is_unreachable(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def handle(handler: Any) -> None:
            handler.rfile.readline()

        monkeypatch.setattr(clock._ClockHandler, "handle", handle)
        with clock.serve_clock() as port:
            examined = node.examine_node(tmp_path, "127.0.0.1", port, [])
        assert examined.unreachable == f"127.0.0.1, port {port}: closed the connection"
        assert examined.clock_offset is None


class TestNode:
    def test_reports_a_port_that_is_closed(self, tmp_path: Path) -> None:
        port = free_port()
        examined = node.examine_node(tmp_path, "127.0.0.1", port, [])
        assert examined.unreachable == f"127.0.0.1, port {port}: Connection refused"
        assert examined.clock_offset is None

    def test_copies_the_token_of_a_shared_folder(self, tmp_path: Path) -> None:
        node.token_path(tmp_path).write_text("secret")
        assert node.try_folder(tmp_path, "n1") is None
        assert node.answer_path(tmp_path, "n1").read_text() == "secret"

    def test_reports_a_folder_without_the_token(self, tmp_path: Path) -> None:
        assert node.try_folder(tmp_path, "n1") == "No such file or directory"
        assert list(tmp_path.iterdir()) == []

    def test_reports_names_that_it_can_not_look_up(self) -> None:
        unresolved = node.unresolved_names(["localhost", "no-such-node.invalid"])
        assert list(unresolved) == ["no-such-node.invalid"]

    def test_reports_a_digest_that_differs_with_the_code(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "harness").mkdir()
        monkeypatch.setattr(node, "ROOT", tmp_path)
        versions = set()
        for text in ("a = 1\n", "a = 2\n"):
            (tmp_path / "harness" / "x.py").write_text(text)
            versions.add(node.installed_software().harness)
        assert len(versions) == 2


class TestCommand:
    def test_says_that_there_is_no_slurm(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        profile = tmp_path / "p.yaml"
        profile.write_text("launcher: slurm\n")
        results = tmp_path / "results"
        monkeypatch.setenv("PATH", "")
        ended = harness("doctor", "--cluster", str(profile), "--results", str(results), "--json")
        assert ended.code == 1
        missing = {
            "name": "Slurm",
            "passed": False,
            "detail": "scontrol: No such file or directory",
        }
        assert json.loads(ended.out) == {
            "cluster": str(profile),
            "passed": False,
            "checks": [missing],
        }
        assert not results.exists()

    def test_refuses_results_outside_the_shared_folder(self, tmp_path: Path) -> None:
        profile = tmp_path / "p.yaml"
        profile.write_text("launcher: slurm\nslurm: {shared_folder: /shared}\n")
        ended = harness("doctor", "--cluster", str(profile), "--results", str(tmp_path))
        assert ended.code == 2
        assert "allowed: a folder in /shared, the slurm.shared_folder" in ended.err

    def test_refuses_results_that_can_not_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        ended = harness("doctor", "--results", str(tmp_path / "file"))
        assert ended.code == 2
        assert "can't be written" in ended.err

    def test_says_that_a_machine_lacks_the_gpus_of_the_profile(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        profile = tmp_path / "p.yaml"
        profile.write_text("device: cuda\n")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        ended = harness("doctor", "--cluster", str(profile), "--results", str(tmp_path / "results"))
        assert ended.code == 1
        assert "✗ ranks" in ended.out
        assert "room for none: " in ended.out
        assert "this machine has 0" in ended.out

    @pytest.mark.distributed
    def test_examines_this_machine(self, tmp_path: Path) -> None:
        profile = tmp_path / "p.yaml"
        profile.write_text("device: cpu\nslots: 2\n")
        results = tmp_path / "results"
        ended = harness("doctor", "--cluster", str(profile), "--results", str(results))
        assert (ended.code, ended.err) == (0, "")
        assert "✓ all-reduce  gloo over 2 ranks" in ended.out
        assert list(results.iterdir()) == []


def trained(rank: int, node: str, digest: str = "a" * 64, slower: float = 1.0) -> RankTraining:
    """Return what a rank's training came to: windows of 0.1 s, of which each takes a bit longer."""
    seconds = [0.1 * slower * (1 + 0.001 * (window + rank) % 0.004) for window in range(20)]
    return RankTraining(rank=rank, node=node, device="AVX2", digest=digest, seconds=seconds)


def exchanged(*nodes: str, rate: float = 1e9, is_right: bool = True) -> Exchange:
    first, second = nodes
    return Exchange(nodes=(first, second), bytes_per_second=rate, is_right=is_right)


class TestMeasurement:
    def test_of_alike_nodes_passes(self) -> None:
        pairs = [exchanged("n1", "n2"), exchanged("n1", "n3", rate=0.5e9), exchanged("n2", "n3")]
        trainings = [trained(rank, f"n{rank + 1}") for rank in range(3)]
        checks = checks_of_measurement(NodeMeasurement(trainings=trainings, exchanges=pairs))
        assert problems(checks) == {}
        details = {check.name: check.detail for check in checks}
        assert details["bits"] == "the same after a short training, aaaaaaaa, on 3 nodes"
        assert details["pairs"] == "0.5 to 1 GB/s, slowest n1 and n3"

    def test_names_a_node_that_is_slow_and_one_that_computes_other_bits(self) -> None:
        """A single slow GPU of a node makes the node slow."""
        trainings = [
            trained(0, "n1"), trained(1, "n1"), trained(2, "n2", digest="b" * 64), trained(3, "n2"),
            trained(4, "n3"), trained(5, "n3", slower=1.25),
        ]  # fmt: skip
        pairs = [exchanged("n1", "n2", is_right=False)]
        measurement = NodeMeasurement(trainings=trainings, exchanges=pairs)
        failed = problems(checks_of_measurement(measurement))
        assert failed["bits"] == (
            "n2: rank 2 (AVX2) computes other bits than rank 0 on n1 (AVX2), as 5 of 6 ranks do"
        )
        assert failed["speed"].startswith("n3: 19.9% slower (")
        assert "; " not in failed["speed"]
        assert failed["pairs"] == "n1 and n2 got a wrong sum"

    def test_names_no_node_where_no_digest_has_a_majority(self) -> None:
        trainings = [trained(0, "n1"), trained(1, "n2", digest="b" * 64)]
        assert nodes_with_other_bits(trainings) == {}
        measurement = NodeMeasurement(trainings=trainings, exchanges=[])
        failed = problems(checks_of_measurement(measurement))
        assert failed["bits"] == (
            "no majority computes the same bits: rank 0 on n1: aaaaaaaa, rank 1 on n2: bbbbbbbb"
        )

    def test_that_failed_or_was_not_tried_is_no_success(self) -> None:
        assert problems(checks_of_measurement("rank 1 on n2: no")) == {"bits": "rank 1 on n2: no"}
        assert problems(checks_of_measurement(None)) == {"bits": "not tried"}

    @pytest.mark.parametrize("count", [2, 3, 4, 7])
    def test_pairs_every_node_with_every_other_once(self, count: int) -> None:
        pairs = []
        for together in rounds(range(count)):
            partners = [rank for pair in together for rank in pair]
            assert len(partners) == len(set(partners)), "one partner at a time"
            pairs += together
        assert sorted(pairs) == [(a, b) for a in range(count) for b in range(a + 1, count)]

    def test_needs_nodes(self, tmp_path: Path) -> None:
        ended = harness("doctor", "--measure", "--results", str(tmp_path / "results"))
        assert ended.code == 2
        assert "--measure: found with launcher torchrun; allowed: with launcher slurm" in ended.err
