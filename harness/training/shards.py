"""The files of a checkpoint: each rank writes its own part, and nothing is gathered.

A part is a safetensors file. Its tensors are those that this rank alone has, such as its random
numbers, and its blocks of the tensors that all ranks share: parameters and the state of optimizers.
Where ranks have replicas, each writes as many rows. Everything that is no tensor is JSON in the
file's header. So whoever can write a checkpoint can't have code run by those that read it, and a
block says where in the whole tensor it belongs, however many ranks read it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from harness.core.errors import BadCheckpoint, NotApplied, one_line
from harness.core.storage import writing
from harness.training.manifest import SealedFile
from harness.training.mesh import ParallelMesh

WRITTEN_AT_ONCE = 2**24  # bytes
# The key of a JSON object that stands for what JSON does not have. A mapping becomes `dict`.
TENSOR, FLOATS, SHARED, TUPLE, DICT = "tensor", "floats", "shared", "tuple", "dict"
# safetensors' names of the types of tensors.
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
Offsets = tuple[int, ...]


class SavingCancelled(Exception):
    """A part is not wanted any more, before all of it was written."""


@dataclass(frozen=True)
class SharedTensor:
    """A tensor of which ranks have shards or replicas; in a content that was read, its name alone."""

    name: str
    tensor: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointPart:
    """What one rank writes: tensors by their keys in the file, and JSON that refers to them."""

    content: str
    tensors: Mapping[str, Tensor]


def block_of(tensor: Tensor) -> tuple[Tensor, Offsets]:
    """Return the rows, columns, … of a tensor that this rank has, and where they begin in the whole.

    That is all of it, except for a DTensor.
    """
    if not hasattr(tensor, "to_local"):
        return tensor.detach(), (0,) * tensor.dim()
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    planner = DefaultSavePlanner()
    planner.set_up_planner({"": tensor}, is_coordinator=False)
    local: Tensor = tensor.to_local().detach()
    for item in planner.create_local_plan().items:
        assert item.tensor_data is not None
        return local, tuple(item.tensor_data.chunk.offsets)
    return local[:0], (0,) * tensor.dim()  # of a rank outside the tensor's mesh


def _own_share(tensor: Tensor, mesh: ParallelMesh) -> tuple[Tensor, Offsets]:
    """Return the block that this rank writes: of its own, the rows that no replica of it writes."""
    block, offsets = block_of(tensor)
    index, count = mesh.ranks.rank, mesh.ranks.world_size
    placements: Any = getattr(tensor, "placements", None)
    if placements is not None:
        index, count = 0, 1
        device_mesh: Any = tensor.device_mesh  # type: ignore[attr-defined]
        for dimension, placement in enumerate(placements):
            if placement.is_replicate():
                index = index * device_mesh.size(dimension) + device_mesh.get_local_rank(dimension)
                count *= device_mesh.size(dimension)
    if not block.dim():
        return (block if index == 0 else block.new_empty(0)), offsets
    rows = len(block)
    start, stop = rows * index // count, rows * (index + 1) // count
    return block[start:stop], (offsets[0] + start, *offsets[1:])


def pack(content: Mapping[str, Any], mesh: ParallelMesh) -> CheckpointPart:
    """Return a rank's part with this content: plain values, tensors and shared tensors.

    The tensors share their memory with those of the content. Raises NotApplied for a tensor of a
    type that no file has, and for any other object.
    """
    packer = _Packer(mesh)
    packed = packer.pack(content, "")
    text = json.dumps({"content": packed, "blocks": packer.blocks})
    return CheckpointPart(content=text, tensors=packer.tensors)


class _Packer:
    """Turns values into JSON, and collects their tensors."""

    def __init__(self, mesh: ParallelMesh) -> None:
        self._mesh = mesh
        self.tensors: dict[str, Tensor] = {}
        self.blocks: dict[str, dict[str, Any]] = {}  # of shared tensors, by their names

    def pack(self, value: Any, path: str) -> Any:
        """Return a value as JSON can hold it; `path` is where it is in the content."""
        if isinstance(value, SharedTensor):
            self._add_block(value)
            return {SHARED: value.name}
        if isinstance(value, Tensor):
            return {TENSOR: self._add(path, value)}
        if isinstance(value, dict):
            items = []
            for number, (key, item) in enumerate(value.items()):
                name = key if isinstance(key, str) else str(number)
                items.append([self.pack(key, path), self.pack(item, f"{path}/{name}")])
            return {DICT: items}
        if isinstance(value, list) and value and all(type(item) is float for item in value):
            return {FLOATS: self._add(path, torch.tensor(value, dtype=torch.float64))}
        if isinstance(value, list | tuple):
            items = [self.pack(item, f"{path}/{number}") for number, item in enumerate(value)]
            return items if isinstance(value, list) else {TUPLE: items}
        return _plain(value, path)

    def _add(self, key: str, tensor: Tensor) -> str:
        """Add a tensor to the file, and return its key there."""
        if tensor.dtype not in DTYPES:
            raise NotApplied(
                f"a checkpoint can't hold {key}: found {tensor.dtype}; allowed:"
                f" {', '.join(str(dtype).removeprefix('torch.') for dtype in DTYPES)}"
            )
        while key in self.tensors:  # a mapping may have the keys 0 and "0"
            key += "'"
        self.tensors[key] = tensor.detach()
        return key

    def _add_block(self, shared: SharedTensor) -> None:
        """Add the block of a shared tensor that this rank writes, if it writes any."""
        assert shared.tensor is not None
        block, offsets = _own_share(shared.tensor, self._mesh)
        if block.numel() or (not shared.tensor.numel() and self._mesh.ranks.is_rank_0):
            key = self._add(f"shared/{shared.name}", block)
            shape = list(shared.tensor.shape)
            self.blocks[shared.name] = {"key": key, "shape": shape, "offsets": list(offsets)}


def _plain(value: Any, path: str) -> bool | int | float | str | None:
    """Return a value that JSON has, such as a number of NumPy; raises NotApplied for any other."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise NotApplied(
        f"a checkpoint can't hold {path}: found {type(value).__name__}; allowed: numbers, texts,"
        " tensors, and lists and mappings of these"
    )


