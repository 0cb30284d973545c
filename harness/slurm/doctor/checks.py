"""What an examination means: the list of checks, each with what was found and, if it failed, what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.slurm.doctor.lead import Examination
from harness.slurm.doctor.node import Report, Software
from harness.slurm.doctor.step import Reduced
from harness.spec.cluster import Profile

CLOCKS = 0.5  # seconds that two clocks may be apart: which rank failed first is told by them


@dataclass(frozen=True, kw_only=True)
class Check:
    what: str
    passed: bool | None  # None: not tried, because of what failed before
    found: str


def check(what: str, problems: Sequence[str], well: str) -> Check:
    return Check(what=what, passed=not problems, found="; ".join(problems) or well)


def of_job(profile: Profile, folder: Path, here: Software, found: Examination) -> list[Check]:
    """Everything that the job has tried."""
    slurm, reports = profile.slurm, found.reports
    told = [f"{node} did not report: {words}" for node, words in found.silent.items()]
    if not reports:
        return [check("nodes", told, "")]
    unshared = [
        f"{one.node}: {folder}: {one.folder}; is it shared with this node?"
        for one in reports
        if one.folder
    ]
    names = [
        f"{one.node} can't look up {name} ({why}): add it to DNS or /etc/hosts"
        for one in reports
        for name, why in one.unresolved.items()
    ]
    ports = [
        f"{one.node} can't reach {one.unreachable}: a firewall?"
        for one in reports
        if one.unreachable
    ]
    ahead = {one.node: one.ahead for one in reports if one.ahead is not None}
    apart = max(ahead.values(), default=0.0) - min(ahead.values(), default=0.0)
    late = (
        [f"{_clocks(ahead)}: {apart:.3g} s apart; allowed: {CLOCKS} s (is NTP at work?)"]
        if apart > CLOCKS
        else []
    )
    return [
        check("nodes", told, ", ".join(one.node for one in reports)),
        check("folder", unshared, f"{folder} is seen and written by all"),
        *_software(profile, here, reports),
        check("names", names, "every node looks up every other"),
        check("ports", ports, f"every node reaches {found.nodes[0]}"),
        check("clocks", late, f"{apart * 1e3:.2g} ms apart"),
        *_interface(slurm.interface, reports),
        *_gpus(slurm.ranks_per_node * slurm.gpus_per_rank, reports),
        of_reduction(found.reduced),
    ]


def of_reduction(found: Reduced | None) -> Check:
    """The sum over all ranks."""
    if found is None:
        return Check(what="all-reduce", passed=None, found="not tried")
    well = f"{found.backend} over {found.ranks} ranks in {found.seconds or 0:.1f} s"
    return check("all-reduce", [found.failure] if found.failure else [], well)


def _software(profile: Profile, here: Software, reports: Sequence[Report]) -> Iterator[Check]:
    """Everywhere the same; Python and torch as here too, unless the profile names another Python."""
    other = profile.slurm.prefix or profile.slurm.python
    for what, word in (("python", "Python"), ("torch", "torch"), ("harness", "harness")):
        wanted = getattr(reports[0].software if other and what != "harness" else here, what)
        found = {one.node: getattr(one.software, what) or "none" for one in reports}
        differs = [f"{node} has {value}" for node, value in found.items() if value != wanted]
        whose = reports[0].node if other and what != "harness" else "this machine"
        more = f"; {whose} has {wanted or 'none'}: let all use the same environment, on the shared folder"
        yield check(word, [", ".join(differs) + more] if differs else [], f"{wanted}")


def _interface(name: str | None, reports: Sequence[Report]) -> Iterator[Check]:
    if name is not None:
        lacking = [one for one in reports if name not in one.interfaces]
        problems = [
            f"{one.node} has no {name}; allowed: {', '.join(one.interfaces)}" for one in lacking
        ]
        yield check("interface", problems, name)


def _gpus(needed: int, reports: Sequence[Report]) -> Iterator[Check]:
    if needed:
        lacking = [
            f"{one.node} shows {one.gpus}; needed: {needed}" for one in reports if one.gpus < needed
        ]
        yield check("GPUs", lacking, f"{needed} at each node")


def _clocks(ahead: dict[str, float]) -> str:
    """The two that are furthest apart."""
    early, late = max(ahead, key=lambda node: ahead[node]), min(ahead, key=lambda node: ahead[node])
    return f"{early} is behind {late}"
