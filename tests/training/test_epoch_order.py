"""The order of an epoch without a permutation in memory: a bijection, at random, the same everywhere."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch

from harness.core.errors import NotApplied
from harness.training import order as order_module
from harness.training.bijection import SMALL_SIZE, KeyedBijection
from harness.training.epoch import EpochOrder, InOrder, Keyed, Permutation
from harness.training.loader import MAX_PERMUTED, epoch_order
from harness.training.order import BatchOrder
from workloads.base import StreamSamples, TensorSamples

AWKWARD_SIZES = (1, 2, 3, 5, 16, 17, 97, SMALL_SIZE - 1, SMALL_SIZE, SMALL_SIZE + 1, 65_537, 99_991)
BILLION = 10**9
SAMPLES = 89
ORDERS = {"keyed": Keyed(SAMPLES)}
# The first batches of 103 and of a billion samples with seed 5.
PINNED_SMALL = [62, 100, 55, 36, 33, 7, 95, 102]
PINNED_LARGE = [736519917, 99227161, 759528010, 815422506]
ALPHA = 1e-4  # the keys are fixed, so a test that passes always does


# The bijection. Its tests load scipy, which takes a second, where they run: other processes of pytest
# only collect them.


@pytest.mark.parametrize("size", AWKWARD_SIZES)
@pytest.mark.parametrize("key", [0, 1, 2**63 + 5])
def test_every_index_is_hit_once(size: int, key: int) -> None:
    image = KeyedBijection(size, key)(np.arange(size))
    assert image.min() == 0
    assert (np.bincount(image, minlength=size) == 1).all()


def test_each_permutation_of_few_samples_is_as_likely_as_any() -> None:
    from scipy.stats import chisquare

    indices, keys = np.arange(4), range(1200)
    drawn = [tuple(KeyedBijection(4, key)(indices).tolist()) for key in keys]
    counts = [drawn.count(permutation) for permutation in set(drawn)]
    assert len(counts) == 24
    assert chisquare(counts).pvalue > ALPHA


@pytest.mark.parametrize("size", [1000, BILLION])
@pytest.mark.parametrize("index", [0, 999])
def test_a_sample_goes_anywhere_over_the_epochs(size: int, index: int) -> None:
    from scipy.stats import chisquare

    indices = np.array([index])
    goals = [int(KeyedBijection(size, key)(indices)[0]) for key in range(500)]
    bins = np.bincount(np.array(goals) * 20 // size, minlength=20)
    assert chisquare(bins).pvalue > ALPHA


@pytest.mark.parametrize("size", [10_007, BILLION])
def test_an_epoch_is_unlike_the_range_its_neighbors_and_other_epochs(size: int) -> None:
    from scipy.stats import poisson, spearmanr

    indices = np.arange(10_000)
    epoch, other = (KeyedBijection(size, key)(indices) for key in (3, 4))
    pairs = {
        "the range": (indices, epoch),
        "the sample before": (epoch[:-1], epoch[1:]),
        "the steps before": (np.diff(epoch)[:-2], np.diff(epoch)[2:]),
        "another epoch": (epoch, other),
    }
    for name, (left, right) in pairs.items():
        assert spearmanr(left, right).pvalue > ALPHA, name
    # Two independent permutations agree at one position in the mean, as Poisson has it.
    agreements = int((epoch == other).sum())
    assert poisson.sf(agreements - 1, len(indices) / size) > ALPHA


def test_two_samples_a_given_distance_apart_end_any_distance_apart() -> None:
    from scipy.stats import chisquare

    image = KeyedBijection(BILLION, 8)(np.arange(20_000))
    for distance in (1, 2, 1000, 10_000):  # 31,623 columns have the billion
        apart = np.sort((image[distance:] - image[:-distance]) % BILLION)
        bins = np.bincount(apart * 50 // BILLION, minlength=50)
        assert chisquare(bins).pvalue > ALPHA, distance


def test_the_keyed_order_is_pinned() -> None:
    """Records hold this order: it must not change."""
    order = BatchOrder(
        samples=103, batch_size=8, seed=5, dp_rank=0, dp_size=1, epoch_order=Keyed(103)
    )
    assert next(iter(order)).tolist() == PINNED_SMALL
    order = BatchOrder(
        samples=BILLION, batch_size=4, seed=5, dp_rank=0, dp_size=1, epoch_order=Keyed(BILLION)
    )
    assert next(iter(order)).tolist() == PINNED_LARGE


# In batches


def make_order(epoch_order: EpochOrder, *, rank: int = 0, world_size: int = 1) -> BatchOrder:
    """Return the order at one rank, in global batches of 8."""
    return BatchOrder(
        samples=SAMPLES,
        batch_size=8,
        seed=5,
        dp_rank=rank,
        dp_size=world_size,
        epoch_order=epoch_order,
    )


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("name", ORDERS)
def test_ranks_together_have_the_global_batches_of_one(name: str, world_size: int) -> None:
    shares = []
    for rank in range(world_size):
        shares.append(list(make_order(ORDERS[name], rank=rank, world_size=world_size)))
    np.testing.assert_array_equal(np.hstack(shares), list(make_order(ORDERS[name])))


@pytest.mark.parametrize("at_once", [1, 24, 10_000])
@pytest.mark.parametrize("name", ORDERS)
def test_a_resumed_epoch_goes_on_with_the_same_batches(
    name: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = list(make_order(ORDERS[name]))
    monkeypatch.setattr(order_module, "LOOKUP_SAMPLES", at_once)
    resumed = make_order(ORDERS[name])
    resumed.seek(4)
    np.testing.assert_array_equal(list(resumed), whole[4:])


@pytest.mark.parametrize("name", ORDERS)
def test_seed_and_epoch_give_other_orders_of_all_samples(name: str) -> None:
    positions = np.arange(SAMPLES)
    seen = set()
    for seed, epoch in ((0, 0), (0, 1), (1, 0)):
        samples = ORDERS[name].of_epoch(seed, epoch)(positions)
        assert sorted(samples.tolist()) == positions.tolist()
        seen.add(samples.tobytes())
    assert len(seen) == 3


def test_a_billion_samples_take_no_memory() -> None:
    order = BatchOrder(
        samples=BILLION, batch_size=256, seed=1, dp_rank=3, dp_size=8, epoch_order=Keyed(BILLION)
    )
    order.seek(order.steps - 1)
    tracemalloc.start()
    (share,) = order
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(set(share)) == 32
    assert peak < 2**20


# Which order it is


def stream() -> StreamSamples:
    """Return samples that can be read one after the other only."""
    return StreamSamples(lambda: iter([]), 4, lambda _: ())


def test_samples_have_the_order_that_suits_them() -> None:
    in_memory = TensorSamples((torch.zeros(4),))
    assert isinstance(epoch_order(in_memory, "recipe"), Permutation)
    assert isinstance(epoch_order(in_memory, "keyed"), Keyed)
    assert isinstance(epoch_order(stream(), "recipe"), InOrder)
    many = TensorSamples((torch.zeros(1).expand(MAX_PERMUTED + 1),))
    assert isinstance(epoch_order(many, "recipe"), Keyed)


@pytest.mark.parametrize("axis", ["permutation", "keyed"])
def test_what_can_only_be_read_in_its_own_order_refuses_others(axis: str) -> None:
    with pytest.raises(NotApplied, match=rf"^order={axis} is unavailable: \w+Samples are read "):
        epoch_order(stream(), axis)  # type: ignore[arg-type]
