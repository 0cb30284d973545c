"""The same samples make up the same global batches at any number of ranks; a digest proves it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.core.errors import BadInput
from harness.training.order import BatchOrder, add_to_digest, join_digests

SAMPLES, BATCH, SEED = 103, 8, 5
STEPS = SAMPLES // BATCH
Batches = NDArray[np.int64]  # shape (steps, samples of a rank)


def make_order(
    *, seed: int = SEED, rank: int = 0, world_size: int = 1, epoch: int = 0, batch_size: int = BATCH
) -> BatchOrder:
    """Return the order of one epoch at one rank."""
    order = BatchOrder(
        samples=SAMPLES, batch_size=batch_size, seed=seed, dp_rank=rank, dp_size=world_size
    )
    order.next_step = epoch * order.steps
    return order


def batches_of(order: BatchOrder) -> Batches:
    """Return what an order yields."""
    return np.array(list(order), dtype=np.int64)


def shares_of(world_size: int, **keys: int) -> list[Batches]:
    """Return what each rank trains on."""
    shares = []
    for rank in range(world_size):
        shares.append(batches_of(make_order(rank=rank, world_size=world_size, **keys)))
    return shares


def samples_of_epoch(epoch: int) -> list[int]:
    """Return all samples of an epoch, in the order of training."""
    samples: list[int] = batches_of(make_order(epoch=epoch)).ravel().tolist()
    return samples


# The order


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_ranks_together_see_the_order_of_a_single_rank(world_size: int) -> None:
    np.testing.assert_array_equal(np.hstack(shares_of(world_size)), batches_of(make_order()))


@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_epoch_holds_each_sample_at_most_once(epoch: int) -> None:
    samples = samples_of_epoch(epoch)
    assert len(samples) == STEPS * BATCH
    assert len(set(samples)) == len(samples)
    assert set(samples) <= set(range(SAMPLES))


def test_order_depends_on_seed_and_epoch_and_nothing_else() -> None:
    orders = {}
    for seed, epoch in itertools.product((0, 1), (0, 1)):
        orders[seed, epoch] = batches_of(make_order(seed=seed, epoch=epoch)).tobytes()
    assert len(set(orders.values())) == 4
    assert batches_of(make_order(seed=1, epoch=1)).tobytes() == orders[1, 1]


def test_an_iteration_begins_with_the_batch_of_any_step() -> None:
    order = make_order()
    order.next_step = 2 * STEPS + 3
    np.testing.assert_array_equal(batches_of(order), batches_of(make_order(epoch=2))[3:])
    order.seek_next_epoch()
    np.testing.assert_array_equal(batches_of(order), batches_of(make_order(epoch=3)))


def test_order_pinned() -> None:
    """Baselines and records of earlier versions hold this order: it must not change."""
    assert batches_of(make_order())[:2].tolist() == [
        [29, 49, 54, 4, 80, 17, 94, 65],
        [32, 26, 79, 39, 9, 27, 60, 24],
    ]


def test_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(
        BadInput, match=r"^batch_size: found 104; allowed: at most the 103 training samples$"
    ):
        make_order(batch_size=104)


# The digest


def digest_of(
    shares: Sequence[Batches], *, ranks: Sequence[int] | None = None, start_step: int = 0
) -> str:
    """Return the digest of a run in which each of `ranks`, by default 0, 1, ..., has a share."""
    sums = []
    for rank, share in zip(ranks or range(len(shares)), shares, strict=True):
        order = make_order(rank=rank, world_size=len(shares))
        sums.append(add_to_digest((0, 0), order, start_step, list(share)))
    return join_digests(sums)


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_digest_does_not_depend_on_the_number_of_ranks(world_size: int) -> None:
    assert digest_of(shares_of(world_size)) == digest_of(shares_of(1))


def test_digest_does_not_depend_on_the_pieces_in_which_batches_are_added() -> None:
    order = make_order()
    batches = list(batches_of(order))
    pieces: Sequence[int] = (0, 0)
    for start, stop in ((0, 1), (1, 7), (7, STEPS)):
        pieces = add_to_digest(pieces, order, start, batches[start:stop])
    assert pieces == add_to_digest((0, 0), order, 0, batches)


def swap_samples(share: Batches) -> None:
    share[2, 0], share[2, 1] = share[2, 1], share[2, 0]


def repeat_a_sample(share: Batches) -> None:
    share[1, 1] = share[1, 0]


def rotate(share: Batches) -> None:
    share[:] = np.roll(share, 1, axis=0)


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("mutate", [swap_samples, repeat_a_sample, rotate])
def test_digest_notices(mutate: Callable[[Batches], None], world_size: int) -> None:
    shares = shares_of(world_size)
    mutate(shares[-1])
    assert digest_of(shares) != digest_of(shares_of(1))


def test_digest_notices_a_step_too_few_and_an_offset() -> None:
    shares = shares_of(1)
    assert digest_of([shares[0][:-1]]) != digest_of(shares)
    assert digest_of(shares, start_step=1) != digest_of(shares)


def test_digest_notices_ranks_that_train_on_the_same_share() -> None:
    shares = shares_of(2)
    assert digest_of([shares[0], shares[0]]) != digest_of(shares)
