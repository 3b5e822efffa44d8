"""What findings call the device of a trace, and its vendor's tools: rules are written for NVIDIA's GPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping

from augment.arrays.ordering import distinct
from augment.arrays.types import Int32s, Int64s
from augment.trace import GPU_WORK, LAUNCHES, Category, Trace, derived

_GPU = re.compile(r"\bGPU(s?)\b")
#: words of the rules, and what they are on devices of other vendors
_AMD = {
    "CUDA graphs": "HIP graphs",
    "nvidia-smi -q -d CLOCK,PERFORMANCE": "amd-smi metric --clock --power --temperature",
    "PYTORCH_CUDA_ALLOC_CONF": "PYTORCH_HIP_ALLOC_CONF",
    "tensor cores": "matrix cores",
}
_ASCEND = {
    "nvidia-smi -q -d CLOCK,PERFORMANCE": "npu-smi info",
    "PYTORCH_CUDA_ALLOC_CONF": "PYTORCH_NPU_ALLOC_CONF",
    "torch.cuda.": "torch.npu.",
    "CUDA graphs": "graph mode (torchair)",
    "TORCH_LOGS=cudagraphs,recompiles": "TORCH_LOGS=recompiles",
}
_MTIA = {
    "nvidia-smi -q -d CLOCK,PERFORMANCE": "the vendor's tool",
    "torch.cuda.": "torch.mtia.",
    "CUDA graphs (torch.compile(mode='reduce-overhead') or torch.cuda.graph)": "fewer and larger operators",
    "CUDA graphs": "fewer and larger operators",
}
_WORDS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "amd": ("GPU", _AMD),
    "ascend": ("NPU", _ASCEND),
    "mtia": ("MTIA device", _MTIA),
    "nvidia": ("GPU", {}),
}


@derived
def vendor(trace: Trace) -> str:
    """``amd``, ``ascend``, ``mtia``, or ``nvidia``, which also stands for unknown ones.

    Names of devices tell it, else those of calls.
    """
    names = " ".join(name or "" for _, name in trace.source.devices).lower()
    if any(word in names for word in ("amd", "instinct", "radeon")):
        return "amd"
    if names.strip():
        return "ascend" if "ascend" in names else "nvidia"
    events = trace.events
    if any(name.lower().startswith("mtia") for name in _used(trace, events.category_name[:])):
        return "mtia"
    calls = _used(trace, events.name[events.slices_of(*LAUNCHES)])
    if any(name.startswith("AscendCL@") for name in calls):
        return "ascend"
    return "amd" if any(name.startswith("hip") for name in calls) else "nvidia"


def _used(trace: Trace, codes: Int32s) -> list[str]:
    """The strings of the trace that ``codes`` stand for, each once."""
    return [trace.strings[code] for code in distinct(codes).tolist()]


def fitting(trace: Trace, text: str) -> str:
    """``text`` in the words of the trace's device."""
    noun, words = _WORDS[vendor(trace)]
    for word, other in words.items():
        text = text.replace(word, other)
    return text if noun == "GPU" else _GPU.sub(rf"{noun}\1", text)


def known_slices(trace: Trace) -> Int64s:
    """The rows of slices that rules know: of PyTorch's profiler, on the host or on a device."""
    return trace.events.slices_of(*LAUNCHES, *GPU_WORK, Category.CPU_OP, Category.USER_ANNOTATION)


def has_work(trace: Trace) -> bool:
    """Whether the trace has slices that rules know."""
    return len(known_slices(trace)) > 0
