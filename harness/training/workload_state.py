"""The state that training changes in a workload, such as a moving average of the weights.

It is saved in checkpoints and digested, as the model and the optimizer are. What a workload changes
without saying so is noticed: such a trial would resume with less than it had, and so does not.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from harness.core.errors import NotApplied
from harness.training.fingerprint import add_tensor, full_tensor
from harness.training.shards import SharedTensor
from workloads.base import Workload

MOST_OF_INT64 = 2**63
PLAIN_TYPES = (bool, int, float, str, type(None))
SETTINGS = ("options", "data")  # attributes of every workload, which are frozen
# Values that pickle refuses or saves by name, and that have no state.
CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, type)


class WorkloadState:
    """The state of one rank's workload."""

    def __init__(self, workload: Workload, restored: Iterable[object]) -> None:
        """Note the workload's attributes before training.

        `restored` is what checkpoints restore anyway and a workload may refer to: the model with
        its parts and tensors, the optimizer, the schedule. Raises NotApplied if the workload's
        `state_dict` returns what can't be saved, or can't be loaded again.
        """
        self.workload = workload
        self.is_declared = type(workload).state_dict is not Workload.state_dict
        self._watch: AttributeWatch | None = None
        if self.is_declared:
            if self.save() and type(workload).load_state_dict is Workload.load_state_dict:
                name = type(workload).__name__
                raise NotApplied(f"{name} has state_dict(); needed: load_state_dict(state) too")
        else:
            self._watch = AttributeWatch(workload, restored)

    def save(self) -> dict[str, Any]:
        """Return the state as plain values and unsharded tensors on the CPU.

        Every rank must call this.
        """
        return self._plain(lambda tensor, _: full_tensor(tensor).clone())

    def capture(self) -> dict[str, Any]:
        """Return the state for a checkpoint: plain values and tensors, no copies; shards are named."""
        return self._plain(_share_if_sharded)

    def _plain(self, convert: Callable[[torch.Tensor, str], Any]) -> dict[str, Any]:
        """Return the state as plain values, and tensors as `convert` returns them."""
        name = f"{type(self.workload).__name__}.state_dict()"
        plain: dict[str, Any] = _to_plain(self.workload.state_dict(), name, convert)
        return plain

    def load(self, state: dict[str, Any]) -> None:
        """Restore the state that `save` returned."""
        if state:
            self.workload.load_state_dict(state)

    def digest(self) -> str | None:
        """Return the SHA-256 of the state, None if there is none; every rank must call this."""
        state = self.save()
        if not state:
            return None
        digest = hashlib.sha256()
        _add_value(digest.update, state)
        return digest.hexdigest()

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Return the values of the state by name, other values than tensors as tensors.

        Every rank must call this.
        """
        return list(_named_tensors("", self.save()))

    def missing_from_checkpoints(self) -> str | None:
        """Return why a trial can't resume from a checkpoint of now, None if it can."""
        changed = self._watch.changed() if self._watch is not None else []
        if not changed:
            return None
        name = type(self.workload).__name__
        return (
            f"training has changed {', '.join(changed)} of {name}, which no checkpoint has; needed:"
            f" {name}.state_dict() and load_state_dict(), or a state_dict() that returns {{}} if it"
            " has no effect"
        )


class AttributeWatch:
    """Notices which attributes of a workload have changed since this object was made.

    Tensors are compared by identity and version, which takes no time however large they are;
    everything else by a digest of what pickle makes of it.
    """

    def __init__(self, workload: Workload, restored: Iterable[object]) -> None:
        self._workload = workload
        self._restored = {id(part) for part in restored}
        # By the tensor's id: the tensor and how often it had been changed in place.
        self._tensors: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self._at_start = self._digests(self._note_tensor)

    def changed(self) -> list[str]:
        """Return the names of the attributes that are new, gone or changed, sorted."""
        now = self._digests(self._compare_tensor)
        names = sorted({*now, *self._at_start})
        return [name for name in names if now.get(name) != self._at_start.get(name)]

    def _digests(self, describe: Callable[[torch.Tensor], object]) -> dict[str, bytes]:
        """Return a digest of each attribute; `describe` returns the substitute for a tensor."""
        digests = {}
        for name, value in vars(self._workload).items():
            if name not in SETTINGS:
                digests[name] = self._digest(value, describe)
        return digests

    def _digest(self, value: Any, describe: Callable[[torch.Tensor], object]) -> bytes:
        """Return a digest of a value, by its identity if it can't be pickled."""
        stream = _HashingStream()
        try:
            _Pickler(stream, self._restored, describe).dump(value)
        except Exception:  # whatever an object of the user's raises when it is pickled
            return str(id(value)).encode()
        return stream.digest.digest()

    def _note_tensor(self, tensor: torch.Tensor) -> object:
        """Remember a tensor's version, which every operation in place raises."""
        self._tensors[id(tensor)] = (weakref.ref(tensor), _version(tensor))
        return id(tensor)

    def _compare_tensor(self, tensor: torch.Tensor) -> object:
        """Return the same as `_note_tensor` did, unless the tensor is another or has changed.

        The weak reference tells it from a later tensor with the same id.
        """
        if id(tensor) in self._tensors:
            noted, version = self._tensors[id(tensor)]
            if noted() is tensor and version == _version(tensor):
                return id(tensor)
        return "changed"


