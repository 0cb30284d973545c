"""Writes a model in each format, and loads it again as a function of tensors."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.utils._pytree import tree_leaves

from harness.core.errors import NotApplied
from harness.serving.calls import CallShape
from workloads.base import Workload

# A model that was loaded: the tensors of its output, in eager mode's order.
Served = Callable[..., list[Tensor]]
ONNX_FILE = "model.onnx"
TORCH_FILE = "model.pt2"
SPECIAL_TOKENS = {  # of BERT, by transformers' names
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
ONNX_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


@dataclass(frozen=True)
class Exporter:
    """How a model is written to a folder and loaded from it."""

    # Returns the names of the inputs, in their order.
    write: Callable[[Workload, nn.Module, CallShape, Path], Sequence[str]]
    # The model in eager mode is passed too, for formats that hold the parameters alone.
    load: Callable[[Path, nn.Module, int], Served]


def export_program(model: nn.Module, shape: CallShape) -> ExportedProgram:
    """Return torch's graph of a model, for inputs with the recorded varying sizes.

    `Dim.AUTO` lets torch infer how sizes depend on each other, such as the equal numbers of samples of
    two inputs. The comparison with eager mode fails if torch takes a varying size for constant.
    """
    dimensions = tuple(dict.fromkeys(varying, Dim.AUTO) for varying in shape.varying)
    example = tuple(tensor.clone() for tensor in shape.example)
    with warnings.catch_warnings():
        # Torch copies one of its classes, which it has deprecated.
        warnings.simplefilter("ignore", FutureWarning)
        return torch.export.export(model, example, dynamic_shapes=dimensions)


def _write_torch(
    workload: Workload, model: nn.Module, shape: CallShape, folder: Path
) -> Sequence[str]:
    """Write torch's graph."""
    program = export_program(model, shape)
    torch.export.save(program, folder / TORCH_FILE)
    return input_names(program)


def input_names(program: ExportedProgram) -> list[str]:
    """Return the names of the tensors that a graph takes, in their order."""
    return [str(name) for name in program.graph_signature.user_inputs]


def _load_torch(folder: Path, eager: nn.Module, threads: int) -> Served:
    """Load torch's graph, which torch runs operation by operation."""
    module = torch.export.load(folder / TORCH_FILE).module()
    return lambda *inputs: tree_leaves(module(*inputs))


