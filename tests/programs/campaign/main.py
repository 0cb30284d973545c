"""Runs a campaign: chooses faults, strikes them in several processes, and prints what came of them."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.core.processes import die_with_parent
from tests.programs.campaign import shim, warm
from tests.programs.campaign.oracle import FINDING_KINDS, Finding

# Of the faults that fit into a campaign, how many each kind gets.
SHARES = {"calls": 10, "signals": 2, "actors": 1, "damage": 5, "gates": 1, "slurm": 1}
DEFAULT_KINDS = ("calls", "signals", "actors", "damage", "gates")  # slurm needs root and daemons
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # Arrow's allocator would start a thread, and a process with threads is not to be forked.
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
NOT_SURVIVED = {"lost", "doubled", "differing", "hung"}


class Campaign(Protocol):
    """Faults of one kind, and what they strike."""

    def faults(self, seed: int) -> Sequence[Any]:
        """Return all faults in the order in which they strike."""
        ...

    def strike(self, fault: Any) -> list[Finding] | None:
        """Let a fault strike, run the sweep again, and judge; None if it was never reached."""
        ...

    def output_files(self) -> list[Path]:
        """Return the files with what the commands of the last fault printed."""
        ...

    def close(self) -> None:
        """End what was started for all faults."""
        ...


class Fault(Protocol):
    """One fault, which its address is enough to repeat."""

    @property
    def address(self) -> str:
        """Return the text that the fault is parsed from."""
        ...

    @property
    def row(self) -> str:
        """Return the row of the table that counts it."""
        ...


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one fault."""

    address: str
    kind: str
    row: str
    was_reached: bool
    findings: Sequence[Finding]
    seconds: float


def kinds() -> Mapping[str, tuple[Any, Any]]:
    """Return the classes of each kind's campaign and of its faults, by name."""
    from tests.programs.campaign.actors import ActorCampaign, ActorFault
    from tests.programs.campaign.calls import CallCampaign, CallFault
    from tests.programs.campaign.damage import DamageCampaign, DamageFault
    from tests.programs.campaign.gates import GateCampaign, GateFault
    from tests.programs.campaign.signals import SignalCampaign, SignalFault
    from tests.programs.campaign.slurm import SlurmCampaign

    return {
        "calls": (CallCampaign, CallFault),
        "signals": (SignalCampaign, SignalFault),
        "actors": (ActorCampaign, ActorFault),
        "damage": (DamageCampaign, DamageFault),
        "gates": (GateCampaign, GateFault),
        "slurm": (SlurmCampaign, SignalFault),
    }


def main() -> None:
    """Run the campaign that the command line asks for; exit with 1 if the oracle was contradicted."""
    options = _parse()
    options.output.mkdir(parents=True, exist_ok=True)
    if shim.CONTROL_VARIABLE not in os.environ:
        _start_with_shim(options.output.absolute())
    shim.enter("driver")
    warm.preload()
    workers = [_start_worker(number, options) for number in range(options.workers)]
    failed = [os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) for worker in workers]
    outcomes = _read_outcomes(options.output)
    text = "\n".join([table(outcomes), "", *failures(outcomes, options.output)])
    (options.output / "table.txt").write_text(text + "\n", encoding="utf-8")
    print(text)
    has_failures = any(outcome.findings for outcome in outcomes)
    sys.exit(1 if has_failures or any(failed) else 0)


def _parse() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.campaign", description=__doc__)
    parser.add_argument(
        "kinds", nargs="*", help=f"of faults: {', '.join(SHARES)}; default: all but slurm"
    )
    parser.add_argument("--output", type=Path, required=True, help="a folder for the results")
    parser.add_argument("--minutes", type=float, default=60, help="start no fault after these")
    parser.add_argument("--limit", type=int, help="strike at most so many faults")
    parser.add_argument("--seed", type=int, default=0, help="decides which faults come first")
    parser.add_argument("--workers", type=int, default=2, help="processes side by side")
    parser.add_argument(
        "--repeat", action="append", default=[], metavar="ADDRESS", help="strike just this fault"
    )
    options = parser.parse_args()
    for name in options.kinds:
        if name not in SHARES:
            parser.error(f"kinds: found {name!r}; allowed: {', '.join(SHARES)}")
    return options


def _start_with_shim(output: Path) -> None:
    """Become this program again, with the shim loaded; does not return."""
    library = shim.compile_shim(output)
    page = output / "control"
    shim.create_page(page)
    os.environ.update(ENVIRONMENT)
    os.environ[shim.PRELOAD_VARIABLE] = str(library)
    os.environ[shim.CONTROL_VARIABLE] = str(page)
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "tests.programs.campaign", *sys.argv[1:]])


def _start_worker(number: int, options: argparse.Namespace) -> int:
    """Fork a process that strikes its part of the faults, and return its id."""
    pid = os.fork()
    if pid:
        return pid
    exit_code = 1
    try:
        die_with_parent()
        folder = options.output.absolute() / f"worker-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        shim.use_page(folder / "control")
        shim.enter("driver")
        warm.adopt_orphans()
        _strike_all(number, folder, options)
        exit_code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(exit_code)


