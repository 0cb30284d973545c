"""Strategy `pp`: each rank has some of the layers, and micro-batches pass through the ranks.

The workload says which its layers are. All ranks have the same samples, and the rest of the model,
such as embeddings and the last norm. A rank computes the workload's loss up to the end of its last
layer, and the next rank goes on from there. Gradients of the rest are parts of a sum at each rank,
and are added up after the last micro-batch: so a matrix may be used before the layers and again
after them. The schedule is torch's 1F1B (Narayanan et al. 2021, arXiv:2104.04473).

Evaluations, checkpoints and digests have the whole model at every rank while they last (`gathered`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.optim import Optimizer

from harness.core.errors import NotApplied
from harness.measure.clock import Phase, StepClock
from harness.measure.probe import undisturbed
from harness.records.record import Collective
from harness.training.execution import Compiler
from harness.training.ranks import broadcast_from
from harness.training.strategies.base import Strategy
from workloads.base import Batch, Workload

Loss = Callable[[nn.Module, Batch], Tensor]


class Pipeline(Strategy):
    """Train with Schedule1F1B, over stages of consecutive layers."""

    shards_parameters = True

    def prepare(
        self, model: nn.Module, workload: Workload, compiler: Compiler, clock: StepClock
    ) -> nn.Module:
        """Return `model`, which is whole until the first step.

        Raises NotApplied for a workload with fewer layers than ranks, for layers with buffers, for a
        loss that is no mean over samples, and for an `after_step` of its own.
        """
        ranks, name = self.mesh.ranks, type(workload).__name__
        self._model, self._clock = model, clock
        self._layers = list(workload.layers(model))
        self._forwards = [layer.forward for layer in self._layers]
        self._schedule: Schedule1F1B | None = None  # until a batch shows what the layers take
        count = len(self._layers)
        problem = None
        if count < ranks.world_size:
            problem = f"layers() has {count}; needed: one for each of {ranks.world_size} ranks"
        elif any(True for layer in self._layers for _ in layer.buffers()):
            problem = "layers() have buffers, of which each rank would have its own"
        elif type(workload).loss_weight is not Workload.loss_weight:
            problem = "loss_weight() weighs micro-batches, which the schedule can't"
        if type(workload).after_step is not Workload.after_step:
            problem = "after_step() gets a model whose layers are on several ranks"
        if problem is not None:
            raise NotApplied(f"strategy=pp is unavailable: {name}.{problem}")
        begins = [rank * count // ranks.world_size for rank in range(ranks.world_size + 1)]
        # The layers of each rank, by their numbers.
        self._shares = [range(*begins[rank : rank + 2]) for rank in range(ranks.world_size)]
        in_layers = {part for layer in self._layers for part in layer.parameters()}
        self._rest = [part for part in model.parameters() if part not in in_layers]
        return model

    # Training

    def train(
        self, loss: Loss, batch: Batch, micro_batches: Iterator[Batch], optimizer: Optimizer
    ) -> Tensor:
        """Leave the mean gradients of a batch in the parameters that this rank has.

        `micro_batches` are its equal parts. Returns the mean loss, the same at every rank. The first
        call takes away the parameters, and their state in the optimizer, of other ranks' layers. Raises
        NotApplied for layers that are not called one after the other, and for buffers that change after
        the first of them.
        """
        ranks = self.mesh.ranks
        if self._schedule is None:
            self._schedule = self._make_schedule(loss, batch)
            self._drop_foreign(optimizer)
            self._set_forwards(is_stage=True)
        self._stage_module.micro_batches = micro_batches
        losses: list[Tensor] = []
        self._clock.enter(Phase.communication)  # apart from what the stage enters
        if ranks.rank == 0:
            self._schedule.step(*batch, return_outputs=False)
        elif ranks.rank < ranks.world_size - 1:
            self._schedule.step(return_outputs=False)
        else:
            self._schedule.step(target=batch[0], losses=losses, return_outputs=False)
        self._clock.enter(Phase.communication)
        mean = torch.stack(losses).mean().detach() if losses else torch.zeros_like(self._example)
        return self._add_up(mean)

    def _add_up(self, loss: Tensor) -> Tensor:
        """Sum up over ranks the loss, which one rank has, and the gradients of the rest.

        A parameter that no rank has a gradient of keeps none.
        """
        has_gradient = [part.grad is not None for part in self._rest]
        flat = [loss.reshape(1), torch.tensor(has_gradient, dtype=loss.dtype, device=loss.device)]
        for part in self._rest:
            flat.append((torch.zeros_like(part) if part.grad is None else part.grad).reshape(-1))
        sums = torch.cat(flat)
        dist.all_reduce(sums)
        used = sums[1 : 1 + len(self._rest)].tolist()
        start = 1 + len(self._rest)
        for part, ranks_with_gradient in zip(self._rest, used, strict=True):
            if ranks_with_gradient:
                part.grad = sums[start : start + part.numel()].view_as(part)
            start += part.numel()
        return sums[0]

    def _make_schedule(self, loss: Loss, batch: Batch) -> Schedule1F1B:
        """Return the schedule, for micro-batches of the shapes that the first one has."""
        ranks, count = self.mesh.ranks, self.axes.grad_accum_steps
        micro_batch = tuple(part.chunk(count)[0] for part in batch)
        hidden = self._check_chain(loss, micro_batch)
        self._example = hidden.new_zeros(())
        self._stage_module = _StageModule(self._model, loss)
        is_first, is_last = ranks.rank == 0, ranks.rank == ranks.world_size - 1
        stage = _ClockedStage(
            self._stage_module,
            ranks.rank,
            ranks.world_size,
            self.mesh.device,
            input_args=micro_batch if is_first else hidden,
            output_args=self._example.clone().requires_grad_() if is_last else hidden,
        )
        stage.clock = self._clock
        return Schedule1F1B(stage, count, loss_fn=_first)

    def _check_chain(self, loss: Loss, micro_batch: Batch) -> Tensor:
        """Return a tensor such as layers pass on, and leave buffers as they are.

        Raises NotApplied unless the layers form a chain, and for a buffer that changes after the first.
        """
        outputs: list[Tensor] = []
        problems: list[str] = []
        at_layers: dict[str, Tensor] = {}  # buffers by name

        def forward(number: int, hidden: Any, *arguments: Any, **keywords: Any) -> Any:
            if not outputs:
                at_layers.update((name, part.clone()) for name, part in self._model.named_buffers())
            output = self._forwards[number](hidden, *arguments, **keywords)
            if number != len(outputs) or (outputs and hidden is not outputs[-1]):
                problems.append(f"layer {number} does not take what the one before it returns")
            elif not isinstance(output, Tensor) or not isinstance(hidden, Tensor):
                problems.append(f"layer {number} does not take and return one tensor")
            elif (output.shape, output.dtype) != (hidden.shape, hidden.dtype):
                problems.append(f"layer {number} returns another shape or type than it takes")
            outputs.append(output)
            return output

        for number, layer in enumerate(self._layers):
            layer.forward = partial(forward, number)
        with torch.no_grad(), undisturbed(self._model, self.mesh.device):
            loss(self._model, micro_batch)
            problems += self._changes_since(at_layers)
        self._set_forwards(is_stage=False)
        if len(outputs) != len(self._layers):
            problems.append(f"{len(outputs)} of {len(self._layers)} layers are called in a loss")
        if problems:
            raise NotApplied(f"strategy=pp is unavailable: {problems[0]}")
        return torch.empty_like(outputs[-1]).requires_grad_()

    def _changes_since(self, at_layers: Mapping[str, Tensor]) -> list[str]:
        """Return a problem for each buffer that has changed since the first layer was called.

        All ranks compute what comes before the layers, but not what comes after.
        """
        buffers = dict(self._model.named_buffers())
        problems = []
        for name, values in at_layers.items():
            if name in buffers and not torch.allclose(
                buffers[name], values, rtol=0, atol=0, equal_nan=True
            ):
                problems.append(f"buffer {name} changes after the first layer, at some ranks only")
        return problems

    def _set_forwards(self, *, is_stage: bool) -> None:
        """Have layers compute a stage, with stand-ins for those of other ranks, or the whole model."""
        own = self._shares[self.mesh.ranks.rank]
        for number, layer in enumerate(self._layers):
            layer.forward = self._forwards[number]
            if is_stage and number < own.start:
                layer.forward = _first if number < own.start - 1 else self._stage_module.receive
            elif is_stage and number == own.stop:
                layer.forward = _end_stage

    def check_communication(self, collectives: Sequence[Collective]) -> None:
        """Raise NotApplied if this rank did not pass on its activations, and gradients to the rank before."""
        ranks = self.mesh.ranks
        neighbours = (ranks.rank > 0) + (ranks.rank < ranks.world_size - 1)
        expected = neighbours * self.axes.grad_accum_steps
        calls = {sent.operation: sent.calls for sent in collectives}
        if calls.get("send") != expected:
            raise NotApplied(
                f"strategy=pp had no effect: rank {ranks.rank} sent {calls.get('send', 0)} tensors"
                f" in a step; expected: {expected}"
            )

    # The whole model

    @contextmanager
    def gathered(self, model: nn.Module, optimizer: Optimizer | None = None) -> Iterator[None]:
        """Have the whole model at every rank in a block: parameters, with `optimizer` gradients and state."""
        if self._schedule is None:
            yield
            return
        for owner, numbers in enumerate(self._shares):
            parts = [part for number in numbers for part in self._layers[number].parameters()]
            content = None
            if owner == self.mesh.ranks.rank:
                content = [_content_of(part, optimizer) for part in parts]
            content = self._broadcast(content, owner)
            if owner != self.mesh.ranks.rank:
                for part, (values, gradient, state) in zip(parts, content, strict=True):
                    part.data = values.to(self.mesh.device)
                    if optimizer is not None:
                        part.grad = None if gradient is None else gradient.to(self.mesh.device)
                        if state:
                            optimizer.state[part] = state
        self._set_forwards(is_stage=False)
        yield
        self._drop_foreign(optimizer)
        self._set_forwards(is_stage=True)

    def _broadcast(self, content: Any, owner: int) -> Any:
        """Return rank `owner`'s content at every rank, on the CPU."""
        return broadcast_from(owner, content)

    def _drop_foreign(self, optimizer: Optimizer | None) -> None:
        """Free the parameters of other ranks' layers, which keep their shapes, and their state."""
        own = self._shares[self.mesh.ranks.rank]
        for number, layer in enumerate(self._layers):
            if number not in own:
                for part in layer.parameters():
                    part.data = part.data.new_zeros(()).expand(part.shape)
                    part.grad = None
                    if optimizer is not None:
                        optimizer.state.pop(part, None)

    def full_weights(self, model: nn.Module) -> dict[str, Tensor]:
        """Return copies of all parameters and persistent buffers on the CPU, by name."""
        with self.gathered(model):
            return super().full_weights(model)

    def optimizer_state(self, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Return the state of all parameters."""
        with self.gathered(model, optimizer):
            return super().optimizer_state(model, optimizer)


class _StageModule(nn.Module):
    """The loss of micro-batches as far as a rank computes it."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self._loss = loss
        self.micro_batches: Iterator[Sequence[Tensor]] = iter(())  # of a step, in their order
        self._received: Tensor | None = None

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return what the last layer of this rank returns, or the loss.

        `inputs` are those of the first layer of this rank, or the micro-batch at rank 0.
        """
        self._received = inputs[0]
        micro_batch = tuple(next(self.micro_batches))
        try:
            return self._loss(self.model, micro_batch)
        except _StageEnd as end:
            return end.hidden

    def receive(self, hidden: Tensor, *arguments: Any, **keywords: Any) -> Tensor:
        """Stand in for the layer before this rank's: return what its rank has sent."""
        assert self._received is not None
        return self._received


class _StageEnd(Exception):
    """Ends a forward whose rest is the next rank's."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden


def _end_stage(hidden: Tensor, *arguments: Any, **keywords: Any) -> Tensor:
    """Stand in for the layer after this rank's."""
    raise _StageEnd(hidden)


def _first(hidden: Tensor, *arguments: Any, **keywords: Any) -> Tensor:
    """Return the first argument: a stand-in for a layer, and for the loss of what is a loss already."""
    return hidden


class _ClockedStage(PipelineStage):
    """A stage that tells the clock when it computes; the schedule waits for other ranks in between."""

    clock: StepClock

    def forward_one_chunk(self, *arguments: Any, **keywords: Any) -> Any:
        """Compute the forward of a micro-batch."""
        self.clock.enter(Phase.forward)
        output = super().forward_one_chunk(*arguments, **keywords)
        self.clock.enter(Phase.communication)
        return output

    def backward_one_chunk(self, *arguments: Any, **keywords: Any) -> None:
        """Compute the backward of a micro-batch."""
        self.clock.enter(Phase.backward)
        super().backward_one_chunk(*arguments, **keywords)
        self.clock.enter(Phase.communication)


def _content_of(part: nn.Parameter, optimizer: Optimizer | None) -> tuple[Any, Any, Any]:
    """Return values, gradient and optimizer state of a parameter."""
    if optimizer is None:
        return part.detach(), None, None
    return part.detach(), part.grad, dict(optimizer.state.get(part, {}))
