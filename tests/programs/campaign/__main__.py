"""Runs a campaign: chooses faults, strikes them in two processes, and prints what came of them."""

from __future__ import annotations

import argparse
import json
import random
import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from harness.core.processes import die_with_parent, ending_descendants
from tests.programs.campaign.actors import ActorCampaign
from tests.programs.campaign.calls import CallCampaign
from tests.programs.campaign.damage import DamageCampaign
from tests.programs.campaign.gates import GateCampaign
from tests.programs.campaign.oracle import FINDING_KINDS
from tests.programs.campaign.signals import SignalCampaign
from tests.programs.campaign.stage import SweepStage

# Of the faults that fit into a campaign, how many each kind gets.
SHARES = {"calls": 10, "signals": 2, "actors": 1, "damage": 5, "gates": 1}
NOT_SURVIVED = {"lost", "doubled", "differing", "hung"}
WORKERS = 2  # processes side by side
Campaign = CallCampaign | SignalCampaign | ActorCampaign | DamageCampaign | GateCampaign


def main() -> None:
    """Run the campaign that the command line asks for; exit with 1 if the oracle was contradicted."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.campaign", description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="a folder for the results")
    parser.add_argument("--minutes", type=float, default=60, help="start no fault after these")
    parser.add_argument(
        "--repeat", action="append", default=[], metavar="ADDRESS", help="strike just this fault"
    )
    options = parser.parse_args()
    output = options.output.absolute()
    output.mkdir(parents=True, exist_ok=True)
    seed = time.time_ns()
    workers = []
    for number in range(WORKERS if not options.repeat else 1):
        arguments = (number, seed, output, options.minutes, options.repeat)
        worker = get_context("fork").Process(target=strike_all, args=arguments)
        worker.start()
        workers.append(worker)
    outcomes = []
    for number, worker in enumerate(workers):
        worker.join()
        text = log_path(output, number).read_text(encoding="utf-8")
        outcomes += [json.loads(line) for line in text.splitlines()]
    text = "\n".join([table(outcomes), "", *failures(outcomes, output)])
    (output / "table.txt").write_text(text + "\n", encoding="utf-8")
    print(text)
    failed = any(worker.exitcode for worker in workers)
    sys.exit(failed or any(outcome["findings"] for outcome in outcomes))


def log_path(output: Path, number: int) -> Path:
    """Return the file in which a worker leaves a line for each fault."""
    return output / f"outcomes-{number}.jsonl"


def strike_all(
    number: int, seed: int, output: Path, minutes: float, repeated: Sequence[str]
) -> None:
    """Strike every fault that falls to this worker, until time is up, and leave a line for each."""
    die_with_parent()
    folder = output / f"worker-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with ending_descendants(), log_path(output, number).open("w", encoding="utf-8") as log:
        stage = SweepStage(folder / "sweep")
        makers: Mapping[str, Callable[[], Campaign]] = {
            "calls": lambda: CallCampaign(stage),
            "signals": lambda: SignalCampaign(folder),
            "actors": lambda: ActorCampaign(stage),
            "damage": lambda: DamageCampaign(stage),
            "gates": lambda: GateCampaign(folder / "gates"),
        }
        names = {address.partition("/")[0] for address in repeated} or SHARES
        campaigns = {name: makers[name]() for name in names}
        chosen = repeated
        if not repeated:
            faults = {name: campaigns[name].faults(random.Random(seed)) for name in SHARES}
            chosen = interleave(faults)[number::WORKERS]
        deadline = time.monotonic() + 60 * minutes  # all is prepared only now
        for address in chosen:
            if time.monotonic() > deadline:
                break
            name = address.partition("/")[0]
            campaign = campaigns[name]
            started = time.monotonic()
            findings = campaign.strike(address)
            outcome = {
                "address": address,
                "row": f"{name}: {campaign.row(address)}",
                "was_reached": findings is not None,
                "findings": [vars(finding) for finding in findings or []],
                "seconds": time.monotonic() - started,
            }
            print(json.dumps(outcome), file=log, flush=True)
            if findings:
                print(*failures([outcome], output), sep="\n", flush=True)
                kept = output / "failures" / address.replace("/", "_").replace("*", "x")[:150]
                kept.mkdir(parents=True, exist_ok=True)
                for path in folder.glob("*/output-*"):
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
        counts.setdefault(outcome["row"], Counter()).update(counted)
    counts["all"] = sum(counts.values(), Counter[str]())
    width = max(map(len, counts))
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
            lines.append(shlex.join([*command, "--repeat", outcome["address"]]))
        for finding in outcome["findings"]:
            lines.append(f"    {finding['kind']}: {finding['text']}")
    return lines


if __name__ == "__main__":
    main()
