"""How alike two executions are: every rung is reached by the evidence that its rule names, and by no less."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch._dynamo.utils import rmse, same

from harness.analysis import rungs
from harness.analysis.rungs import (
    EPSILONS,
    Agreement,
    RerunDifference,
    Rung,
    compare_evidence,
    evidence_of_record,
    tensor_rung,
    worst_distance,
)
from harness.records.record import Numbers, Record
from tests.factories import make_cell, make_record, with_ranks
from tests.support.parity import DISTANCE

NEAR = replace(DISTANCE, step=1, shape=(64, 64), differing=3, scale=0.1)
EQUAL = replace(NEAR, differing=0)
FAR = replace(NEAR, error=1e-3)
SPREAD = replace(NEAR, differing=4000)


@pytest.mark.parametrize(
    ("same_bits", "distances", "rung"),
    [
        (True, (), "bitwise"),
        (True, (EQUAL,), "bitwise"),
        (True, (EQUAL, NEAR), "rounding"),  # digests of some steps, tensors of others
        (False, (EQUAL, NEAR), "rounding"),
        (False, (NEAR, FAR), None),
        (False, (), None),
    ],
)
def test_the_highest_rung_that_is_reached(
    same_bits: bool, distances: Any, rung: Rung | None
) -> None:
    assert tensor_rung(same_bits=same_bits, distances=distances) == rung


@pytest.mark.parametrize(
    ("change", "passes"),
    [
        ({"error": 2e-6}, True),
        ({"error": 2.1e-6}, False),
        ({"error": 2.1e-6, "shape": (999,)}, True),
        ({"error": 2.1e-6, "dtype": "bfloat16"}, True),
        ({"error": 1e-6, "reference_error": 2.1e-6}, False),  # from the other side too
        ({"error": 0.0, "reference_error": 1e-8}, True),
        ({"error": 0.0, "reference_error": 1e-3}, False),
        ({"error": 1e-8, "reference_error": 0.0}, True),  # one rounding: 0.1 times 2^-23
        ({"error": 1e-7, "reference_error": 0.0}, False),
        ({"error": 1e-8, "reference_error": 0.0, "scale": 0.0}, False),
        ({"error": None, "is_finite": False}, False),
        ({"error": None, "reference_error": None, "scale": None}, False),
        ({"dtype": "int64", "error": None}, False),
    ],
)
def test_the_fp64_rule(change: dict[str, Any], passes: bool) -> None:
    distance = replace(NEAR, **change)
    assert distance.is_within_fp64_rule == passes


@given(
    size=st.sampled_from([10, 999, 1000, 5000]),
    noise=st.floats(0.0, 5.0),
    seed=st.integers(0, 100),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_the_multiplier_is_torchs(size: int, noise: float, seed: int, dtype: torch.dtype) -> None:
    """Of values so large that torch's absolute tolerance does not count, torch says the same.

    It is asked twice, as each of the two is its reference in turn.
    """
    generator = torch.Generator().manual_seed(seed)
    exact = torch.randn(size, generator=generator, dtype=torch.float64) * 1e6
    step = torch.finfo(dtype).eps * 1e6
    reference = (exact + step * torch.randn(size, generator=generator)).to(dtype)
    result = (exact + noise * step * torch.randn(size, generator=generator)).to(dtype)
    error, of_reference = float(rmse(exact, result)), float(rmse(exact, reference))
    distance = replace(NEAR, dtype=str(dtype).removeprefix("torch."), shape=(size,), scale=0.0)
    distance = replace(distance, error=error, reference_error=of_reference)
    assert distance.excess is not None
    assume(abs(distance.excess - 1) > 1e-6)
    pairs = (reference, result), (result, reference)
    of_torch = [same(*pair, exact, tol=1e-12) for pair in pairs]
    assert distance.is_within_fp64_rule == all(of_torch)
    if dtype == torch.float32:
        rows = reference.numpy(), result.numpy(), exact.numpy()
        assert rungs.meets_fp64_rule(*rows, 0.0) == all(of_torch)


@pytest.mark.parametrize("name", EPSILONS)
def test_epsilons_are_torchs(name: str) -> None:
    assert torch.finfo(getattr(torch, name)).eps == EPSILONS[name]


def test_the_worst_tensor_decides() -> None:
    assert worst_distance([EQUAL]) is None
    assert worst_distance([NEAR, FAR, SPREAD]) == FAR
    counter = replace(NEAR, dtype="int64", error=None)
    assert worst_distance([FAR, counter]) == counter
    without_fp64 = [replace(one, reference_error=None) for one in (NEAR, SPREAD)]
    assert worst_distance(without_fp64) == without_fp64[1]
    assert replace(FAR, error=math.inf).excess == math.inf


RECORD = make_record(make_cell(strategy="ddp", world_size=2))


def with_losses(record: Record, rank: int, losses: Numbers) -> Record:
    ranks = list(record.ranks)
    ranks[rank] = replace(ranks[rank], loss=losses)
    return replace(record, load_ranks=lambda: ranks)


def losses_of(rank: int, record: Record = RECORD) -> Numbers:
    series = record.ranks[rank].loss
    assert series is not None
    return series.copy()


def with_next_float(record: Record, step: int) -> Record:
    """Return a record whose rank 1 has the next larger loss at a step."""
    losses = losses_of(1)
    losses[step - 1] = np.nextafter(losses[step - 1], np.float32(np.inf))
    return with_losses(record, 1, losses)


def changed_report(record: Record, **changes: object) -> Record:
    assert record.rank0 is not None
    return replace(record, rank0=replace(record.rank0, **changes))  # type: ignore[arg-type]


def drew(record: Record, digest: str) -> Record:
    """Return a record whose random generators ended with a state of this digest."""
    ranks = [replace(result, random_digest=digest) for result in record.ranks]
    return with_ranks(record, ranks)


def agreement(again: Record, recorded: Record = RECORD, exact: Sequence[Record] = ()) -> Agreement:
    evidence = [evidence_of_record(record) for record in exact]
    return compare_evidence(evidence_of_record(recorded), evidence_of_record(again), evidence)


def scaled(factor: float) -> Record:
    """Return the record with the losses of both ranks multiplied by a factor."""
    record = RECORD
    for rank in (0, 1):
        record = with_losses(record, rank, (losses_of(rank) * factor).astype(np.float32))
    return record


def first(again: Record, recorded: Record = RECORD) -> RerunDifference:
    found = agreement(again, recorded).first_difference
    assert found is not None
    return found


def test_equal_bits_are_bitwise_and_one_other_bit_is_on_no_rung_without_fp64() -> None:
    found = agreement(RECORD)
    assert (found.rung, found.first_difference, found.max_relative) == ("bitwise", None, 0)
    assert {"loss of rank 1", "evaluation's accuracy"} <= set(found.compared)
    found = agreement(with_next_float(RECORD, 7))
    assert found.rung is None
    assert found.first_difference is not None
    assert (found.first_difference.subject, found.first_difference.step) == ("loss of rank 1", 7)


def test_neither_the_record_nor_the_new_run_may_be_farther_off_than_the_other() -> None:
    near, far, exact = scaled(1.0001), scaled(1.35), scaled(1.0)
    assert agreement(near, recorded=far, exact=[exact, exact]).rung is None
    assert agreement(far, recorded=near, exact=[exact, exact]).rung is None
    assert agreement(near, recorded=scaled(0.9999), exact=[exact, exact]).rung == "rounding"


def test_other_kernels_round_initial_parameters_otherwise() -> None:
    """Runs in double precision begin with the parameters of the machine that they are on."""
    evidence = [evidence_of_record(record) for record in (RECORD, scaled(1 + 2e-5), *[RECORD] * 2)]
    recorded, again, *exact = evidence
    assert compare_evidence(recorded, again, exact).rung is None
    assert compare_evidence(recorded, again, exact, has_other_kernels=True).rung == "rounding"
    far = evidence_of_record(scaled(1 + 2e-4))
    assert compare_evidence(recorded, far, exact, has_other_kernels=True).rung is None


def test_losses_of_every_tenth_step_are_judged_by_double_precision() -> None:
    def sparse(record: Record) -> Record:
        for rank in (0, 1):
            losses = losses_of(rank, record)
            losses[np.arange(len(losses)) % 10 != 9] = np.nan
            record = with_losses(record, rank, losses)
        return record

    exact = sparse(RECORD)
    found = agreement(sparse(scaled(1.01)), sparse(scaled(0.99)), [exact, exact])
    assert (found.rung, found.fp64_problem) == ("rounding", None)
    assert first(sparse(scaled(1.01)), exact).step == 10


def test_a_run_in_double_precision_may_go_on_where_the_trial_has_stopped() -> None:
    def stopped(record: Record) -> Record:
        for rank in (0, 1):
            record = with_losses(record, rank, losses_of(rank, record)[:10])
        return record

    recorded, again = stopped(scaled(0.99)), stopped(scaled(1.01))
    assert agreement(again, recorded, [RECORD, RECORD]).rung == "rounding"
    beyond = stopped(scaled(1.1))
    assert agreement(beyond, recorded, [RECORD, RECORD]).rung is None


def test_double_precision_that_does_not_repeat_or_draws_otherwise_judges_nothing() -> None:
    found = agreement(scaled(1.01), exact=[scaled(1.005), scaled(1.006)])
    assert (found.rung, found.fp64_problem) == (None, "not deterministic")
    again, exact = drew(scaled(1.01), "a"), drew(scaled(1.0055), "b")
    found = agreement(again, exact=[exact, exact])
    assert (found.rung, found.fp64_problem) == (None, "other random numbers")
    exact = drew(exact, "a")
    assert agreement(again, exact=[exact, exact]).rung == "rounding"


def test_a_single_number_that_is_exact_by_chance_is_allowed_the_error_of_the_losses() -> None:
    assert RECORD.rank0 is not None
    (evaluation, *_) = RECORD.rank0.evaluations

    def evaluated(record: Record, accuracy: float) -> Record:
        metrics = {**evaluation.metrics, "accuracy": accuracy}
        return changed_report(record, evaluations=[replace(evaluation, metrics=metrics)])

    exact = evaluated(RECORD, 0.9)
    recorded, again = evaluated(scaled(0.99), 0.9), evaluated(scaled(1.01), 0.905)
    assert agreement(again, recorded, [exact, exact]).rung == "rounding"
    assert agreement(evaluated(scaled(1.01), 0.8), recorded, [exact, exact]).rung is None


def test_what_is_computed_first_is_named() -> None:
    late = changed_report(RECORD, parameter_digest="f" * 64)
    assert first(late).subject == "parameters at the end"
    assert agreement(late).rung is None  # no number tells how far they are apart
    evaluations = list(RECORD.rank0.evaluations)  # type: ignore[union-attr]
    metrics = {**evaluations[0].metrics, "accuracy": 0.5}
    evaluations[0] = replace(evaluations[0], metrics=metrics)
    evaluated = changed_report(late, evaluations=evaluations)
    assert first(evaluated).step == evaluations[0].step == 10
    trained = with_next_float(evaluated, 10)
    assert first(trained).subject == "loss of rank 1"
    reordered = replace(trained, order_digest="9" * 32)
    assert first(reordered).subject == "order of the samples"
    assert agreement(reordered, exact=[RECORD, RECORD]).rung == "different"


def test_a_trial_without_evaluations_or_with_infinite_losses_is_compared() -> None:
    bare = changed_report(RECORD, evaluations=())
    assert agreement(bare, bare).rung == "bitwise"
    infinite = losses_of(0)
    infinite[3] = np.inf
    found = agreement(with_losses(RECORD, 0, infinite))
    assert (found.rung, found.max_relative) == (None, None)
    assert first(with_losses(RECORD, 0, infinite)).recorded == repr(losses_of(0)[3].item())


def test_losses_of_other_steps_do_not_correspond_to_each_other() -> None:
    losses, later = losses_of(0)[:4].copy(), losses_of(0)[:4].copy()
    losses[2], later[1] = np.nan, np.nan
    later[2] = losses[1]  # the same numbers, reported a step later
    sparse = [with_losses(RECORD, 0, numbers) for numbers in (losses, later)]
    assert agreement(sparse[1], recorded=sparse[0]).rung is None


def test_bits_are_compared_and_not_values() -> None:
    zero, negative = losses_of(0), losses_of(0)
    zero[4], negative[4] = 0.0, -0.0
    plus, minus = (with_losses(RECORD, 0, losses) for losses in (zero, negative))
    assert first(plus, minus).step == 5
    double = with_losses(RECORD, 0, losses_of(0).astype(np.float64))
    assert first(double).step == 1
    shorter = with_losses(RECORD, 0, losses_of(0)[:12])
    assert (first(shorter).step, first(shorter).again) == (13, "none")
