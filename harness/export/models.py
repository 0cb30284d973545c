"""Writes a model as a graph of torch or of ONNX, and loads it again as a function of tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils._pytree import tree_leaves

from harness.core.errors import NotApplied
from harness.export.calls import CallShape

# A model that was loaded: the tensors of its output, in eager mode's order.
Served = Callable[..., list[Tensor]]
Write = Callable[[nn.Module, CallShape, Path], Sequence[str]]
Load = Callable[[Path, torch.device, int], Served]
ONNX_FILE = "model.onnx"
TORCH_FILE = "model.pt2"
ONNX_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


def _write_torch(model: nn.Module, shape: CallShape, folder: Path) -> Sequence[str]:
    """Write torch's graph.

    `Dim.AUTO` lets torch infer how sizes depend on each other, such as the equal numbers of samples of
    two inputs. The comparison with eager mode fails if torch takes a varying size for constant.
    """
    dimensions = tuple(dict.fromkeys(varying, Dim.AUTO) for varying in shape.varying)
    with warnings.catch_warnings():
        # Torch copies one of its classes, which it has deprecated.
        warnings.simplefilter("ignore", FutureWarning)
        program = torch.export.export(model, shape.example, dynamic_shapes=dimensions)
        torch.export.save(program, folder / TORCH_FILE)
    return [str(name) for name in program.graph_signature.user_inputs]


def _load_torch(folder: Path, device: torch.device, threads: int) -> Served:
    """Load torch's graph, which torch runs operation by operation."""
    program = torch.export.load(folder / TORCH_FILE)
    module = program.module()
    return lambda *inputs: tree_leaves(module(*inputs))


def _write_onnx(model: nn.Module, shape: CallShape, folder: Path) -> Sequence[str]:
    """Write an ONNX graph, whose axes of varying size have names; weights get a further file."""
    names = tuple(shape.names(index) for index in range(len(shape.example)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of onnxscript and of torch, about each other
        written = torch.onnx.export(
            model,
            shape.example,
            folder / ONNX_FILE,
            dynamo=True,
            verbose=False,
            dynamic_shapes=names,
        )
    if written is None:
        raise NotApplied("torch.onnx.export returned nothing")
    return [str(value.name) for value in written.model.graph.inputs]


def _load_onnx(folder: Path, device: torch.device, threads: int) -> Served:
    """Load an ONNX graph with onnxruntime.

    Raises NotApplied if onnxruntime can't run on the device: by default, it would fall back to the CPU.
    """
    import onnxruntime

    provider = ONNX_PROVIDERS[device.type]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors
    session = onnxruntime.InferenceSession(folder / ONNX_FILE, options, providers=[provider])
    if provider not in session.get_providers():
        raise NotApplied(
            f"onnxruntime can't run on its {provider} here; needed: onnxruntime-gpu and the CUDA that it"
            " is made for, or device: cpu"
        )
    names = [node.name for node in session.get_inputs()]

    def run(*inputs: Tensor) -> list[Tensor]:
        arrays = {}
        for name, tensor in zip(names, inputs, strict=True):
            arrays[name] = tensor.detach().cpu().numpy()
        outputs = session.run(None, arrays)
        return [torch.from_numpy(output).to(device) for output in outputs]

    return run


# How a model is written to a folder, which returns the names of its inputs, and loaded from it for a
# device and a number of threads.
EXPORTERS: dict[str, tuple[Write, Load]] = {
    "onnx": (_write_onnx, _load_onnx),
    "torch-export": (_write_torch, _load_torch),
}
