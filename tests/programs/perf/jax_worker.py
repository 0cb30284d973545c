"""Trains an MLP or a CNN in JAX, in a process of its own: `python -m tests.programs.perf.jax_worker FOLDER`.

`tests.programs.perf.jax_loop` starts it and leaves in FOLDER what torch trains with: the initial parameters,
the samples, the learning rates and the order of the batches. The process reads requests, a JSON
object a line, and answers each with one. It imports no torch.

It is what JAX's own guides show: a pure function of the loss, `jax.value_and_grad`, Adam of Optax,
and one `jax.jit` around the whole step, which may overwrite its arguments. Losses stay on the
device until they are asked for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

from harness.training.order import BatchOrder, Indices

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


class Training:
    """A training that goes on where it stopped."""

    def __init__(self, folder: Path) -> None:
        recipe = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
        with np.load(folder / "arrays.npz") as arrays:
            self.images = arrays["images"]
            self.labels = arrays["labels"].astype(np.int32)
            self.learning_rates = arrays["learning_rates"]
        with np.load(folder / "parameters.npz") as arrays:
            self.parameters: Parameters = {name: jnp.asarray(arrays[name]) for name in arrays}
        optimizer = optax.scale_by_adam()  # its defaults are those of torch
        self.moments = optimizer.init(self.parameters)
        self.train_step = _make_step(MODELS[recipe["model"]], optimizer)
        self.batches = _batches(
            BatchOrder(
                samples=len(self.images),
                batch_size=recipe["batch_size"],
                seed=recipe["order_seed"],
                dp_rank=0,
                dp_size=1,
            )
        )
        self.losses: list[jax.Array] = []

    def train(self, steps: int) -> None:
        """Train so many more steps, and wait until the device is done with them."""
        for _ in range(steps):
            indices = next(self.batches)
            self.parameters, self.moments, loss = self.train_step(
                self.parameters,
                self.moments,
                self.images[indices],
                self.labels[indices],
                self.learning_rates[len(self.losses)],
            )
            self.losses.append(loss)
        # Of the last step alone: it needs all steps before.
        self.losses[-1].block_until_ready()
        for parameter in self.parameters.values():
            parameter.block_until_ready()


def _make_step(forward: Forward, optimizer: optax.GradientTransformation) -> Callable[..., Any]:
    """Return a compiled optimizer step: parameters, moments, batch and rate to the next ones."""

    def mean_loss(parameters: Parameters, images: jax.Array, labels: jax.Array) -> jax.Array:
        """Return the mean cross-entropy over the samples."""
        logits = forward(parameters, images)
        losses: jax.Array = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses.mean()

    def train_step(
        parameters: Parameters, moments: Any, images: jax.Array, labels: jax.Array, rate: jax.Array
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


def main() -> None:
    """Answer requests until there are no more: `{"steps": N}` trains, `{}` asks for the losses."""
    training = Training(Path(sys.argv[1]))
    print(json.dumps({"jax": jax.__version__, "optax": optax.__version__}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any] = {}
        if "steps" in request:
            training.train(request["steps"])
        else:
            answer["losses"] = np.asarray(training.losses, dtype=np.float64).tolist()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
