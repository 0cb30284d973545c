"""The training of an MLP or a CNN in JAX, as a loop that takes its turn beside those of torch.

It is what JAX's own guides show: a pure function of the loss, `jax.value_and_grad`, Adam of Optax, and one
`jax.jit` around the whole step, which may overwrite its arguments. Losses stay on the device until they are
asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from torch import nn

from harness.records.assignment import Assignment
from harness.training.entry import load_workload
from harness.training.order import BatchOrder, Indices
from harness.training.ranks import derive_seed, seed_everything
from workloads.base import Workload, load_splits

Parameters = dict[str, jax.Array]  # by the names of torch's state dict, in torch's shapes
Forward = Callable[[Parameters, jax.Array], jax.Array]


def mlp(parameters: Parameters, images: jax.Array) -> jax.Array:
    """Return logits, shape (samples, classes), of images of shape (samples, 1, height, width)."""
    features = images.reshape(len(images), -1)
    for layer in _layers(parameters, "hidden"):
        features = jax.nn.relu(_linear(parameters, layer, features))
    return _linear(parameters, "head", features)


def cnn(parameters: Parameters, images: jax.Array) -> jax.Array:
    """Return logits, shape (samples, classes), of images of shape (samples, 1, height, width).

    Convolutions work on images with their channels last, the layout that JAX's libraries use.
    """
    features = images.transpose(0, 2, 3, 1)
    for layer in _layers(parameters, "features"):
        kernels = parameters[f"{layer}.weight"].transpose(2, 3, 1, 0)
        features = jax.lax.conv_general_dilated(
            features,
            kernels,
            window_strides=(1, 1),
            padding="SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        features = _halved(jax.nn.relu(features + parameters[f"{layer}.bias"]))
    # Torch flattens channel by channel.
    features = features.transpose(0, 3, 1, 2).reshape(len(images), -1)
    features = jax.nn.relu(_linear(parameters, "dense", features))
    return _linear(parameters, "head", features)


MODELS: Mapping[str, Forward] = {"mlp": mlp, "cnn": cnn}


def _layers(parameters: Parameters, section: str) -> list[str]:
    """Return the names of a section's layers that have weights, in their order."""
    names = {name.rpartition(".")[0] for name in parameters if name.startswith(f"{section}.")}
    return sorted(names, key=lambda name: int(name.rpartition(".")[2]))


def _linear(parameters: Parameters, layer: str, features: jax.Array) -> jax.Array:
    """Return the output of a linear layer, whose weight has the shape (outputs, inputs)."""
    return features @ parameters[f"{layer}.weight"].T + parameters[f"{layer}.bias"]


def _halved(images: jax.Array) -> jax.Array:
    """Return the means of 2x2 pixels, of images of shape (samples, height, width, channels)."""
    window = (1, 2, 2, 1)
    sums: jax.Array = jax.lax.reduce_window(images, 0.0, jax.lax.add, window, window, "VALID")
    return sums / 4


class JaxLoop:
    """A training that begins with torch's initial parameters, and has the harness's batches in their order.

    Dropout has to be off: no other library draws torch's masks.
    """

    def __init__(self, assignment: Assignment) -> None:
        trial = assignment.trial
        workload = load_workload(assignment)
        samples = load_splits(workload).train
        images, labels = samples.batch(range(len(samples)))
        self.images, self.labels = images.numpy(), labels.numpy().astype(np.int32)
        seed_everything(trial.seed)
        model = workload.build_model()
        steps = trial.cell.length.in_steps(0)  # the length is in steps
        self.learning_rates = _learning_rates(workload, model, steps)
        self.parameters: Parameters = {}
        for name, value in model.state_dict().items():
            self.parameters[name] = jnp.array(value.numpy())
        optimizer = optax.scale_by_adam()  # its defaults are those of torch
        self.moments = optimizer.init(self.parameters)
        self.train_step = _make_step(MODELS[trial.cell.workload.uses], optimizer)
        self.batches = _batches(
            BatchOrder(
                samples=len(samples),
                batch_size=trial.cell.axes.batch_size,
                seed=derive_seed(trial.seed),
                dp_rank=0,
                dp_size=1,
            )
        )
        self._losses: list[jax.Array] = []

    def train(self, steps: int) -> None:
        """Train so many more steps, and wait until the device is done with them."""
        for _ in range(steps):
            indices = next(self.batches)
            self.parameters, self.moments, loss = self.train_step(
                self.parameters,
                self.moments,
                self.images[indices],
                self.labels[indices],
                self.learning_rates[len(self._losses)],
            )
            self._losses.append(loss)
        jax.block_until_ready((self.parameters, self._losses[-1]))

    @property
    def losses(self) -> list[float]:
        """Return the loss of every step so far."""
        losses: list[float] = np.asarray(self._losses, dtype=np.float64).tolist()
        return losses


def _learning_rates(workload: Workload, model: nn.Module, steps: int) -> list[float]:
    """Return the learning rate of each step, as torch's schedule has them."""
    optimizer = workload.optimizer(model)
    schedule = workload.schedule(optimizer, steps)
    if schedule is None:
        return [optimizer.param_groups[0]["lr"]] * steps
    rates = []
    for _ in range(steps):
        rates.append(float(schedule.get_last_lr()[0]))
        optimizer.step()  # without gradients; a schedule warns if no step came before its own
        schedule.step()
    return rates


def _make_step(forward: Forward, optimizer: optax.GradientTransformation) -> Callable[..., Any]:
    """Return a compiled optimizer step: parameters, moments, batch and rate to the next ones."""

    def mean_loss(parameters: Parameters, images: jax.Array, labels: jax.Array) -> jax.Array:
        """Return the mean cross-entropy over the samples."""
        logits = forward(parameters, images)
        losses: jax.Array = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses.mean()

    def train_step(
        parameters: Parameters, moments: Any, images: jax.Array, labels: jax.Array, rate: float
    ) -> tuple[Parameters, Any, jax.Array]:
        """Return parameters and moments after the step, and the loss before it."""
        loss, gradients = jax.value_and_grad(mean_loss)(parameters, images, labels)
        updates, moments = optimizer.update(gradients, moments)
        updates = jax.tree.map(lambda update: -rate * update, updates)
        return cast(Parameters, optax.apply_updates(parameters, updates)), moments, loss

    return cast(Callable[..., Any], jax.jit(train_step, donate_argnums=(0, 1)))


def _batches(order: BatchOrder) -> Iterator[Indices]:
    """Yield the indices of each batch, one epoch after the other."""
    while True:
        yield from order
        order.next_step += order.steps