def _strike_all(number: int, folder: Path, options: argparse.Namespace) -> None:
    """Strike every fault that falls to this worker, until time is up."""
    deadline = time.monotonic() + 60 * options.minutes
    available = kinds()
    campaigns: dict[str, Campaign] = {}
    if options.repeat:
        faults = [(address.partition("/")[0], address) for address in options.repeat]
        chosen = [(name, available[name][1].parse(address)) for name, address in faults]
    names = {name for name, _ in chosen} if options.repeat else options.kinds or DEFAULT_KINDS
    for name in names:
        campaigns[name] = available[name][0].prepare(folder)
    if not options.repeat:
        chosen = interleave({name: campaigns[name].faults(options.seed) for name in names})
    log = options.output / f"outcomes-{number}.jsonl"
    log.unlink(missing_ok=True)
    for name, fault in chosen[: options.limit][number :: options.workers]:
        if time.monotonic() > deadline:
            break
        outcome = _strike(name, campaigns[name], fault)
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")
        _report(outcome, campaigns[name], options.output)
    for campaign in campaigns.values():
        campaign.close()


def _strike(name: str, campaign: Campaign, fault: Fault) -> Outcome:
    """Strike one fault."""
    started = time.monotonic()
    findings = campaign.strike(fault)
    return Outcome(
        address=fault.address,
        kind=name,
        row=fault.row,
        was_reached=findings is not None,
        findings=findings or [],
        seconds=time.monotonic() - started,
    )


def interleave(faults: Mapping[str, Sequence[Fault]]) -> list[tuple[str, Fault]]:
    """Return all faults with their kinds, in an order of which every part has the same SHARES."""
    positions = []
    for name, its_faults in faults.items():
        for index, fault in enumerate(its_faults):
            positions.append(((index + 0.5) / SHARES[name], name, fault))
    positions.sort(key=lambda position: position[:2])
    return [(name, fault) for _, name, fault in positions]


def _report(outcome: Outcome, campaign: Campaign, output: Path) -> None:
    """Print a fault that the oracle was contradicted by, and keep what its commands printed."""
    if not outcome.findings:
        return
    print(
        f"{outcome.address}", *(f"\n    {f.kind}: {f.text}" for f in outcome.findings), flush=True
    )
    name = outcome.address.replace("/", "_").replace("*", "x")[:150]
    folder = output / "failures" / name
    folder.mkdir(parents=True, exist_ok=True)
    for path in campaign.output_files():
        with suppress(OSError):
            shutil.copy(path, folder)


def _read_outcomes(output: Path) -> list[Outcome]:
    """Return what all workers have written."""
    outcomes = []
    for path in sorted(output.glob("outcomes-*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            content = json.loads(line)
            content["findings"] = [Finding(**finding) for finding in content["findings"]]
            outcomes.append(Outcome(**content))
    return outcomes


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the table of outcomes, a row for each kind of fault and one for all."""
    rows: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in sorted(outcomes, key=lambda outcome: (outcome.kind, outcome.row)):
        if outcome.was_reached:
            rows[f"{outcome.kind}: {outcome.row}"].append(outcome)
            rows[f"{outcome.kind}: all"].append(outcome)
            rows["all"].append(outcome)
    columns = ["faults", "survived", *FINDING_KINDS]
    width = max((len(row) for row in rows), default=0)
    lines = [" " * width + "".join(f"{column:>13}" for column in columns)]
    for row in sorted(rows, key=lambda row: (row == "all", row)):
        counts = _counts(rows[row])
        lines.append(f"{row:{width}}" + "".join(f"{counts[column]:>13}" for column in columns))
    seconds = sum(outcome.seconds for outcome in outcomes)
    reached = sum(outcome.was_reached for outcome in outcomes)
    lines.append(
        f"{reached} faults, {len(outcomes) - reached} not reached, {seconds:.0f} s of work"
    )
    return "\n".join(lines)


def _counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Return how many of the faults survived, and how many have each kind of finding."""
    kinds_of_faults = [{finding.kind for finding in outcome.findings} for outcome in outcomes]
    counts = {"faults": len(outcomes)}
    counts["survived"] = sum(not kinds & NOT_SURVIVED for kinds in kinds_of_faults)
    for kind in FINDING_KINDS:
        counts[kind] = sum(kind in kinds for kinds in kinds_of_faults)
    return counts


def failures(outcomes: Sequence[Outcome], output: Path) -> list[str]:
    """Return a paragraph for each fault that the oracle was contradicted by."""
    lines = []
    for outcome in outcomes:
        if outcome.findings:
            command = ["python", "-m", "tests.programs.campaign", "--output", str(output)]
            command += ["--workers", "1", "--repeat", outcome.address]
            lines.append(shlex.join(command))
            lines += [f"    {finding.kind}: {finding.text}" for finding in outcome.findings]
    return lines
