"""Runs a campaign: chooses faults, strikes them in several processes, and prints what came of them."""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core.processes import die_with_parent
from harness.launch.forkserver import WITHOUT_THREADS
from tests.programs.campaign import shim, warm
from tests.programs.campaign.oracle import FINDING_KINDS
from tests.programs.campaign.stage import Campaign

# Of the faults that fit into a campaign, how many each kind gets.
SHARES = {"calls": 10, "signals": 2, "actors": 1, "damage": 5, "gates": 1}
NOT_SURVIVED = {"lost", "doubled", "differing", "hung"}


def campaigns() -> Mapping[str, Callable[[Path], Campaign]]:
    """Return what makes the campaign of each kind, in a folder of its own."""
    # Only now: what they import is loaded once for all workers, after the shim.
    from tests.programs.campaign.actors import ActorCampaign
    from tests.programs.campaign.calls import CallCampaign
    from tests.programs.campaign.damage import DamageCampaign
    from tests.programs.campaign.gates import GateCampaign
    from tests.programs.campaign.signals import SignalCampaign

    return {
        "calls": CallCampaign,
        "signals": SignalCampaign,
        "actors": ActorCampaign,
        "damage": DamageCampaign,
        "gates": GateCampaign,
    }


def main() -> None:
    """Run the campaign that the command line asks for; exit with 1 if the oracle was contradicted."""
    options = parse()
    options.output.mkdir(parents=True, exist_ok=True)
    if shim.CONTROL_VARIABLE not in os.environ:
        start_with_shim(options.output.absolute())
    shim.enter("driver")
    warm.preload()
    workers = [start_worker(number, options) for number in range(options.workers)]
    failed = [os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) for worker in workers]
    outcomes = []
    for path in sorted(options.output.glob("outcomes-*.jsonl")):
        outcomes += [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    text = "\n".join([table(outcomes), "", *failures(outcomes, options.output)])
    (options.output / "table.txt").write_text(text + "\n", encoding="utf-8")
    print(text)
    sys.exit(any(failed) or any(outcome["findings"] for outcome in outcomes))


def parse() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.campaign", description=__doc__)
    parser.add_argument("kinds", nargs="*", help=f"of faults: {', '.join(SHARES)}; default: all")
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


def start_with_shim(output: Path) -> None:
    """Become this program again, with the shim loaded; does not return."""
    library = shim.compile_shim(output)
    page = output / "control"
    shim.create_page(page)
    os.environ.update(WITHOUT_THREADS, OMP_NUM_THREADS="1")
    os.environ[shim.PRELOAD_VARIABLE] = str(library)
    os.environ[shim.CONTROL_VARIABLE] = str(page)
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    os.execv(sys.executable, [sys.executable, "-m", "tests.programs.campaign", *sys.argv[1:]])


def start_worker(number: int, options: argparse.Namespace) -> int:
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
        strike_all(number, folder, options)
        exit_code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(exit_code)


def strike_all(number: int, folder: Path, options: argparse.Namespace) -> None:
    """Strike every fault that falls to this worker, until time is up, and leave a line for each."""
    deadline = time.monotonic() + 60 * options.minutes
    available = campaigns()
    names = options.kinds or list(SHARES)
    if options.repeat:
        names = {address.partition("/")[0] for address in options.repeat}
    made = {name: available[name](folder / name) for name in names}
    chosen = options.repeat
    if not chosen:
        seed = options.seed
        chosen = interleave({name: made[name].faults(random.Random(seed)) for name in names})
    log = options.output / f"outcomes-{number}.jsonl"
    log.unlink(missing_ok=True)
    for address in chosen[: options.limit][number :: options.workers]:
        if time.monotonic() > deadline:
            break
        campaign = made[address.partition("/")[0]]
        started = time.monotonic()
        findings = campaign.strike(address)
        outcome = {
            "address": address,
            "row": f"{address.partition('/')[0]}: {campaign.row(address)}",
            "was_reached": findings is not None,
            "findings": [vars(finding) for finding in findings or []],
            "seconds": time.monotonic() - started,
        }
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(outcome) + "\n")
        if findings:
            print(*failures([outcome], options.output), sep="\n", flush=True)
            name = address.replace("/", "_").replace("*", "x")[:150]
            kept = options.output / "failures" / name
            kept.mkdir(parents=True, exist_ok=True)
            for path in campaign.output_files():
                shutil.copy(path, kept)


def interleave(faults: Mapping[str, Sequence[str]]) -> list[str]:
    """Return all faults by kind in an order of which every part has the same SHARES."""
    positions = []
    for name, addresses in faults.items():
        for index, address in enumerate(addresses):
            positions.append(((index + 0.5) / SHARES[name], name, address))
    positions.sort(key=lambda position: position[:2])
    return [address for _, _, address in positions]


def table(outcomes: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of outcomes, a row for each kind of fault and one for all."""
    columns = ["faults", "survived", *FINDING_KINDS]
    counts: dict[str, Counter[str]] = {}
    reached = [outcome for outcome in outcomes if outcome["was_reached"]]
    for outcome in sorted(reached, key=lambda outcome: outcome["row"]):
        found = {finding["kind"] for finding in outcome["findings"]}
        counted = {"faults", *found}
        if not found & NOT_SURVIVED:
            counted.add("survived")
        for row in (outcome["row"], "all"):
            counts.setdefault(row, Counter()).update(counted)
    if "all" in counts:
        counts["all"] = counts.pop("all")  # the last row
    width = max(map(len, counts), default=0)
    lines = [" " * width + "".join(f"{column:>13}" for column in columns)]
    for row, count in counts.items():
        lines.append(f"{row:{width}}" + "".join(f"{count[column]:>13}" for column in columns))
    seconds = sum(outcome["seconds"] for outcome in outcomes)
    missed = len(outcomes) - len(reached)
    lines.append(f"{len(reached)} faults, {missed} not reached, {seconds:.0f} s of work")
    return "\n".join(lines)


def failures(outcomes: Sequence[Mapping[str, Any]], output: Path) -> list[str]:
    """Return a paragraph for each fault that the oracle was contradicted by: how to repeat it, and why."""
    lines = []
    for outcome in outcomes:
        if outcome["findings"]:
            command = ["python", "-m", "tests.programs.campaign", "--output", str(output)]
            lines.append(shlex.join([*command, "--workers", "1", "--repeat", outcome["address"]]))
        for finding in outcome["findings"]:
            lines.append(f"    {finding['kind']}: {finding['text']}")
    return lines


if __name__ == "__main__":
    main()
