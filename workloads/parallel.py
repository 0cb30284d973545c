"""Styles of parallelism for plans of workloads, in addition to those of torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle

STRIDE = 0x9E3779B97F4A7C15  # between the seeds of two ranks; odd, so that no two are equal
SEEDS = 2**63


class OwnRandomNumbers(ParallelStyle):
    """Has a module draw other random numbers at each rank, where its activations are shards.

    All ranks of a tensor-parallel group have the same generators, as they must drop the same
    elements of activations that they all have. The heads of an attention are different ones at
    each rank, and with the same numbers heads at different ranks would be dropped alike.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        """Seed the generator before each forward of `module` in training, and put it back after."""
        saved: list[tuple[torch.Generator, torch.Tensor]] = []
        rank = device_mesh.get_local_rank()

        def seed(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            if not module.training:
                return
            # All ranks draw the same seed, and so stay in step with one another. It comes from the
            # CPU's generator: to read one from a GPU would wait for it.
            drawn = int(torch.randint(SEEDS - 1, ()))
            generator = _generator(device_mesh)
            saved.append((generator, generator.get_state()))
            generator.manual_seed((drawn + rank * STRIDE) % SEEDS)

        def restore(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if saved:
                generator, state = saved.pop()
                generator.set_state(state)

        module.register_forward_pre_hook(seed)
        module.register_forward_hook(restore, always_call=True)
        return module


def _generator(device_mesh: DeviceMesh) -> torch.Generator:
    """Return the generator that modules on this rank's device draw from."""
    if device_mesh.device_type == "cuda":
        return torch.cuda.default_generators[torch.cuda.current_device()]
    return torch.default_generator