def _write_onnx(
    workload: Workload, model: nn.Module, shape: CallShape, folder: Path
) -> Sequence[str]:
    """Write an ONNX graph, whose axes of varying size have names.

    Weights too large for one file get further files.
    """
    program = export_program(model, shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of onnxscript and of torch, about each other
        written = torch.onnx.export(program, dynamo=True, verbose=False)
    if written is None:
        raise NotApplied("torch.onnx.export returned nothing")
    inputs = written.model.graph.inputs
    names: dict[Any, str] = {}  # by the names that torch has given
    for index, value in enumerate(inputs):
        for size, name in zip(value.shape or (), shape.axes(index), strict=True):
            if isinstance(size, int) or str(size) in names:
                continue
            # onnxruntime takes axes of one name for equally long, and lets them share memory.
            is_taken = name in names.values()
            names[str(size)] = f"{name}_{index}" if is_taken else name
    written.rename_axes(names)
    written.save(str(folder / ONNX_FILE))
    return [str(value.name) for value in inputs]


def _load_onnx(folder: Path, eager: nn.Module, threads: int) -> Served:
    """Load an ONNX graph with onnxruntime, on the device of the eager model.

    Raises NotApplied if onnxruntime can't run on that device: by default, it would fall back to the CPU.
    """
    import onnxruntime

    device = next(eager.parameters()).device.type
    provider = ONNX_PROVIDERS[device]
    if provider not in onnxruntime.get_available_providers():
        raise NotApplied(
            f"onnxruntime has no {provider} here; needed: onnxruntime-gpu, or device: cpu"
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors
    session = onnxruntime.InferenceSession(folder / ONNX_FILE, options, providers=[provider])
    if provider not in session.get_providers():  # it is there and can't be loaded
        raise NotApplied(
            f"onnxruntime runs on the CPU instead of its {provider}, which needs another CUDA or cuDNN"
            " than this machine has; needed: those that onnxruntime-gpu is made for, or device: cpu"
        )
    names = [node.name for node in session.get_inputs()]

    def run(*inputs: Tensor) -> list[Tensor]:
        arrays = [tensor.detach().cpu().numpy() for tensor in inputs]
        outputs = session.run(None, dict(zip(names, arrays, strict=True)))
        return [torch.from_numpy(output).to(device) for output in outputs]

    return run


def _write_inductor(
    workload: Workload, model: nn.Module, shape: CallShape, folder: Path
) -> Sequence[str]:
    """Compile the graph ahead of time.

    By default, Inductor compiles the number of threads into the code: the same file would be served
    with that many, whatever a server sets.
    """
    program = export_program(model, shape)
    torch._inductor.aoti_compile_and_package(
        program,
        package_path=os.fspath(folder / TORCH_FILE),
        inductor_configs={"cpp.dynamic_threads": True},
    )
    return input_names(program)


def _load_inductor(folder: Path, eager: nn.Module, threads: int) -> Served:
    """Load compiled code; it takes torch's number of threads."""
    compiled: Any = torch._inductor.aoti_load_package(os.fspath(folder / TORCH_FILE))
    return lambda *inputs: tree_leaves(compiled(*inputs))


def pretrained_name(model: nn.Module) -> str:
    """Return the name of the submodule that is a model of transformers and has all parameters.

    It is empty for the model itself. Raises NotApplied if there is none.
    """
    from transformers import PreTrainedModel

    total = sum(parameter.numel() for parameter in model.parameters())
    for name, module in model.named_modules():
        size = sum(parameter.numel() for parameter in module.parameters())
        if isinstance(module, PreTrainedModel) and size == total:
            return str(name)
    raise NotApplied(
        f"{type(model).__name__} holds no model of transformers with all of its parameters; needed: a"
        " PreTrainedModel, as that of the workload distilbert"
    )


def _write_pretrained(
    workload: Workload, model: nn.Module, shape: CallShape, folder: Path
) -> Sequence[str]:
    """Write the model of transformers, and the tokenizer if the workload has one.

    That is an attribute `tokenizer` of the type `tokenizers.Tokenizer`. The model takes what its class
    documents, so that no names are returned.
    """
    # A copy, because a configuration notes where it was saved.
    pretrained: Any = copy.deepcopy(model.get_submodule(pretrained_name(model)))
    classes = workload.class_names()
    if len(classes) == pretrained.config.num_labels:
        pretrained.config.id2label = dict(enumerate(classes))
        pretrained.config.label2id = {name: number for number, name in enumerate(classes)}
    pretrained.save_pretrained(folder)
    tokenizer: Any = getattr(workload, "tokenizer", None)
    if tokenizer is None:
        return ()

    from transformers import PreTrainedTokenizerFast

    # As transformers loads it, with those special tokens of BERT that it has.
    special = {}
    for name, text in SPECIAL_TOKENS.items():
        if tokenizer.token_to_id(text) is not None:
            special[name] = text
    wrapped: Any = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    wrapped.save_pretrained(folder)
    return ()


def _load_pretrained(folder: Path, eager: nn.Module, threads: int) -> Served:
    """Load the folder with transformers, into a copy of the module that contains the model."""
    name = pretrained_name(eager)
    before: Any = eager.get_submodule(name)
    loaded = type(before).from_pretrained(folder).to(next(eager.parameters()).device).eval()
    model = loaded
    if name:
        model = copy.deepcopy(eager)
        model.set_submodule(name, loaded)
    return lambda *inputs: tree_leaves(model(*inputs))


EXPORTERS = {
    "onnx": Exporter(_write_onnx, _load_onnx),
    "torch-export": Exporter(_write_torch, _load_torch),
    "aotinductor": Exporter(_write_inductor, _load_inductor),
    "save_pretrained": Exporter(_write_pretrained, _load_pretrained),
}
