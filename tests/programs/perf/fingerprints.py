"""What fingerprints cost: digests beside the speed of memory, and beside a step of DistilBERT.

    python -m tests.programs.perf.fingerprints

Digests and steps are timed in turn, so that a machine that slows down favors neither.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DistilBertConfig, DistilBertForSequenceClassification

from harness.training.recorder import digest_tensor, random_states

PARAMETERS = 66_000_000  # of the base DistilBERT, about
CACHED = 2**17  # numbers that fit into a core's cache
ROUNDS = 9


def milliseconds(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def interleaved(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median milliseconds of each call, after one round that does not count."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            taken = milliseconds(call)
            if number:
                times[name].append(taken)
    return {name: median(values) for name, values in times.items()}


def digest_all(tensors: Sequence[Tensor]) -> None:
    """Digest tensors, one after the other."""
    for tensor in tensors:
        digest_tensor(tensor)


def measure_memory(rounds: int) -> None:
    """Print how long the digest of all parameters takes, and to read or copy as many bytes."""
    values = torch.randn(PARAMETERS)
    copy = torch.empty_like(values)
    words = values.view(torch.int64)
    calls: dict[str, Callable[[], object]] = {
        "digest": lambda: digest_tensor(values),
        "read, by a sum of integers": words.sum,
        "copy": lambda: ctypes.memmove(copy.data_ptr(), values.data_ptr(), values.nbytes),
    }
    for name, taken in interleaved(calls, rounds).items():
        rate = values.nbytes / taken / 1e6
        print(f"{name:40} {taken:8.1f} ms  {rate:6.1f} GB/s")
    in_cache = torch.randn(CACHED)
    repeats = PARAMETERS // CACHED
    taken = interleaved({"": partial(digest_all, [in_cache] * repeats)}, rounds)[""]
    rate = repeats * in_cache.nbytes / taken / 1e6
    print(f"{'digest of as much that is in a cache':40} {taken:8.1f} ms  {rate:6.1f} GB/s")


def measure_steps(rounds: int, batch_size: int, tokens: int) -> None:
    """Print how long digests take beside a step of the base DistilBERT on one thread."""
    torch.manual_seed(0)
    model = DistilBertForSequenceClassification(DistilBertConfig())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    ids = torch.randint(1, 30_000, (batch_size, tokens))
    labels = torch.randint(0, 2, (batch_size,))

    def step() -> None:
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()

    step()  # which makes the state of the optimizer
    boundary = [ids, torch.arange(batch_size), *(state for _, state in random_states(ids.device))]
    groups: dict[str, Sequence[Tensor]] = {
        "samples, batch and random states": boundary,
        "parameters": list(model.parameters()),
        "gradients": _gradients(model),
        "optimizer state": _state_tensors(optimizer),
    }
    calls: dict[str, Callable[[], Any]] = {"step": step}
    for name, tensors in groups.items():
        calls[name] = partial(digest_all, tensors)
    taken = interleaved(calls, rounds)
    print(f"a step of DistilBERT, {batch_size} × {tokens} tokens {taken['step']:18.0f} ms")
    for name in groups:
        print(f"{name:40} {taken[name]:8.2f} ms  {taken[name] / taken['step']:8.2%} of a step")
    at_boundary = taken["samples, batch and random states"] + taken["parameters"]
    print(
        f"{'fingerprint at a boundary':40} {at_boundary:8.2f} ms  {at_boundary / taken['step']:8.2%}"
    )


def _gradients(model: nn.Module) -> list[Tensor]:
    """Return the gradients that a step has left."""
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def _state_tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the tensors of an optimizer's state."""
    tensors = []
    for state in optimizer.state.values():
        tensors += [value for value in state.values() if isinstance(value, Tensor)]
    return tensors


def main() -> None:
    """Measure on one thread."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.perf.fingerprints", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    torch.set_num_threads(1)
    measure_memory(options.rounds)
    measure_steps(options.rounds, options.batch_size, options.tokens)


if __name__ == "__main__":
    main()
