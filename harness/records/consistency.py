"""Finds contradictions in a record, which a faulty program may have put together.

A record with the right types and an intact seal may still contradict itself. `header_problem` needs
only the header and is checked wherever a record is read, `ranks_problem` wherever its columns are:
readers rely on what they check. `figures_problem` computes the figures again, for `harness results verify`.
All return the first contradiction as `KEY: found …; allowed: …`, None without any.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields

import msgspec

from harness.records.across import across_ranks
from harness.records.record import (
    AcrossRanks,
    RankResult,
    Record,
    Summary,
)
from harness.records.series import Numbers, Series, mean_over_ranks
from harness.spec.price import parse_price

# The figures of a summary that the times of its steps come to, and by how much they may differ:
# another version of NumPy adds in another order.
WINDOW_FIGURES = ("throughput", "step_p50", "step_p90", "step_p99")
TOLERANCE = 1e-6


def header_problem(record: Record) -> str | None:
    """Return the first contradiction in the header of a record."""
    problem = _status_problem(record) or _count_problem(record) or _price_problem(record)
    if problem is not None or record.summary is None:
        return problem
    for check in (_step_count_problem, _evaluation_problem, _confusion_problem, _range_problem):
        problem = check(record)
        if problem is not None:
            return problem
    return None


def ranks_problem(
    results: Sequence[RankResult], *, world_size: int, count: int, steps: int | None
) -> str | None:
    """Return the first contradiction between a record's header and the results of its ranks.

    `count` is that of the ranks that the header counts, of the trial's `world_size`. `steps` is the
    number of its losses, None of a trial that did not finish.
    """
    if len(results) != count:
        return f"ranks: found {len(results)}; allowed: the {count} that the header counts"
    problem = _rank_problem(results, world_size)
    if problem is not None or steps is None:
        return problem
    return _steps_problem(results, steps)


def figures_problem(record: Record) -> str | None:
    """Return the first figure of a record that its columns or its cell contradict.

    Raises BadFile for columns that are missing or damaged.
    """
    problem = _across_problem(record)
    if problem is not None or record.summary is None:
        return problem
    return _loss_problem(record) or _window_problem(record) or _evaluation_count_problem(record)


def _status_problem(record: Record) -> str | None:
    """Return what a record with such a status can't have, or must have."""
    is_complete = record.status in ("done", "invalid")
    required = {
        "summary": is_complete,
        "loss": is_complete,
        "order_digest": is_complete and not record.trial.cell.workload.is_script,
        "failure": not is_complete,
    }
    for key, is_required in required.items():
        if (getattr(record, key) is not None) != is_required:
            state = "nothing" if is_required else "something"
            return f"{key}: found {state} in a trial that is {record.status}"
    if is_complete and record.rank0 is None:
        return f"rank0: found nothing in a trial that is {record.status}"
    if (record.environment is None) != (record.rank0 is None):
        state = "nothing" if record.environment is None else "something"
        return f"environment: found {state}; rank0 says otherwise"
    if bool(record.violations) != (record.status == "invalid"):
        count = len(record.violations)
        return f"violations: found {count} in a trial that is {record.status}"
    return None


def _count_problem(record: Record) -> str | None:
    """Return whether ranks of a complete record are missing."""
    world_size = record.trial.cell.axes.world_size
    count = len(record.ranks)
    if count > world_size or (record.summary is not None and count < world_size):
        return f"ranks: found {count}; allowed: all {world_size} of them"
    return None


def _price_problem(record: Record) -> str | None:
    """Return whether the price that the trial ran at is none."""
    text = record.settings.profile.get("price_per_hour") if record.settings is not None else None
    try:
        if text is not None:
            parse_price(text)
    except (TypeError, ValueError):
        return f"settings.profile.price_per_hour: found {text!r}; allowed: a price, as in 2.49 USD"
    return None


