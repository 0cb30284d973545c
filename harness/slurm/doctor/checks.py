"""What an examination means: a list of checks, each with what was seen.

A check that failed also says what to do about it. The checks are in the order in which a person
would look: what comes first may be the reason for what follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core.text import counted
from harness.slurm.doctor.all_reduce import AllReduce
from harness.slurm.doctor.allocation import Examination
from harness.slurm.doctor.measurement import Exchange, NodeMeasurement, RankTraining
from harness.slurm.doctor.node import NodeReport, NodeSoftware
from harness.spec.cluster import Profile
from harness.statistics.nodes import NodeSpeed

# Seconds. By the clocks of their nodes the harness tells which of several ranks failed first, and
# a later failure is often only the consequence of the first.
MAX_CLOCK_DIFFERENCE = 0.5
LISTED_SPEEDS = 8  # nodes of which the speed is shown, the slowest ones


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the doctor's list, and of its JSON."""

    name: str  # what was examined, in a word or two
    passed: bool | None  # None: not tried, because of what failed before
    detail: str  # what was seen and, if it failed, what to do


def make_check(name: str, problems: Sequence[str], detail: str) -> Check:
    """Return a check that fails with its problems, or passes with `detail` if there are none."""
    return Check(name=name, passed=not problems, detail="; ".join(problems) or detail)


def checks_of_job(
    profile: Profile, folder: Path, submitter: NodeSoftware, examination: Examination
) -> list[Check]:
    """Return a check for everything that the doctor's job has tried.

    `folder` is the one that all nodes were asked to read and write, `submitter` the software of
    this machine. If no node has reported, there is only the check that says so.
    """
    reports = examination.reports
    silent = []
    for node, message in examination.silent_nodes.items():
        silent.append(f"{node} did not report: {message}")
    if not reports:
        return [make_check("nodes", silent, "")]
    slurm = profile.slurm
    return [
        make_check("nodes", silent, ", ".join(report.node for report in reports)),
        _check_folder(folder, reports),
        *_check_software(profile, submitter, reports),
        _check_names(reports),
        _check_ports(examination.nodes[0], reports),
        _check_clocks(reports),
        *_check_interface(slurm.interface, reports),
        *_check_gpus(slurm.ranks_per_node * slurm.gpus_per_rank, reports),
        check_all_reduce(examination.all_reduce),
    ]


def check_all_reduce(result: AllReduce | None) -> Check:
    """Return the check of the sum over all ranks; None is one that was not tried."""
    if result is None:
        return Check(name="all-reduce", passed=None, detail="not tried")
    problems = [result.failure] if result.failure else []
    seconds = result.seconds or 0.0
    return make_check(
        "all-reduce", problems, f"{result.backend} over {result.ranks} ranks in {seconds:.1f} s"
    )


def _check_folder(folder: Path, reports: Sequence[NodeReport]) -> Check:
    """Check that every node could read and write the folder of the results."""
    problems = []
    for report in reports:
        if report.folder_error:
            problems.append(
                f"{report.node}: {folder}: {report.folder_error}; is it shared with this node?"
            )
    return make_check("folder", problems, f"every node reads and writes {folder}")


def _check_software(
    profile: Profile, submitter: NodeSoftware, reports: Sequence[NodeReport]
) -> Iterator[Check]:
    """Check that every node has the same software as the machine that submits.

    If the profile names another Python for the ranks, or a container, then Python and torch only
    have to be the same on all nodes. The harness has to be that of the submitter in any case,
    because its files are read by both.
    """
    has_other_python = bool(profile.slurm.prefix or profile.slurm.python)
    for name, attribute in (("Python", "python"), ("torch", "torch"), ("harness", "harness")):
        # What the others are compared with; without another Python, the submitter's own.
        reference, reference_name = submitter, "this machine"
        if has_other_python and attribute != "harness":
            reference, reference_name = reports[0].software, reports[0].node
        expected = getattr(reference, attribute) or "none"
        differences = []
        for report in reports:
            version = getattr(report.software, attribute) or "none"
            if version != expected:
                differences.append(f"{report.node} has {version}")
        problems = []
        if differences:
            problems.append(
                f"{', '.join(differences)}; {reference_name} has {expected}:"
                " use one environment on all nodes, on the shared folder"
            )
        yield make_check(name, problems, expected)


def _check_names(reports: Sequence[NodeReport]) -> Check:
    """Check that every node can look up the names of all, as rank 0's is what ranks connect to."""
    problems = []
    for report in reports:
        for name, reason in report.unresolved_names.items():
            problems.append(
                f"{report.node} can't look up {name} ({reason}): add it to DNS or /etc/hosts"
            )
    return make_check("names", problems, "every node looks up every other")


def _check_ports(first_node: str, reports: Sequence[NodeReport]) -> Check:
    """Check that every node can connect to the first, where rank 0 listens."""
    problems = []
    for report in reports:
        if report.unreachable:
            problems.append(f"{report.node} can't reach {report.unreachable}: a firewall?")
    return make_check("ports", problems, f"every node reaches {first_node}")


