"""`harness init`: a first sweep, of a script as it is or of a small workload to change, tried once."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from harness.core.cores import usable_cores
from harness.core.errors import BadInput, HarnessError
from harness.core.paths import Results, TrialFolder, safe_folder_name
from harness.core.scratch import run_folder
from harness.launch import sweep as runner
from harness.launch.runner import TrialListener
from harness.preflight.script_facts import ScriptFacts, lower_is_better, read_script
from harness.records.record import Record
from harness.reproduce.rebuild import ANY_SPEED
from harness.spec.cell import PLACEHOLDER
from harness.spec.cluster import load_profile
from harness.spec.document import parse_value
from harness.spec.sweep import Sweep, load_sweep
from harness.spec.sweepfile import NAME
from workloads.catalog import find_source, is_script

EXAMPLE = Path(__file__).parent.parent / "guide" / "examples" / "first"
FIRST_STEPS = 20  # of the trial that shows how long a step takes
WARMUP = 3  # steps of it that are not measured
TRIAL_SECONDS = 4.0  # that the slowest trial of the sweep should train
MIN_STEPS, MAX_STEPS = 60, 2000  # of them
ENDED_EARLY = "had no effect"  # of a length that the script does not reach
LR_NAMES = ("lr", "learning_rate")
MAX_TRIAL_SECONDS = 600.0  # for one that is tried


@dataclass(frozen=True, kw_only=True)
class FirstSweep:
    """What `harness init` has written, and how it was tried."""

    facts: ScriptFacts | None  # None without a script
    written: Sequence[Path]
    record: Record  # of the trial that was run to try it
    trials: int  # of the sweep
    seconds: float  # that they take, about


class _RecordKeeper(TrialListener):
    """A listener that keeps the records, whose columns are in memory and not in a file."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def on_trial_end(self, record: Record, folder: TrialFolder) -> None:
        """Keep the record."""
        self.records.append(record)


def start_from_example(folder: Path, on_progress: Callable[[str], None]) -> FirstSweep:
    """Write a small workload and its sweep into `folder`, and try them.

    Raises BadInput if one of the files exists, HarnessError if the trial fails.
    """
    paths = {
        folder / source.name: source for source in sorted(EXAMPLE.iterdir()) if source.is_file()
    }
    _refuse_existing(paths)
    for path, source in paths.items():
        _write(path, source.read_text(encoding="utf-8"))
    on_progress("one short trial")
    sweep = load_sweep(folder / "sweep.yaml")
    settings = (f"length.steps={MIN_STEPS}", "seeds=1")
    (record,) = _try(load_sweep(folder / "sweep.yaml", settings))
    seconds = 0.0
    for cell in sweep.cells:
        assert record.rank0 is not None
        assert record.rank0.train_samples is not None
        assert cell.length.epochs is not None
        samples = cell.length.epochs * record.rank0.train_samples
        rate = record.summary.throughput if record.summary is not None else None
        seconds += sweep.count_trials(cell) * (samples / rate if rate else 0.0)
    trials = sum(map(sweep.count_trials, sweep.cells))
    return FirstSweep(
        facts=None, written=list(paths), record=record, trials=trials, seconds=seconds
    )


def start_from_script(
    script: Path, arguments: Sequence[str], on_progress: Callable[[str], None]
) -> FirstSweep:
    """Write a sweep that runs a script as it is, next to it, and try it.

    `arguments` are those that the script needs. Raises BadInput for a script that is missing, if the
    sweep file exists, and for an option that the script requires and does not get; HarnessError if
    the trial fails. Then nothing is written.
    """
    if script.suffix != ".py":
        raise BadInput(f"{script}: found no .py; allowed: a Python file")
    if not NAME.fullmatch(script.stem):
        raise BadInput(f"{script}: found another name; allowed: letters, digits, ., - and _")
    path = script.with_suffix(".yaml")
    _refuse_existing([path])
    try:
        if not is_script(script.name, script.parent):
            raise BadInput(
                f"{script}: found a file with a workload; allowed: a script; name it as"
                f" `uses: {script.name}` in a sweep (harness init without a file writes one)"
            )
        files = find_source(script.name, script.parent).files.values()
    except (ValueError, SyntaxError) as error:
        raise BadInput(str(error)) from None
    facts = read_script(script, list(files))
    _check_required(script, facts, arguments)
    on_progress(f"{FIRST_STEPS} steps")
    steps, records = _find_length(script, facts, arguments, on_progress)
    _write(path, sweep_text(script.name, facts, arguments, steps))
    sweep = load_sweep(path)
    mean_seconds = fmean(record.ended - record.started for record in records)
    trials = sum(map(sweep.count_trials, sweep.cells))
    return FirstSweep(
        facts=facts,
        written=[path],
        record=records[0],
        trials=trials,
        seconds=trials * mean_seconds,
    )