def _rank_problem(results: Sequence[RankResult], world_size: int) -> str | None:
    """Return which ranks are double, none of the trial's, or contradict themselves."""
    ranks = [result.rank for result in results]
    if ranks != sorted(set(ranks)) or (ranks and ranks[-1] >= world_size):
        listed = ", ".join(map(str, ranks))
        return f"ranks: found {listed}; allowed: each of {world_size} once, in order"
    for index, result in enumerate(results):
        problem = rank_problem(result)
        if problem is not None:
            return f"ranks[{index}].{problem}"
    return None


def rank_problem(result: RankResult) -> str | None:
    """Return the first contradiction in what one rank left, None without any.

    It may be a reading with another number of samples than there were, or steps that are missing.
    """
    telemetry = result.telemetry
    if telemetry is None:
        return None
    samples = telemetry.sample_times.count
    for name, series in telemetry.readings.items():
        if series.count != samples:
            found = f"found {series.count} numbers; allowed: {samples}, as of sample_times"
            return f"telemetry.readings.{name}: {found}"
    if telemetry.joules is not None and telemetry.metered_steps == 0:
        return "telemetry.metered_steps: found 0; allowed: those that the joules were spent on"
    return None


def _step_count_problem(record: Record) -> str | None:
    """Return whether a complete record has other losses than those of all steps.

    Also how the trial was stopped, where that does not fit its cell or its length.
    """
    assert record.rank0 is not None
    assert record.loss is not None
    steps = length = record.trial.cell.length.in_steps(record.rank0.steps_per_epoch)
    stop = record.rank0.stop
    if (stop is None) != (record.trial.cell.stop is None):
        state = "nothing" if stop is None else "something"
        return f"rank0.stop: found {state}; its cell says otherwise"
    if stop is not None:
        steps = stop.step
        if steps > length or (stop.reason == "length" and steps != length):
            return f"rank0.stop.step: found {steps} by {stop.reason}; the length is {length}"
    if record.loss.count != steps:
        return f"loss: found {record.loss.count} steps; allowed: the {steps} of the trial"
    return None


def _steps_problem(results: Sequence[RankResult], steps: int) -> str | None:
    """Return which series has another length than the `steps` of a complete record.

    Also which rank has an interruption or a fingerprint of a step that is none of the trial's.
    """
    for index, result in enumerate(results):
        series = {"loss": result.loss, "step_seconds": result.step_seconds}
        for phase, seconds in result.step_phases.items():
            series[f"step_phases.{phase}"] = seconds
        for key, numbers in series.items():
            count = 0 if numbers is None else numbers.count
            if count != steps:
                found = f"found {count} steps; allowed: the {steps} of the trial"
                return f"ranks[{index}].{key}: {found}"
    for index, result in enumerate(results):
        if any(interruption.step > steps for interruption in result.interruptions):
            return f"ranks[{index}].interruptions: found a step after the last one, {steps}"
        chosen = result.fingerprinted_steps
        if chosen != results[0].fingerprinted_steps or any(step >= steps for step in chosen):
            problem = "found other steps than rank 0's, or one after the last"
            return f"ranks[{index}].fingerprints: {problem}"
    return None


def _evaluation_problem(record: Record) -> str | None:
    """Return which evaluation does not fit the trial, or which figure does not fit them."""
    assert record.rank0 is not None
    assert record.summary is not None
    report, target = record.rank0, record.rank0.target
    last_step = 0
    for index, evaluation in enumerate(report.evaluations):
        key = f"rank0.evaluations[{index}]"
        if target.name not in evaluation.metrics:
            return f"{key}.metrics.{target.name}: missing; it is the target metric"
        chosen_by = target.name if report.stop is None else report.stop.metric.name
        if chosen_by not in evaluation.deciding:
            return f"{key}: found no {chosen_by}, by which the best is chosen"
        assert record.loss is not None
        if not last_step <= evaluation.step <= record.loss.count:
            return f"{key}.step: found {evaluation.step}; allowed: {last_step} to the last one"
        last_step = evaluation.step
    final, best = report.final_evaluation, report.best_evaluation
    if final is None or best is None:
        return None
    figures = {
        "final_metric": final.metrics[target.name],
        "best_metric": best.metrics[target.name],
    }
    return _first_difference(record.summary, figures)


