"""Digests of tensors see every change of type, shape or bytes, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from harness.training.recorder import digest_tensor

DTYPES = (
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.complex64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)
SHAPES = st.lists(st.integers(1, 6), min_size=1, max_size=4)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Return a tensor of any bits, or of a few values that occur often."""
    shape, dtype = draw(SHAPES), draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    if dtype == torch.bool or draw(st.booleans()):
        return torch.randint(0, 3, shape, generator=generator).to(dtype)
    count = torch.Size(shape).numel() * dtype.itemsize
    content = torch.randint(0, 256, (count,), generator=generator, dtype=torch.uint8)
    return content.view(dtype).reshape(shape)


def bits(tensor: Tensor) -> Tensor:
    """Return a tensor's bytes, shape (elements, bytes of each); changes go into the tensor."""
    return tensor.view(-1).view(torch.uint8).view(tensor.numel(), -1)


def flip_bit(tensor: Tensor, draw: st.DataObject) -> Tensor:
    mutant = tensor.clone()
    rows = bits(mutant)
    element = draw.draw(st.integers(0, len(rows) - 1))
    byte = draw.draw(st.integers(0, rows.shape[1] - 1))
    rows[element, byte] ^= 1 << draw.draw(st.integers(0, 7))
    return mutant


def flip_sign(tensor: Tensor, draw: st.DataObject) -> Tensor:
    """Flip the sign of one element; of floats the bit, which makes -0.0 of 0.0."""
    assume(tensor.dtype.is_floating_point)
    mutant = tensor.clone()
    rows = bits(mutant)
    rows[draw.draw(st.integers(0, len(rows) - 1)), -1] ^= 128
    return mutant


def swap(tensor: Tensor, draw: st.DataObject) -> Tensor:
    """Swap two elements, near or far."""
    mutant = tensor.clone()
    rows = bits(mutant)
    one, other = (draw.draw(st.integers(0, len(rows) - 1)) for _ in range(2))
    rows[[one, other]] = bits(tensor.clone())[[other, one]]
    return mutant


def permute_rows(tensor: Tensor, draw: st.DataObject) -> Tensor:
    """Put the slices along one dimension in another order."""
    dimension = draw.draw(st.integers(0, tensor.dim() - 1))
    order = draw.draw(st.permutations(range(tensor.shape[dimension])))
    return tensor.index_select(dimension, torch.tensor(order))


def reshape(tensor: Tensor, draw: st.DataObject) -> Tensor:
    """Give the same bytes another shape."""
    shapes = [(-1,), (1, *tensor.shape), (*tensor.shape, 1), (tensor.numel(), 1)]
    return tensor.reshape(draw.draw(st.sampled_from(shapes)))


def reinterpret(tensor: Tensor, draw: st.DataObject) -> Tensor:
    """Give the same bytes another type."""
    alike = [dtype for dtype in DTYPES if dtype.itemsize == tensor.dtype.itemsize]
    dtype = draw.draw(st.sampled_from(alike))
    assume(torch.bool not in (dtype, tensor.dtype))
    return tensor.view(dtype)


def convert(tensor: Tensor, draw: st.DataObject) -> Tensor:
    """Give the same numbers another type."""
    assume(not tensor.dtype.is_complex)
    return tensor.to(draw.draw(st.sampled_from(DTYPES)))


def shorten(tensor: Tensor, draw: st.DataObject) -> Tensor:
    """Leave out the last slice of one dimension."""
    dimension = draw.draw(st.integers(0, tensor.dim() - 1))
    return tensor.narrow(dimension, 0, tensor.shape[dimension] - 1)


def transpose(tensor: Tensor, draw: st.DataObject) -> Tensor:
    """Leave the memory as it is, and read it in another order."""
    return tensor.movedim(0, -1)


MUTATIONS: Mapping[str, Callable[[Tensor, st.DataObject], Tensor]] = {
    mutation.__name__: mutation
    for mutation in (
        flip_bit,
        flip_sign,
        swap,
        permute_rows,
        reshape,
        reinterpret,
        convert,
        shorten,
        transpose,
    )
}


def is_same(a: Tensor, b: Tensor) -> bool:
    """Return whether type, shape and bytes are the same."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(torch.equal(bits(a.contiguous()), bits(b.contiguous())))


@given(tensor=tensors(), name=st.sampled_from(sorted(MUTATIONS)), draw=st.data())
def test_every_mutation_of_a_tensor_changes_its_digest(
    tensor: Tensor, name: str, draw: st.DataObject
) -> None:
    mutant = MUTATIONS[name](tensor, draw)
    assume(not is_same(tensor, mutant))  # such as two equal elements that were swapped
    assert digest_tensor(mutant) != digest_tensor(tensor)


@given(tensor=tensors())
def test_memory_layout_does_not_change_a_digest(tensor: Tensor) -> None:
    in_another_order = tensor.movedim(0, -1).contiguous().movedim(-1, 0)
    strided = torch.stack([tensor, tensor], dim=-1)[..., 0]
    digests = {digest_tensor(layout) for layout in (tensor, in_another_order, strided)}
    assert len(digests) == 1