def _find_length(
    script: Path, facts: ScriptFacts, arguments: Sequence[str], on_progress: Callable[[str], None]
) -> tuple[int | None, list[Record]]:
    """Return how many steps the trials should train, and the records of one of each cell.

    None for a script that ends earlier: it is left to end itself.
    """
    records = _try_script(script, facts, arguments, FIRST_STEPS, all_cells=True)
    if records is not None:
        seconds = 1e-6  # of a step after the first few, of the slowest cell
        for record in records:
            step_seconds = record.ranks[0].step_seconds
            assert step_seconds is not None
            seconds = max(seconds, float(step_seconds[WARMUP:].mean()))
        steps = 10 * round(min(MAX_STEPS, max(MIN_STEPS, TRIAL_SECONDS / seconds)) / 10)
        on_progress(f"{steps} steps")
        records = _try_script(script, facts, arguments, steps, all_cells=True)
        if records is not None:
            return steps, records
    records = _try_script(script, facts, arguments, None)
    assert records is not None  # without a length there is none to miss
    return None, records


def _try_script(
    script: Path,
    facts: ScriptFacts,
    arguments: Sequence[str],
    steps: int | None,
    *,
    all_cells: bool = False,
) -> list[Record] | None:
    """Train each cell, or the first, for so many steps; None if the script ends earlier.

    The sweep is a temporary file next to the script, as paths are relative to it.
    """
    text = sweep_text(script.name, facts, arguments, steps)
    with tempfile.NamedTemporaryFile(
        "w", suffix=".yaml", prefix=".harness-init-", dir=script.parent, encoding="utf-8"
    ) as file:
        file.write(text)
        file.flush()
        settings = ("seeds=1", f"warmup={WARMUP}")
        try:
            return _try(load_sweep(Path(file.name), settings), all_cells=all_cells)
        except _EndedEarly:
            return None


class _EndedEarly(HarnessError):
    """A script that took fewer steps than it was to take."""


def _try(sweep: Sweep, *, all_cells: bool = False) -> list[Record]:
    """Train one trial of each cell, or of the first, in a temporary folder; return the records.

    Raises HarnessError with the failure and the log if it fails.
    """
    profile = replace(load_profile("local"), validity=ANY_SPEED)
    cells = sweep.cells if all_cells else sweep.cells[:1]
    tried = replace(sweep, cells=cells, timeout=min(sweep.timeout, MAX_TRIAL_SECONDS))
    with run_folder("init") as scratch:
        folder = Results(scratch).sweep_folder(sweep.name)
        listener = _RecordKeeper()
        runner.run(tried, profile, folder, listener, redo="all", fail_fast=True)
        for record in listener.records:
            if record.failure is None:
                continue
            if record.failure.kind == "NotApplied" and ENDED_EARLY in record.failure.message:
                raise _EndedEarly(record.failure.message)
            log = folder.trial_folder(record.trial.id).path / (record.failure.log or "")
            raise HarnessError(f"the trial failed: {record.failure}; log: {log}")
        return listener.records