def _confusion_problem(record: Record) -> str | None:
    """Return which counts of classes do not fit each other."""
    assert record.rank0 is not None
    confusions = record.rank0.confusions
    if confusions is None:
        return None
    key, size = "rank0.confusions", len(confusions.classes)
    for name in ("support", "predicted", "correct"):
        count = len(getattr(confusions, name))
        if count != size:
            return f"{key}.{name}: found {count} numbers; allowed: {size}, as of classes"
    wrong = confusions.omitted
    for index, mistake in enumerate(confusions.mistakes):
        if len(mistake) != 3 or max(mistake[:2]) >= size:
            return (
                f"{key}.mistakes[{index}]: found {list(mistake)}; allowed: two classes and a count"
            )
        wrong += mistake[2]
    samples = sum(confusions.support)
    if sum(confusions.predicted) != samples or sum(confusions.correct) + wrong != samples:
        return f"{key}: found counts that do not add up to the {samples} samples of support"
    return None


def _across_problem(record: Record) -> str | None:
    """Return which figure of the header is not that of the results of the ranks.

    Telemetry is left out: other versions of NumPy round its means in another way.
    """
    computed = across_ranks(record.ranks)
    for entry in fields(AcrossRanks):
        if entry.name == "telemetry":
            continue
        figures = [getattr(across, entry.name) for across in (record.ranks.across, computed)]
        # As JSON, in which tuples and lists are the same.
        recorded, expected = (msgspec.json.encode(figure, order="sorted") for figure in figures)
        if recorded != expected:
            return f"ranks.{entry.name}: found another value than that of its ranks"
    return None


def _evaluation_count_problem(record: Record) -> str | None:
    """Return the first step of a complete record after which its cell wants an evaluation it lacks.

    Also one that it has and the cell does not want: every N steps, and after the last one.
    """
    assert record.rank0 is not None
    assert record.loss is not None
    if record.trial.cell.workload.is_script:
        return None  # it evaluates when it does
    steps = record.loss.count
    between = record.trial.cell.evaluate.in_steps(record.rank0.steps_per_epoch)
    expected = sorted({*range(between, steps + 1, between), steps})
    evaluated = [evaluation.step for evaluation in record.rank0.evaluations]
    if evaluated == expected:
        return None
    differing = sorted({*evaluated} ^ {*expected}) or evaluated
    return (
        f"rank0.evaluations: found {len(evaluated)}; allowed: the {len(expected)} of its cell; the"
        f" first other one is of step {differing[0]}"
    )


def _loss_problem(record: Record) -> str | None:
    """Return whether the losses of the trial are not the means of those of its ranks."""
    import numpy as np

    assert record.loss is not None
    assert record.summary is not None
    losses = record.loss.unpack()
    of_ranks = [result.loss.unpack() for result in record.ranks if result.loss is not None]
    means = mean_over_ranks(np.stack(of_ranks).astype(np.float64))
    if not np.allclose(losses, means, rtol=TOLERANCE, atol=0, equal_nan=True):
        return "loss: found other numbers than the means of its ranks' losses"
    if not len(losses):
        return None
    final_loss = None if np.isnan(losses[-1]) else float(losses[-1])
    return _first_difference(record.summary, {"final_loss": final_loss})


def _range_problem(record: Record) -> str | None:
    """Return whether the measured window is none of the trial's steps."""
    summary = record.summary
    assert summary is not None
    assert record.loss is not None
    steps = record.loss.count
    start = summary.window_start
    if start is None:
        return _first_difference(summary, dict.fromkeys(WINDOW_FIGURES))
    if start + summary.window_steps > steps:
        found = f"found {summary.window_steps} from step {start} on"
        return f"summary.window_steps: {found}; allowed: up to the last step, {steps}"
    return None


