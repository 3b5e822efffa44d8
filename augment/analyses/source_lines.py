"""Which lines of the program does the GPU time come from?

A row is a line of the user's program, or the lines that a compiler fused into one kernel (``model.py:79, 81``), on each
device. Each kernel, copy and memset belongs to one row, so ``gpu_ns`` adds up to the sum of the durations of all work
of the device; the row without a source has the work of which no line is known.

- ``line``: a compiled kernel, whose lines the compiler knows: PyTorch's ``inductor_trace_handler`` writes them into the
  trace, or they are given beside it (``--inductor-provenance``, ``--torch-trace``).
- ``function``: any other work, of a trace that was recorded ``with_stack=True``. The profiler records functions, so
  ``model.py:210`` is the line where the innermost function of the user's own around the launch begins. What backward
  launches comes from the function that called its forward operator.

The user's own is what belongs neither to Python, PyTorch or Triton, nor to what runs programs. If there is nothing but
installed packages, it is the innermost of theirs. Kernels that a captured graph launches have the function that
replays it.

**What to do**: begin with the line that costs most a step. See [source lines](source-lines.md).
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from augment import facts
from augment.arrays import combinations, sums
from augment.core import GPU_WORK, Findings, OfDevice, Skipped, Trace, column, text

NAME = "source_lines"
NEEDS = (GPU_WORK,)


class Row(OfDevice, frozen=True):
    """One line on one device."""

    source: Annotated[str | None, column("File and line; none for work of unknown origin.")]
    kind: Annotated[str | None, column("line, or function: the line where the function begins.")]
    function: Annotated[str | None, column("The function; of several, the first.")]
    path: Annotated[str | None, column("The file as it was recorded; of several, the first.")]
    gpu_ns: Annotated[int, column("Sum of the durations of its work.", "ns")]
    gpu_ratio: Annotated[float | None, column("Its share of the GPU time of the device.", "ratio")]
    per_step_ns: Annotated[float | None, column("Its GPU time in a step, the mean of all; none without steps.", "ns")]
    kernel_count: Annotated[int, column("Number of its kernels, copies and memsets.", "count")]
    longest: Annotated[str, column("The name of its work with the most time.")]


def analyze(trace: Trace) -> Findings | Skipped:
    """Divide the GPU time among lines."""
    source, work, events = facts.gpu.lines(trace), facts.gpu.work(trace), trace.events
    if not source:
        return Skipped(
            f"no work has a line of Python; record with {text.recording_words(trace.source.metadata).stacks}"
        )
    if not (work.end > work.ts).any():
        return Skipped("no GPU work takes time")
    windows = facts.steps.whole_steps(trace)
    in_step = facts.steps.step_of_work(trace, windows) >= 0
    count = len(windows) if len(windows) and (windows.number >= 0).all() else 0
    keys, code = combinations(facts.gpu.device_of_work(trace), source.site)
    ns = work.end - work.ts
    gpu, stepped = (sums(code, of, len(keys[0])) for of in (ns, np.where(in_step, ns, 0)))
    kernels = np.bincount(code, minlength=len(keys[0]))
    whole = sums(facts.gpu.device_of_work(trace), ns, len(work.devices))
    (owner, name), named = combinations(code, events.name[work.row])
    spent = sums(named, ns, len(owner))
    longest = {int(owner[place]): int(name[place]) for place in np.lexsort((spent, owner)).tolist()}
    rows = []
    for index, (device, site) in enumerate(zip(*(key.tolist() for key in keys), strict=True)):
        unit, first = work.devices[device], source.sites[site][0] if site >= 0 else None
        rows.append(
            Row(
                rank=unit.rank,
                device=unit.device,
                source=source.labels[site] if first else None,
                kind=("function" if first.is_start else "line") if first else None,
                function=first.function or None if first else None,
                path=first.file if first else None,
                gpu_ns=int(gpu[index]),
                gpu_ratio=int(gpu[index]) / int(whole[device]) if whole[device] else None,
                per_step_ns=int(stepped[index]) / count if count else None,
                kernel_count=int(kernels[index]),
                longest=trace.strings[longest[index]],
            )
        )
    rows.sort(
        key=lambda row: (facts.gpu.sort_key(row.rank), facts.gpu.sort_key(row.device), -row.gpu_ns, row.source or "~")
    )
    return Findings(rows)
