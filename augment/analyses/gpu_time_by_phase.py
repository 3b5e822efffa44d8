"""How much GPU time do forward, backward and optimizer take?

Each kernel, copy and memset belongs to the phase of its launch on the host. The first phase that fits counts:

- ``optimizer``: within an annotation ``Optimizer.step#…`` or ``Optimizer.zero_grad#…``.
- ``backward``: on a thread of the autograd engine, or within a node of the autograd graph
  (``autograd::engine::evaluate_function: …``, ``AddmmBackward0``), within an operator at which a ``fwdbwd`` flow ends,
  or within an annotation that says ``backward``.
- ``forward``: within an operator at which a ``fwdbwd`` flow begins, an ``nn.Module`` or an annotation that says
  ``forward``. It also has what the thread of such operators launches between the first and the last of them, before any
  event of a backward pass begins.
- ``other``: everything else that was launched, such as the copy of a batch to the device.
- ``unknown``: work without a launch in the trace.

In a trace without ``fwdbwd`` flows, the sequence numbers of the operators take their place. The durations of a device's
rows add up to the sum of the durations of all its work, so communication and computation that run at the same time both
count.

**What to do**: a backward of more than about twice the forward hints at recomputation or at unfused gradients; a long
optimizer at one that is not fused.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from augment import facts
from augment.arrays import NO_INDEX
from augment.core import GPU_WORK, LAUNCHES, Findings, OfDevice, Skipped, Trace, column

NAME = "gpu_time_by_phase"
NEEDS = (GPU_WORK, LAUNCHES)
_ORDER = (
    facts.host.TrainingPhase.FORWARD,
    facts.host.TrainingPhase.BACKWARD,
    facts.host.TrainingPhase.OPTIMIZER,
    facts.host.TrainingPhase.OTHER,
    NO_INDEX,
)


class Row(OfDevice, frozen=True):
    """One phase on one device."""

    phase: Annotated[str, column("One of forward, backward, optimizer, other and unknown.")]
    kernel_count: Annotated[int, column("Number of kernels, copies and memsets launched in it.", "count")]
    gpu_ns: Annotated[int, column("Sum of their durations.", "ns")]
    gpu_ratio: Annotated[float | None, column("Share of the durations of all work of the device.", "ratio")]


def analyze(trace: Trace) -> Findings | Skipped:
    """Divide the GPU time among the phases."""
    phase_of = facts.host.phases(trace)
    if phase_of is None:
        return Skipped("phases are unknown: no fwdbwd flow, autograd node, optimizer, module or annotation")
    launch = facts.gpu.work(trace).launch
    known = launch != NO_INDEX
    phase = np.full(len(launch), NO_INDEX, np.int64)
    phase[known] = phase_of[facts.host.stacks(trace).place_of[launch[known]]]
    shares = facts.gpu.gpu_time_by(trace, phase)
    rows = [
        Row(
            share.device.rank,
            share.device.device,
            "unknown" if share.key == NO_INDEX else facts.host.TrainingPhase(share.key).name.lower(),
            share.kernel_count,
            share.gpu_ns,
            share.gpu_ratio,
        )
        for share in sorted(shares, key=lambda share: (share.device.start, _ORDER.index(share.key)))
    ]
    return Findings(rows)