def _window_problem(record: Record) -> str | None:
    """Return which figure of the measured window is not what the times of its steps come to.

    Where the trial was interrupted, the window has gaps that the record does not list, and only its
    size is checked.
    """
    import numpy as np

    summary = record.summary
    assert summary is not None
    assert record.loss is not None
    start = summary.window_start
    if start is None:
        return None
    if any(result.interruptions for result in record.ranks):
        return None
    window = np.arange(start, record.loss.count)
    fingerprinted = record.ranks[0].fingerprinted_steps
    if fingerprinted:
        window = np.setdiff1d(window, fingerprinted)  # these were not timed
    if summary.window_steps != len(window):
        found = f"found {summary.window_steps} from step {start} on"
        allowed = f"all {len(window)} that were timed, up to the last step, {record.loss.count}"
        return f"summary.window_steps: {found}; allowed: {allowed}"
    seconds = _window_seconds([result.step_seconds for result in record.ranks], window)
    return (
        _first_difference(summary, _window_figures(record, seconds))
        or _share_problem(record, window, seconds)
        or _trace_problem(record, seconds)
    )


def _window_figures(record: Record, seconds: Numbers) -> dict[str, float | None]:
    """Return the figures of the steps of a window, by their names in the summary.

    `seconds` are those of each step, shape (ranks, steps), here and below.
    """
    import numpy as np

    percentiles = np.percentile(seconds.max(axis=0), (50, 90, 99))
    assert record.summary is not None
    per_step = record.summary.samples_per_step or record.trial.cell.axes.batch_size
    samples = seconds.shape[1] * per_step
    figures = (samples / seconds.sum(axis=1).max(), *percentiles)
    return {name: float(figure) for name, figure in zip(WINDOW_FIGURES, figures, strict=True)}


def _share_problem(record: Record, window: Numbers, seconds: Numbers) -> str | None:
    """Return which phase of a step has another share of the window than its series come to."""
    import numpy as np

    assert record.summary is not None
    phases = record.ranks[0].step_phases
    shares = record.summary.shares
    if set(shares) != set(phases):
        return f"summary.shares: found {', '.join(shares)}; allowed: {', '.join(phases)}"
    total = seconds.sum()
    for name, share in shares.items():
        of_phase = [result.step_phases.get(name) for result in record.ranks]
        phase_seconds = _window_seconds(of_phase, window)
        expected = float(phase_seconds.sum(dtype=np.float64) / total)
        if not math.isclose(share, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            return f"summary.shares.{name}: found {share}; allowed: {expected}, as of its series"
    return None


def _trace_problem(record: Record, seconds: Numbers) -> str | None:
    """Return whether the means of batches of steps are not those of the rank that took longest."""
    import numpy as np

    from harness.statistics.trace import relative_error, trial_batches

    assert record.summary is not None
    recorded = record.summary.batch_seconds
    slowest = seconds[seconds.sum(axis=1).argmax()]
    expected = trial_batches(slowest)
    if len(recorded) != len(expected):
        return "summary.batch_seconds: found other means than those of its batches of steps"
    if not np.allclose(recorded, expected, rtol=TOLERANCE, atol=0):
        return "summary.batch_seconds: found other numbers than the means of its steps"
    return _first_difference(record.summary, {"relative_error": relative_error(slowest)})


def _window_seconds(series: Sequence[Series | None], window: Numbers) -> Numbers:
    """Return the seconds of the steps of a window, shape (ranks, steps)."""
    import numpy as np

    rows = [numbers.unpack()[window] for numbers in series if numbers is not None]
    return np.stack(rows)


def _first_difference(summary: Summary, figures: Mapping[str, float | None]) -> str | None:
    """Return which figure of a summary is another one than that which its trial's series give."""
    for name, expected in figures.items():
        figure = getattr(summary, name)
        if figure is None or expected is None:
            is_equal = figure is expected
        else:
            is_equal = math.isclose(figure, expected, rel_tol=TOLERANCE)
        if not is_equal:
            allowed = "nothing" if expected is None else f"{expected}"
            return f"summary.{name}: found {figure}; allowed: {allowed}, as of its series"
    return None
