"""A workload for tests that trains a head on an encoder in evaluation mode."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tests.support.line import LineFit, Options


@dataclass(frozen=True, kw_only=True)
class FrozenOptions(Options):
    """When the encoder goes into training mode."""

    thaw_at: int = 0  # the step, counted from 1; 0: never


class Frozen(nn.Module):
    """Batch norm and dropout in an encoder, which is built in evaluation mode, and in a head."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.3)
        )
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(16, 1))
        self.encoder.eval()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.encoder(inputs))
        return outputs


class FrozenFit(LineFit):
    """Fits the line of `tests.support.line` with a frozen encoder."""

    Options = FrozenOptions
    options: FrozenOptions

    def build_model(self) -> nn.Module:
        return Frozen(self.options.dropout)

    def after_step(self, model: nn.Module) -> None:
        if self.step == self.options.thaw_at:
            model.get_submodule("encoder").train()


class AlternatingFit(LineFit):
    """Trains its first layer in four of eight steps, with a momentum that lasts from one time to the next."""

    def build_model(self) -> nn.Module:
        model = super().build_model()
        model.register_buffer("steps_done", torch.zeros((), dtype=torch.int64))
        model.get_submodule("inner.layers.0").requires_grad_(False)
        return model

    def after_step(self, model: nn.Module) -> None:
        steps_done = model.get_buffer("steps_done").add_(1)
        model.get_submodule("inner.layers.0").requires_grad_(int(steps_done) // 4 % 2 == 1)


class UnusedFit(LineFit):
    """Has a layer that no loss depends on, such as the pooler of a pretrained encoder."""

    def build_model(self) -> nn.Module:
        model = super().build_model()
        model.register_module("pooler", nn.Linear(3, 3))
        return model


class EvaluatingFit(LineFit):
    """Returns its model in evaluation mode, as `from_pretrained` of transformers does, with a loss function."""

    def build_model(self) -> nn.Module:
        model = super().build_model().eval()
        model.register_module("criterion", nn.MSELoss())
        return model


class OwnMean(nn.Module):
    """Divides by a running mean of its rank's inputs, which is a number of Python that torch saves."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.mean = inner, 1.0

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.mean += float(inputs.detach().square().mean())
        outputs: Tensor = self.inner(inputs / self.mean)
        return outputs

    def get_extra_state(self) -> dict[str, float]:
        return {"mean": self.mean}

    def set_extra_state(self, state: dict[str, float]) -> None:
        self.mean = state["mean"]


class OwnMeanFit(LineFit):
    """Fits the line with a model of which each rank has a state of its own."""

    def build_model(self) -> nn.Module:
        return OwnMean(super().build_model())
