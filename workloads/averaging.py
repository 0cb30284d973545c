"""A moving average of weights, for workloads that evaluate or keep one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class WeightAverage:
    """An exponential moving average of a model's parameters, each sharded as the parameter is.

    A workload calls `update` in `after_step`, and has `state_dict` and `load_state_dict` in its own.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay  # the weight of the past in each update
        self.values: dict[str, Tensor] = {}
        # What a checkpoint had, unsharded, until the first update says how to shard it.
        self._loaded: Mapping[str, Tensor] = {}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the average towards the parameters; the first update takes them as they are."""
        if not self.values:
            for name, parameter in model.named_parameters():
                self.values[name] = self._first_value(name, parameter)
            if not self._loaded:
                return
        current = dict(model.named_parameters())
        past = [_local(value) for value in self.values.values()]
        new = [_local(current[name].detach()) for name in self.values]
        torch._foreach_lerp_(past, new, 1 - self.decay)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the averages by the names of the parameters."""
        return dict(self.values or self._loaded)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take back what `state_dict` returned, unsharded."""
        self.values, self._loaded = {}, state

    def _first_value(self, name: str, parameter: Tensor) -> Tensor:
        """Return the value of a checkpoint, or else a copy of the parameter, sharded as it is."""
        if name not in self._loaded:
            return parameter.detach().clone()
        value = self._loaded[name].to(parameter.device)
        mesh: Any = getattr(parameter, "device_mesh", None)
        if mesh is None:
            return value.clone()
        from torch.distributed.tensor import DTensor, distribute_tensor

        assert isinstance(parameter, DTensor)
        return distribute_tensor(value, mesh, parameter.placements)


def _local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a DTensor, and any other tensor as it is; they share memory."""
    to_local: Any = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()