class _HashingStream(io.RawIOBase):
    """A file that keeps nothing but a digest."""

    def __init__(self) -> None:
        self.digest = hashlib.blake2b(digest_size=16)

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, content: Any) -> int:
        """Add the content to the digest."""
        self.digest.update(content)
        return len(content)


class _Pickler(pickle.Pickler):
    """Pickles a value, with references in place of tensors, code, and objects that checkpoints restore."""

    def __init__(
        self, stream: Any, restored: set[int], describe: Callable[[torch.Tensor], object]
    ) -> None:
        super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL)
        self._restored = restored
        self._describe = describe

    def persistent_id(self, value: Any) -> Any:
        """Return the reference to pickle instead of a value; None to pickle the value."""
        if id(value) in self._restored or isinstance(value, CODE):
            return id(value)
        if isinstance(value, torch.Tensor):
            return ("tensor", self._describe(value))
        if isinstance(value, torch.Generator):  # pickle would get a new tensor each time
            return ("generator", value.get_state().numpy().tobytes())
        return None


def _version(tensor: torch.Tensor) -> int:
    """Return how often a tensor was changed in place; those of inference mode don't count it."""
    return 0 if tensor.is_inference() else tensor._version


def _share_if_sharded(tensor: torch.Tensor, path: str) -> torch.Tensor | SharedTensor:
    """Return a tensor, with a name where ranks have shards of it."""
    return SharedTensor(path, tensor) if hasattr(tensor, "to_local") else tensor


def _to_plain(value: Any, path: str, convert: Callable[[torch.Tensor, str], Any]) -> Any:
    """Return a state with its tensors converted; raises NotApplied for other types.

    `convert` gets each tensor and where it is in the state. Checkpoints are loaded without running
    any code, and so contain plain types only.
    """
    if isinstance(value, torch.Tensor):
        return convert(value, path)
    if isinstance(value, dict):
        return {key: _to_plain(value[key], f"{path}[{key!r}]", convert) for key in value}
    if type(value) in (list, tuple):
        items = [_to_plain(item, f"{path}[{n}]", convert) for n, item in enumerate(value)]
        return type(value)(items)
    if type(value) in PLAIN_TYPES:
        return value
    raise NotApplied(
        f"{path}: found {type(value).__name__}; allowed: tensors, numbers, texts, None, and lists,"
        " tuples and dicts of them"
    )


def _named_tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each value of a state, as `average['weight']` or `queue[0]`."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _named_tensors(f"{name}[{key!r}]" if name else str(key), item)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _named_tensors(f"{name}[{number}]", item)
    elif isinstance(value, bool | int | float) and abs(value) < MOST_OF_INT64:
        yield name, torch.tensor(value, dtype=None if isinstance(value, int) else torch.float64)
    else:
        yield name, torch.frombuffer(bytearray(repr(value).encode()), dtype=torch.uint8)


def _add_value(update: Callable[[bytes], object], value: Any) -> None:
    """Add types and values of a state to a digest, those of dicts in the order of their keys."""
    if isinstance(value, torch.Tensor):
        add_tensor(update, value)
    elif isinstance(value, dict):
        update(f"dict {len(value)};".encode())
        for key in sorted(value, key=repr):
            _add_value(update, key)
            _add_value(update, value[key])
    elif isinstance(value, (list, tuple)):
        update(f"{type(value).__name__} {len(value)};".encode())
        for item in value:
            _add_value(update, item)
    else:
        update(f"{type(value).__name__} {value!r};".encode())


def join_state_digests(digests: Sequence[str | None]) -> str | None:
    """Return one digest for the states of all ranks, None if no rank has one.

    Where all ranks have the same state, it does not depend on how many they are.
    """
    present = [digest for digest in digests if digest is not None]
    if not present:
        return None
    if len(set(present)) == 1:
        return present[0]
    return hashlib.sha256(" ".join(present).encode()).hexdigest()
