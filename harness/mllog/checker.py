"""Asks MLCommons' compliance checker, of the package `mlperf-logging`, about logs.

Its rules name the benchmarks that there are, so those of training 6.1.0 are used with one change: the
list of benchmarks is ours. They are taken from the installed package, as they are there.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.core.errors import BadInput, HarnessError
from harness.core.processes import run_command
from harness.core.scratch import ScratchFolder

PACKAGE = "mlperf_logging"
INSTALL = "pip install 'distributed-training-harness[mllog]'"
RULESET = "6.1.0"
# The rules that all logs of training share, and those that all logs of the closed division do; the
# open division demands less.
RULE_FILES = (f"training_{RULESET}/common.yaml", f"training_{RULESET}/closed_common.yaml")
BENCHMARK = "submission_benchmark"
# A statement that has the checker apply further rules, of a division or a benchmark of MLPerf.
FURTHER_RULES = "enqueue_config("
ACCEPTED, REFUSED = "SUCCESS", "FAILED"  # what the checker logs in the end
TIMEOUT = 60.0  # seconds; it takes a fraction of one


@dataclass(frozen=True, kw_only=True)
class CheckerAnswer:
    """The answer of the checker to a log."""

    accepted: bool
    output: str  # of the checker, unchanged

    @property
    def verdict(self) -> str:
        """Return the checker's own word."""
        return ACCEPTED if self.accepted else REFUSED


def check_logs(paths: Sequence[Path], benchmarks: Sequence[str]) -> list[CheckerAnswer]:
    """Return the checker's answer to each log, with warnings taken as errors.

    `benchmarks` are the names that logs may give their benchmark. Raises BadInput where the checker
    is not installed, and HarnessError where it has ended without an answer.
    """
    answers = []
    with ScratchFolder("mllog") as scratch:
        rules_path = scratch.path / "rules.yaml"
        rules_path.write_text(yaml.safe_dump(rules(benchmarks), sort_keys=False), encoding="utf-8")
        for path in paths:
            answers.append(_check(path, rules_path))
    return answers


def rules(benchmarks: Sequence[str]) -> list[Any]:
    """Return the rules of the installed checker, with `benchmarks` in place of MLPerf's.

    Raises BadInput where it is not installed.
    """
    specification = importlib.util.find_spec(PACKAGE)
    if specification is None or specification.origin is None:
        raise BadInput(f"--check: found no package {PACKAGE}; allowed with it: {INSTALL}")
    folder = Path(specification.origin).parent / "compliance_checker"
    merged: list[Any] = []
    for name in RULE_FILES:
        try:
            text = (folder / name).read_text(encoding="utf-8")
        except OSError as error:
            raise BadInput(
                f"{folder / name}: {error.strerror}; allowed: a newer {PACKAGE}"
            ) from None
        # As the checker loads it: all scalars are text.
        merged += yaml.load(text, Loader=yaml.BaseLoader)
    for entry in merged:
        rule = entry.get("KEY", {})
        if rule.get("NAME") == BENCHMARK:
            rule["CHECK"] = f"v['value'] in {list(benchmarks)!r}"
        if "POST" in rule:
            statements = [statement.strip() for statement in rule["POST"].split(";")]
            remaining = [text for text in statements if not text.startswith(FURTHER_RULES)]
            rule["POST"] = "; ".join(remaining)
    return merged


def _check(path: Path, rules_path: Path) -> CheckerAnswer:
    """Return the answer to one log."""
    command = [sys.executable, "-m", f"{PACKAGE}.compliance_checker"]
    command += ["--ruleset", RULESET, "--config", str(rules_path), "--werror"]
    # Without it, the checker leaves a file in the current folder.
    command += ["--log_output", str(rules_path.with_name("checker.log"))]
    command.append(str(path.absolute()))
    completed = run_command(command, timeout=TIMEOUT, remedy=f"it checked {path}")
    output = completed.stderr
    # After an exception the exit code is 1 too, but the output has neither word.
    accepted = completed.returncode == 0 and ACCEPTED in output
    refused = completed.returncode == 1 and REFUSED in output
    if not accepted and not refused:
        raise HarnessError(f"{path}: the checker ended without an answer: {output.strip()[-500:]}")
    return CheckerAnswer(accepted=accepted, output=output)