def sweep_text(script: str, facts: ScriptFacts, arguments: Sequence[str], steps: int | None) -> str:
    """Return the commented sweep file that runs a script as it is."""
    words, options = _command_line(facts, arguments)
    name = _plain_or_quoted(safe_folder_name(Path(script).stem))
    lines = [
        f"# Runs {script} as it is, with its own loop. The guide's page on workloads says all of it.",
        f"name: {name}",
        "workloads:",
        f"  {name}:",
        f"    uses: {_plain_or_quoted(script)}",
        "    # Its command line. Words in braces get values: {NAME} of an option or an axis, {seed}, {steps},",
        "    # {folder} (the trial's own, for what the script writes).",
        f"    arguments: {_quoted(words)}" if words else "    # arguments: --lr {lr}",
    ]
    if options:
        values = ", ".join(f"{key}: {value}" for key, value in options.items())
        lines.append(f"    options: {{{values}}}")
    target = "    # target: accuracy  # if the script calls harness.report(accuracy=…)"
    if facts.metrics:
        metric = facts.metrics[0]
        higher = str(not lower_is_better(metric)).lower()
        target = (
            f"    target: {{name: {metric}, higher_is_better: {higher}}}  # check the direction"
        )
    lines.append(target)
    lines.append("# Every combination of these is a cell, which is compared with the first.")
    more = [f"options.{key}: [{value}, …]" for key, value in options.items()]
    if more:
        lines.append(f"# Also possible, instead of `options` above: {'; '.join(more)}")
    axis = "world_size" if facts.is_distributed else "num_threads"
    values_of_axis = "[1, 2]" if len(usable_cores()) > 1 else "[1]"
    lines += ["matrix:", f"  {axis}: {values_of_axis}"]
    lines.append("seeds: 5  # 0 to 4; as many trials of a cell suffice for a verdict")
    length = "# length: 300 steps  # ends each trial there; without it, the script ends itself"
    if steps is not None:
        length = (
            f"length: {steps} steps  # each trial ends there; without it, the script ends itself"
        )
    lines.append(length)
    return "\n".join(lines) + "\n"


def _plain_or_quoted(text: str) -> str:
    """Return a text as YAML, in quotes where it would be read as another value, such as `on`."""
    with suppress(BadInput):
        if parse_value(text, "") == text:
            return text
    return json.dumps(text, ensure_ascii=False)


def _quoted(words: Sequence[str]) -> str:
    """Return a command line as a text of YAML that reads as it is typed."""
    # Braces need no quotes in it: it is split as a shell does, and not run by one.
    plain = [
        word if PLACEHOLDER.search(word) and " " not in word else shlex.quote(word)
        for word in words
    ]
    return json.dumps(" ".join(plain), ensure_ascii=False)


def _command_line(
    facts: ScriptFacts, arguments: Sequence[str]
) -> tuple[list[str], dict[str, object]]:
    """Return the words of the command line with placeholders, and the options that they name.

    Options of the script's argparse for the seed and the learning rate are among them, unless
    `arguments` has them.
    """
    words, options = list(arguments), dict[str, object]()
    for option in facts.options:
        if option.is_given(arguments) or not option.flag.startswith("-"):
            continue
        if option.name == "seed":
            words += [option.flag, "{seed}"]
        elif option.name in LR_NAMES and isinstance(option.default, float):
            words += [option.flag, f"{{{option.name}}}"]
            options[option.name] = option.default
    return words, options


def _check_required(script: Path, facts: ScriptFacts, arguments: Sequence[str]) -> None:
    """Raise BadInput for an option that the script requires, and that `arguments` lacks."""
    for option in facts.options:
        if option.is_required and not option.is_given(arguments):
            raise BadInput(
                f"{script}: found no {option.flag}, which it requires; allowed: its command line after"
                f" it, as in `harness init {script} {option.flag} VALUE`"
            )


def _refuse_existing(paths: Iterable[Path]) -> None:
    """Raise BadInput if one of the files exists: it is never overwritten."""
    for path in paths:
        if path.exists():
            raise BadInput(f"{path}: exists, and is not overwritten; move it, or run it as it is")


def _write(path: Path, text: str) -> None:
    """Write a new file; raises BadInput if it exists by now."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise BadInput(
            f"{path}: exists, and is not overwritten; move it, or run it as it is"
        ) from None
