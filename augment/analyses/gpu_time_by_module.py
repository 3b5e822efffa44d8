"""Which modules of the model does the GPU time belong to?

A module is a call of ``torch.nn.Module`` as the profiler records it with ``with_stack=True`` (``nn.Module: Linear_4``).
``module`` is its path through the modules around it: ``Block_1/Linear_4``. Each kernel, copy and memset belongs to the
innermost module around its launch. The backward pass launches its work on another thread. That work belongs to the
module of the forward operator at which the ``fwdbwd`` flow begins; without flows, of the operator with the same
sequence number.

``gpu_ns`` covers the module and all modules in it, ``self_gpu_ns`` the module alone. Over the rows of a device,
``self_gpu_ns`` adds up to the sum of the durations of all its work. The row without a module has the work that belongs
to none.

**What to do**: the modules with most time are those to compile, to fuse or to shard first.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from augment.arrays import NO_INDEX
from augment.core import GPU_WORK, LAUNCHES, Findings, OfDevice, Skipped, Trace, column, text
from augment.facts import gpu, host

NAME = "gpu_time_by_module"
NEEDS = (GPU_WORK, LAUNCHES)


class Row(OfDevice, frozen=True):
    """One module on one device."""

    module: Annotated[str | None, column("The path of the module; none for the work that belongs to no module.")]
    call_count: Annotated[int, column("Number of calls.", "count")]
    kernel_count: Annotated[
        int, column("Number of kernels, copies and memsets that belong to it or to modules in it.", "count")
    ]
    gpu_ns: Annotated[int, column("Sum of their durations.", "ns")]
    backward_gpu_ns: Annotated[int, column("The part of gpu_ns that the backward pass launched.", "ns")]
    self_gpu_ns: Annotated[int, column("The part of gpu_ns that belongs to no module in it.", "ns")]


def analyze(trace: Trace) -> Findings | Skipped:
    """Divide the GPU time among the modules."""
    tree = host.module_calls(trace)
    if not len(tree.frame):
        return Skipped(f"no calls of nn.Module; record with {text.recording_words(trace.source.metadata).stacks}")
    work = gpu.module_work(trace)
    if not (work.path != NO_INDEX).any():
        return Skipped("no GPU work belongs to a module")
    calls = np.bincount(tree.path, minlength=len(tree.paths)).tolist()
    parts = gpu.gpu_time_by(trace, work.path * 2 + work.backward)  # both parts of NO_INDEX are below 0
    rows = []
    for device in dict.fromkeys(part.device for part in parts):
        # the rows of one device: modules in the order of their names, then the row without a module
        of_device = [part for part in parts if part.device == device]
        # count, GPU time, the backward pass's part, exclusive time; the last entry stands for no module
        figures = [[0, 0, 0, 0] for _ in range(len(tree.paths) + 1)]
        for share in of_device:
            path, backward = divmod(share.key, 2)
            sums = figures[path]
            sums[0] += share.kernel_count
            sums[1] += share.gpu_ns
            sums[2] += share.gpu_ns * backward
            sums[3] += share.gpu_ns
        for path in range(len(tree.paths) - 1, -1, -1):  # parents come first: here, children are done before them
            if tree.parent[path] != NO_INDEX:
                for column_ in range(3):
                    figures[tree.parent[path]][column_] += figures[path][column_]
        named = [*tree.paths, None]
        of_modules = [
            Row(device.rank, device.device, name, count, *sums)
            for name, count, sums in zip(named, [*calls, 0], figures, strict=True)
            if sums[0]
        ]
        rows += sorted(of_modules, key=lambda row: (row.module is None, row.module or ""))
    return Findings(rows, (), host.crossing_diagnostics(trace))