def _check_clocks(reports: Sequence[NodeReport]) -> Check:
    """Check that the clocks of no two nodes differ by more than MAX_CLOCK_DIFFERENCE."""
    offsets: dict[str, float] = {}  # seconds by which the first node's clock is ahead, by node
    for report in reports:
        if report.clock_offset is not None:
            offsets[report.node] = report.clock_offset
    # Both are relative to the first node's clock, so their difference is that of the two clocks.
    difference = max(offsets.values(), default=0.0) - min(offsets.values(), default=0.0)
    problems = []
    if difference > MAX_CLOCK_DIFFERENCE:
        behind = max(offsets, key=lambda node: offsets[node])
        ahead = min(offsets, key=lambda node: offsets[node])
        problems.append(
            f"{behind} is behind {ahead}: {difference:.3g} s apart;"
            f" allowed: {MAX_CLOCK_DIFFERENCE} s (is NTP running?)"
        )
    return make_check("clocks", problems, f"{difference * 1e3:.2g} ms apart")


def _check_interface(interface: str | None, reports: Sequence[NodeReport]) -> Iterator[Check]:
    """Check that every node has the profile's network interface, if it names one."""
    if interface is None:
        return
    problems = []
    for report in reports:
        if interface not in report.interfaces:
            problems.append(
                f"{report.node} has no {interface}; allowed: {', '.join(report.interfaces)}"
            )
    yield make_check("interface", problems, interface)


def _check_gpus(needed: int, reports: Sequence[NodeReport]) -> Iterator[Check]:
    """Check that every node shows the job as many GPUs as its ranks need, if they need any."""
    if not needed:
        return
    problems = []
    for report in reports:
        if report.gpus < needed:
            problems.append(f"{report.node} shows {report.gpus}; needed: {needed}")
    yield make_check("GPUs", problems, f"{needed} on each node")


def checks_of_measurement(measurement: NodeMeasurement | str | None) -> list[Check]:
    """Return the checks of what the ranks have measured, or why there is nothing."""
    if measurement is None:
        return [Check(name="bits", passed=None, detail="not tried")]
    if isinstance(measurement, str):
        return [make_check("bits", [measurement], "")]
    return [
        _check_bits(measurement.trainings),
        *_check_speeds(measurement.speeds()),
        *_check_exchanges(measurement.exchanges),
    ]


def nodes_with_other_bits(trainings: Sequence[RankTraining]) -> dict[str, str]:
    """Return how each node differs that computes other bits than most ranks, by its name.

    It is empty where no digest has a majority: nobody knows then which nodes are right.
    """
    counts = Counter(training.digest for training in trainings)
    digest, count = counts.most_common(1)[0]
    if 2 * count <= len(trainings):
        return {}
    right = next(training for training in trainings if training.digest == digest)
    problems: dict[str, str] = {}
    for training in trainings:
        if training.digest != digest:
            problems[training.node] = (
                f"rank {training.rank} ({training.device}) computes other bits than rank"
                f" {right.rank} on {right.node} ({right.device}), as {count} of"
                f" {len(trainings)} ranks do"
            )
    return problems


def _check_bits(trainings: Sequence[RankTraining]) -> Check:
    """Check that the short training has the same digest at every rank."""
    digests = {training.digest for training in trainings}
    wrong = nodes_with_other_bits(trainings)
    problems = [f"{node}: {reason}" for node, reason in wrong.items()]
    if len(digests) > 1 and not wrong:
        listed = [f"rank {rank.rank} on {rank.node}: {rank.digest[:8]}" for rank in trainings]
        problems.append(f"no majority computes the same bits: {', '.join(listed)}")
    nodes = len({training.node for training in trainings})
    (digest, *_) = digests
    detail = f"the same after a short training, {digest[:8]}, on {counted(nodes, 'node')}"
    return make_check("bits", problems, detail)


def _check_speeds(speeds: Sequence[NodeSpeed]) -> Iterator[Check]:
    """Check that no node is slower than the others, if there are others."""
    if not speeds:
        return
    problems = [f"{speed.node}: {speed.description}" for speed in speeds if speed.is_slow]
    listed = [f"{speed.node}: {speed.description}" for speed in speeds[:LISTED_SPEEDS]]
    if len(speeds) > LISTED_SPEEDS:
        listed.append(f"the other {len(speeds) - LISTED_SPEEDS} are faster")
    yield make_check("speed", problems, "; ".join(listed))


def _check_exchanges(exchanges: Sequence[Exchange]) -> Iterator[Check]:
    """Check that every two nodes added up right, and say how fast; the slowest pair is named."""
    if not exchanges:
        return
    problems = []
    for exchange in exchanges:
        if not exchange.is_right:
            problems.append(f"{' and '.join(exchange.nodes)} got a wrong sum")
    rates = [exchange.bytes_per_second / 1e9 for exchange in exchanges]
    slowest = min(exchanges, key=lambda exchange: exchange.bytes_per_second)
    detail = f"{min(rates):.2g} to {max(rates):.2g} GB/s, slowest {' and '.join(slowest.nodes)}"
    yield make_check("pairs", problems, detail)
