"""A workload for tests that hangs in a chosen way, at a step of one rank."""

from __future__ import annotations

import itertools
import os
import re
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import get_worker_info

from tests.support.line import LineFit, Options
from workloads import Batch, Splits, TensorSamples

LOCK = threading.Lock()
COUNT = itertools.count(1)  # of the batches that a worker fetches


@dataclass(frozen=True, kw_only=True)
class HangOptions(Options):
    """What goes wrong, and when."""

    way: str = ""  # a method of `Hangs`
    at: int = 0  # the step of the rank, or the batch of rank 1's worker


@dataclass(frozen=True)
class GuardedSamples(TensorSamples):
    """Samples that a worker fetches under a lock, and that may stop it."""

    way: str = ""
    at: int = 0

    def batch(self, indices: Sequence[int]) -> Batch:
        if get_worker_info() and os.environ["RANK"] == "1" and next(COUNT) == self.at:
            if self.way == "loader":
                os.kill(os.getpid(), signal.SIGSTOP)
            if self.way == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
        with LOCK:
            return super().batch(indices)


class Hangs(LineFit):
    """Fits a line, with a collective of its own in each step."""

    Options = HangOptions

    def splits(self) -> Splits:
        splits = super().splits()
        assert isinstance(splits.train, TensorSamples)
        samples = GuardedSamples(splits.train.tensors, self.options.way, self.options.at)
        return replace(splits, train=samples)

    def loss(self, model: torch.nn.Module, batch: Batch) -> Tensor:
        loss = super().loss(model, batch)
        own = torch.ones(4)
        if self.step == self.options.at and self._is_misbehaving_rank():
            getattr(self, self.options.way)(own)
        elif self.step == self.options.at and self.options.way == "order":
            dist.all_reduce(own)
            dist.broadcast(own, 0)
        else:
            dist.all_reduce(own)
        return loss

    def loader(self, own: Tensor) -> None:
        """Leave it to a worker."""
        dist.all_reduce(own)

    killed = loader

    def skip(self, own: Tensor) -> None:
        """Leave out a collective."""

    def order(self, own: Tensor) -> None:
        dist.broadcast(own, 0)
        dist.all_reduce(own)

    def sizes(self, own: Tensor) -> None:
        dist.all_reduce(torch.ones(400))

    def python(self, own: Tensor) -> None:
        while True:
            pass

    def native(self, own: Tensor) -> None:
        """Loop in C with Python's lock: the time doubles with each letter."""
        re.match("(a+)+$", "a" * 60 + "b")

    def stop(self, own: Tensor) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def pipe(self, own: Tensor) -> None:
        self.pipe_ends = os.pipe()
        os.write(self.pipe_ends[1], bytes(2**20))

    def lock(self, own: Tensor) -> None:
        """Hold a lock when the workers of the next epoch are forked."""
        dist.all_reduce(own)
        LOCK.acquire()