class Staging:
    """Memory of the CPU that parts are copied to, so that training may go on while they are written.

    It is as large as one part and is used again for the next one.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_pinned = device.type == "cuda"
        self._copies: dict[str, Tensor] = {}

    def copy(self, part: CheckpointPart) -> CheckpointPart:
        """Return a copy of a part, which overwrites the one before it."""
        copies = {}
        for key, tensor in part.tensors.items():
            copy = self._copies.get(key)
            if copy is None or (copy.shape, copy.dtype) != (tensor.shape, tensor.dtype):
                copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._is_pinned)
            copies[key] = copy.copy_(tensor, non_blocking=True)
        if self._is_pinned:
            torch.cuda.synchronize()
        self._copies = copies
        return CheckpointPart(content=part.content, tensors=copies)


def write_part(
    path: Path, part: CheckpointPart, is_cancelled: Callable[[], bool] = lambda: False
) -> SealedFile:
    """Write a rank's part, flushed to the disk, and return its size and digest.

    Raises OSError, StorageError, and SavingCancelled.
    """
    digest, size = hashlib.sha256(), 0
    with writing(path), path.open("wb", buffering=0) as file:
        for data in _bytes_of(part):
            if is_cancelled():
                raise SavingCancelled
            written = 0
            while written < len(data):  # a raw file may take less than all
                written += file.write(data[written:])
            digest.update(data)
            size += len(data)
        os.fsync(file.fileno())
    return SealedFile(size=size, sha256=digest.hexdigest())


def _bytes_of(part: CheckpointPart) -> Iterator[memoryview]:
    """Yield the bytes of a safetensors file, some at a time: the header, then all tensors."""
    header: dict[str, Any] = {"__metadata__": {"content": part.content}}
    end = 0
    for key, tensor in part.tensors.items():
        begin, end = end, end + tensor.nbytes
        header[key] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield memoryview(len(text).to_bytes(8, "little") + text)
    for tensor in part.tensors.values():
        values = tensor.cpu().contiguous().reshape(-1).view(torch.uint8)
        data = values.numpy().data
        for start in range(0, len(data), WRITTEN_AT_ONCE):
            yield data[start : start + WRITTEN_AT_ONCE]


class SavedParts:
    """The parts of a checkpoint that all ranks have written, as somebody reads them again.

    `whole` is a file of whole tensors by their own names, if there is one. Whether the files are
    those that were written is for the caller to check. Every method raises BadCheckpoint.
    """

    def __init__(self, paths: Sequence[Path], whole: Path | None = None) -> None:
        self._paths = paths
        self._whole = whole

    @property
    def ranks(self) -> int:
        """Return how many ranks have saved it."""
        return len(self._paths)

    @property
    def folder(self) -> Path:
        """Return the checkpoint's folder."""
        return self._paths[0].parent

    def content(self, rank: int) -> dict[str, Any]:
        """Return what a rank has written; shared tensors are named, and have no values."""
        file = _open(self._paths[rank])
        unpacked: dict[str, Any] = _unpack(_json_of(file)["content"], file.get_tensor)
        return unpacked

    def block(self, name: str, offsets: Offsets, shape: Sequence[int]) -> Tensor:
        """Return a block of a shared tensor, put together from those that ranks have written."""
        blocks = self._blocks_of(name)
        values = torch.empty(tuple(shape), dtype=blocks[0].dtype)
        missing = values.numel()
        for block in blocks:
            placed = block.read(offsets, shape)
            if placed is not None:
                part, target = placed
                values[target] = part
                missing -= part.numel()
        if missing:
            raise BadCheckpoint(f"{self.folder}: found {name} without some of its rows")
        return values

    def whole(self, name: str) -> Tensor:
        """Return all of a shared tensor."""
        shape = self.shape(name)
        return self.block(name, (0,) * len(shape), shape)

    def with_values(self, value: Any) -> Any:
        """Return a content with all of each shared tensor in place of its name."""
        if isinstance(value, SharedTensor):
            return self.whole(value.name)
        if isinstance(value, dict):
            return {key: self.with_values(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)([self.with_values(item) for item in value])
        return value

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a shared tensor."""
        return self._blocks_of(name)[0].shape

    def _blocks_of(self, name: str) -> Sequence[_SavedBlock]:
        """Return the blocks of a shared tensor."""
        if name not in self._blocks:
            raise BadCheckpoint(f"{self.folder}: found no {name}")
        return self._blocks[name]

    @cached_property
    def _blocks(self) -> dict[str, list[_SavedBlock]]:
        """The blocks of every shared tensor, by its name."""
        blocks: dict[str, list[_SavedBlock]] = {}
        for path in self._paths:
            file = _open(path)
            for name, block in _json_of(file)["blocks"].items():
                shape, offsets = tuple(block["shape"]), tuple(block["offsets"])
                saved = _SavedBlock(file=file, key=block["key"], shape=shape, offsets=offsets)
                blocks.setdefault(name, []).append(saved)
        if self._whole is not None:
            file = _open(self._whole)
            for name in file.keys():  # noqa: SIM118  # it is no mapping
                shape = tuple(file.get_slice(name).get_shape())
                saved = _SavedBlock(file=file, key=name, shape=shape, offsets=(0,) * len(shape))
                blocks[name] = [saved]
        return blocks


@dataclass(frozen=True, kw_only=True)
class _SavedBlock:
    """A block of a shared tensor in a file."""

    file: Any  # of safetensors, which maps it into memory
    key: str
    shape: tuple[int, ...]  # of the whole tensor
    offsets: Offsets

    @property
    def dtype(self) -> torch.dtype:
        """Return the type of its values."""
        name = self.file.get_slice(self.key).get_dtype()
        return next(dtype for dtype in DTYPES if DTYPES[dtype] == name)

    def read(
        self, offsets: Offsets, shape: Sequence[int]
    ) -> tuple[Tensor, tuple[slice, ...]] | None:
        """Return what it has of the block of this shape at `offsets`, and where it belongs there.

        None for nothing.
        """
        saved = self.file.get_slice(self.key)
        source, target = [], []
        for own_start, own_size, start, size in zip(
            self.offsets, saved.get_shape(), offsets, shape, strict=True
        ):
            begin, end = max(own_start, start), min(own_start + own_size, start + size)
            if begin >= end:
                return None
            source.append(slice(begin - own_start, end - own_start))
            target.append(slice(begin - start, end - start))
        values = saved[tuple(source)] if source else self.file.get_tensor(self.key)
        return values, tuple(target)


def _open(path: Path) -> Any:
    """Return a safetensors file, which is mapped into memory; raises BadCheckpoint."""
    try:
        return safe_open(path, framework="pt")
    except Exception as error:
        raise BadCheckpoint(f"{path}: can't be read: {one_line(error)}") from error


def _json_of(file: Any) -> dict[str, Any]:
    """Return the JSON in the header of a rank's part."""
    content: dict[str, Any] = json.loads(file.metadata()["content"])
    return content


def _unpack(value: Any, get_tensor: Callable[[str], Tensor]) -> Any:
    """Return the value that `_Packer.pack` has turned into JSON."""
    if isinstance(value, list):
        return [_unpack(item, get_tensor) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == TENSOR:
        return get_tensor(content)
    if kind == FLOATS:
        return get_tensor(content).tolist()
    if kind == SHARED:
        return SharedTensor(content)
    items = [_unpack(item, get_tensor) for item in content]
    if kind == TUPLE:
        return tuple(items)
    return dict(items)
