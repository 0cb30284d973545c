"""The same samples in the same global batches, whoever trains on them; and a digest that notices if not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.core.errors import BadInput
from harness.training.order import BatchOrder, OrderDigest, join_digests

SAMPLES, BATCH, SEED = 103, 8, 5
STEPS = SAMPLES // BATCH
Batches = NDArray[np.int64]  # [steps, samples of a rank]


def order(
    *, seed: int = SEED, rank: int = 0, world_size: int = 1, epoch: int = 0, batch_size: int = BATCH
) -> BatchOrder:
    made = BatchOrder(
        samples=SAMPLES, batch_size=batch_size, seed=seed, rank=rank, world_size=world_size
    )
    made.epoch = epoch
    return made


def batches(of: BatchOrder) -> Batches:
    return np.array(list(of), dtype=np.int64)


def shares(world_size: int, **keys: int) -> list[Batches]:
    """What each rank trains on."""
    return [batches(order(rank=rank, world_size=world_size, **keys)) for rank in range(world_size)]


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_ranks_together_see_the_order_of_one(world_size: int) -> None:
    np.testing.assert_array_equal(np.hstack(shares(world_size)), batches(order()))


@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_epoch_holds_each_sample_at_most_once(epoch: int) -> None:
    seen = batches(order(epoch=epoch)).ravel()
    assert len(seen) == STEPS * BATCH
    assert len(set(seen.tolist())) == len(seen)
    assert set(seen.tolist()) <= set(range(SAMPLES))


def test_all_samples_have_their_turn_over_epochs() -> None:
    seen = {
        sample for epoch in range(20) for sample in batches(order(epoch=epoch)).ravel().tolist()
    }
    assert seen == set(range(SAMPLES))


def test_order_depends_on_seed_and_epoch_and_nothing_else() -> None:
    found = {
        (seed, epoch): batches(order(seed=seed, epoch=epoch)).tobytes()
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert len(set(found.values())) == 4
    assert batches(order(seed=1, epoch=1)).tobytes() == found[1, 1]


def test_batch_size_cuts_one_and_the_same_permutation() -> None:
    small, large = batches(order(batch_size=4)).ravel(), batches(order(batch_size=8)).ravel()
    np.testing.assert_array_equal(small[: len(large)], large)


def test_skip_takes_an_epoch_up_in_the_middle() -> None:
    whole, rest = order(world_size=2, rank=1), order(world_size=2, rank=1)
    rest.skip = 5
    assert (len(whole), len(rest)) == (STEPS, STEPS - 5)
    np.testing.assert_array_equal(batches(rest), batches(whole)[5:])


def test_order_pinned() -> None:
    """Baselines and records of earlier versions hold this order: it must not change."""
    assert batches(order())[:2].tolist() == [
        [29, 49, 54, 4, 80, 17, 94, 65],
        [32, 26, 79, 39, 9, 27, 60, 24],
    ]


def test_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(
        BadInput, match=r"^batch_size: found 104; allowed: at most the 103 training samples$"
    ):
        order(batch_size=104)


def digest(
    parts: Sequence[Batches], *, ranks: Sequence[int] | None = None, first_step: int = 0
) -> str:
    """The digest of a run in which rank r trained on parts[r]; `ranks` are those that it says it was."""
    sums = []
    for rank, part in zip(ranks or range(len(parts)), parts, strict=True):
        own = OrderDigest(order(rank=rank, world_size=len(parts)))
        own.add(first_step, list(part))
        sums.append(own.sums)
    return join_digests(sums)


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_digest_knows_nothing_of_the_number_of_ranks(world_size: int) -> None:
    assert digest(shares(world_size)) == digest(shares(1))


def test_digest_knows_nothing_of_the_pieces_in_which_it_was_told() -> None:
    whole, pieces = OrderDigest(order()), OrderDigest(order())
    told = list(batches(order()))
    whole.add(0, told)
    for first, last in ((0, 1), (1, 1), (1, 7), (7, STEPS)):
        pieces.add(first, told[first:last])
    assert pieces.sums == whole.sums


def test_digest_takes_up_where_an_earlier_attempt_stopped() -> None:
    told = list(batches(order()))
    before, after = OrderDigest(order()), OrderDigest(order())
    before.add(0, told[:5])
    after.sums = before.sums
    after.add(5, told[5:])
    assert join_digests([after.sums]) == digest([batches(order())])


def swap_samples(own: Batches) -> None:
    own[2, 0], own[2, 1] = own[2, 1], own[2, 0]


def swap_samples_of_two_batches(own: Batches) -> None:
    own[2, 0], own[3, 0] = own[3, 0], own[2, 0]


def swap_batches(own: Batches) -> None:
    own[[3, 4]] = own[[4, 3]]


def repeat_a_sample(own: Batches) -> None:
    own[1, 1] = own[1, 0]


def repeat_a_batch(own: Batches) -> None:
    own[5] = own[4]


def take_another_sample(own: Batches) -> None:
    own[0, 0] = SAMPLES + 1


def rotate(own: Batches) -> None:
    own[:] = np.roll(own, 1, axis=0)


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize(
    "mutate",
    [
        swap_samples, swap_samples_of_two_batches, swap_batches, repeat_a_sample, repeat_a_batch, take_another_sample,
        rotate,
    ],
)  # fmt: skip
def test_digest_notices(mutate: Callable[[Batches], None], world_size: int) -> None:
    parts = shares(world_size)
    mutate(parts[-1])
    assert digest(parts) != digest(shares(1))


def test_digest_notices_another_seed_and_another_epoch() -> None:
    assert (
        len({digest(shares(1)), digest(shares(1, seed=SEED + 1)), digest(shares(1, epoch=1))}) == 3
    )


def test_digest_notices_ranks_that_take_each_others_part() -> None:
    assert digest(shares(2), ranks=[1, 0]) != digest(shares(2))


def test_digest_notices_ranks_that_take_the_same_part() -> None:
    assert digest([shares(2)[0], shares(2)[0]]) != digest(shares(2))


def test_digest_notices_a_step_too_few_or_out_of_place() -> None:
    whole = shares(1)
    assert digest([whole[0][:-1]]) != digest(whole)
    assert digest(whole, first_step=1) != digest(whole)


def test_digest_notices_every_exchange_of_two_samples() -> None:
    whole = batches(order())[:4]
    flat = whole.size
    digests = set()
    for first in range(flat):
        for second in range(first):
            mutant = whole.copy().ravel()
            mutant[[first, second]] = mutant[[second, first]]
            digests.add(digest([mutant.reshape(whole.shape)]))
    assert len(digests | {digest([whole])}) == flat * (flat - 1) // 2 + 1


def test_every_order_of_five_samples_has_its_own_digest() -> None:
    one_batch = BatchOrder(samples=5, batch_size=5, seed=0, rank=0, world_size=1)
    digests = set()
    for permutation in itertools.permutations(range(5)):
        own = OrderDigest(one_batch)
        own.add(0, [permutation])
        digests.add(own.sums)
    assert len(digests) == 120
