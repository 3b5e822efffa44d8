"""Where is the rest of the MFU: what did each moment of a step go into?

A row for each step and device. The step's window, ``wall_ns``, is that of [steps](#steps). Every moment
of it belongs to one of these parts, which add up to it to the nanosecond::

    ideal_compute_ns             the operations of matrix products, convolutions and attention at their dense peak
    compute_above_ns             what operators that are bound by compute took beyond that
    memory_ideal_ns              what is bound by memory, at the rate of memory, less its operations at their peak
    memory_above_ns              what it took beyond that
    latency_bound_ns             operators of less than 10 µs, and of twice their roof or more
    unmodelled_ns                computation of which no formula, or no peak, tells how long it had to take
    exposed_communication_ns     communication while nothing is computed
    exposed_memory_ns              copies and memsets alone
    host_wait_ns, kernel_wait_ns, other_wait_ns    nothing runs, by cause as in the idle time breakdown

A rank alone cannot tell which part of exposed communication waits for other ranks and which moves data: that is not
parted here. ``augment run`` of all ranks of a job parts it, in [job_step_efficiency](jobs.md#job_step_efficiency).

Kernels that overlap share a moment equally; an operator of which a part lies in a step counts there by that part.
[roofline](#roofline) tells of each operator what it is bound by.

``mfu_ratio`` is the time that ``model_flops`` would have taken at the dense peak, each at the rate of its own type of
number, by ``wall_ns``; ``hfu_ratio`` likewise of ``flops``. The model's operations are those that were done but for
recomputation: activation checkpointing, and the scores that the backward of attention computes again. Pairs of queries
and keys that a mask leaves out are not counted where the mask is recorded; of sequences of unknown lengths the least
is. Figures of papers that count 6 N a token and whole attention are greater: see [model_flops](#model_flops).

``covered_ratio`` is the share of the computing time that has a roof. Where less than 90 % of the time of matrix
products is counted there is no MFU, as in CUDA graphs, whose kernels no operator launches; ``lacking`` says so, and
what to do. Kernels whose kind of work is unknown may be products, and count as such there. Nor is there one of a step
whose operations are more than the device can do in its time. A slice of a device (MIG) has its share of the peak, by
its multiprocessors. ``overlap_of_possible_ratio`` is the
communication hidden behind computation by the most that could be: the lesser of both times.

The sentence on the track ``Step efficiency`` is the row in short. Its ``recomputed operations at the peak's rate`` are
HFU less MFU. Recomputing takes longer than that: the verdict says how long.

**What to do**: the largest part that is not useful computation is the first to shorten; the [diagnosis](diagnosis.md)
says how.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np

from augment import facts
from augment.core import GPU_WORK, Findings, OfDevice, Skipped, SliceTrack, Texts, Trace, column, text

NAME = "step_efficiency"
NEEDS = (GPU_WORK,)
CONVENTION = "operations from shapes, masked pairs not counted, each type of number against its own dense peak"


class Row(OfDevice, frozen=True):
    """One step of one device."""

    step: Annotated[int | None, column("The number of the step; null of a recording without steps.")]
    wall_ns: Annotated[int, column("Length of the step's window: the sum of the parts.", "ns")]
    ideal_compute_ns: Annotated[int, column("Operations at their dense peak.", "ns")]
    compute_above_ns: Annotated[int, column("What operators bound by compute took beyond that.", "ns")]
    memory_ideal_ns: Annotated[
        int, column("Operators bound by memory at its rate, less their operations at the peak.", "ns")
    ]
    memory_above_ns: Annotated[int, column("What they took beyond that.", "ns")]
    latency_bound_ns: Annotated[int, column("Operators too short to be bound by either.", "ns")]
    unmodelled_ns: Annotated[int, column("Computation without a roof.", "ns")]
    exposed_communication_ns: Annotated[int, column("Communication while nothing is computed.", "ns")]
    exposed_memory_ns: Annotated[int, column("Copies and memsets alone.", "ns")]
    host_wait_ns: Annotated[int, column("The device waits for the host.", "ns")]
    kernel_wait_ns: Annotated[int, column("The device's own pace between pieces of work.", "ns")]
    other_wait_ns: Annotated[int, column("Idle time of other causes.", "ns")]
    flops: Annotated[int | None, column("Operations of products that were done.", "FLOP")]
    model_flops: Annotated[int | None, column("Those of them that are no recomputation.", "FLOP")]
    mfu_ratio: Annotated[float | None, column("The model's operations at the dense peak, by the step.", "ratio")]
    hfu_ratio: Annotated[float | None, column("All operations at the dense peak, by the step.", "ratio")]
    covered_ratio: Annotated[float | None, column("Share of the computing time that has a roof.", "ratio")]
    overlap_of_possible_ratio: Annotated[
        float | None, column("Communication hidden by the most that could be.", "ratio")
    ]
    peak: Annotated[str | None, column("The peaks that were used.")]
    convention: Annotated[str | None, column("How operations were counted.")]
    lacking: Annotated[str | None, column("Why there is no MFU, and what gives it.")]


#: the parts of computation, and those of the rest by their names in the figures of steps
COMPUTING = facts.operators.PARTS
BESIDE = {
    "exposed_communication": "exposed_communication_ns",
    "exposed_memory": "exposed_memory_ns",
    "host_wait": "host_wait_ns",
    "kernel_wait": "kernel_wait_ns",
    "other_wait": "other_wait_ns",
}
SAID_AT_MOST = 4


def analyze(trace: Trace) -> Findings | Skipped:
    """Part each step."""
    windows = facts.steps.recorded_windows(trace)
    if not len(windows):
        return Skipped("no operator, launch or GPU work")
    rows: list[Row] = []
    tracks: list[SliceTrack] = []
    for place, (figures, efficiency) in enumerate(facts.operators.efficiencies(trace)):
        efficiency_rows = list(_rows(trace, place, windows, figures, efficiency))
        rows += efficiency_rows
        lasting = np.flatnonzero(windows.end > windows.start)
        names = [sentence(efficiency_rows[step]) for step in lasting.tolist()]
        code_of = {name: code for code, name in enumerate(dict.fromkeys(names))}
        codes = np.array([code_of[name] for name in names], np.int32)
        start, end = windows.start[lasting], windows.end[lasting]
        named = [f"{name}_ns" for name in (*COMPUTING, *BESIDE)]
        args = {
            name: np.array([getattr(efficiency_rows[step], name) for step in lasting.tolist()], np.int64)
            for name in named
        }
        track = facts.gpu.work(trace).devices[place].track
        texts = Texts(codes, list(code_of))
        tracks.append(
            SliceTrack(NAME, "Step efficiency", track, start, end - start, texts, args, "what each step went into")
        )
    return Findings(rows, tracks)


def _rows(
    trace: Trace,
    place: int,
    windows: facts.steps.StepWindows,
    figures: facts.steps.StepFigures,
    reached: facts.operators.Efficiency,
) -> Iterator[Row]:
    device = facts.gpu.work(trace).devices[place]
    known = figures.of_device
    lacking = facts.operators.why_no_mfu(trace, place)
    peak = facts.operators.limits(trace)[device.device]
    peak_text = None if peak is None else peak.text(reached.numbers)
    for step in range(len(windows)):
        wall = int(figures.wall_ns[step])
        parts = {f"{name}_ns": int(reached.parts[name][step]) for name in COMPUTING}
        parts |= {f"{name}_ns": int(known[figure][step]) for name, figure in BESIDE.items()}
        counted = facts.operators.work(trace).recorded
        why = lacking or facts.operators.why_beyond(float(reached.peak_ns[step]), wall)
        sure = why is None and wall > 0
        # hidden communication by the lesser of communication and computation
        of_device = figures.of_device
        communication, compute = int(of_device["communication_ns"][step]), int(of_device["compute_ns"][step])
        hidden = communication - int(of_device["exposed_communication_ns"][step])
        yield Row(
            rank=device.rank,
            device=device.device,
            step=int(windows.number[step]) if windows.number[step] >= 0 else None,
            wall_ns=wall,
            **parts,
            flops=round(float(reached.flops[step])) if counted else None,
            model_flops=round(float(reached.model_flops[step])) if counted else None,
            mfu_ratio=float(reached.model_peak_ns[step]) / wall if sure else None,
            hfu_ratio=float(reached.peak_ns[step]) / wall if sure else None,
            covered_ratio=float(reached.covered[step]) if known["compute_ns"][step] else None,
            overlap_of_possible_ratio=hidden / min(communication, compute) if min(communication, compute) else None,
            peak=peak_text,
            convention=CONVENTION if sure else None,
            lacking=why,
        )


def sentence(row: Row) -> str:
    """The row in short: the MFU, and the largest parts of the rest in percent of the step."""
    shares = {
        said: sum(getattr(row, f"{part}_ns") for part in parts) / max(row.wall_ns, 1)
        for said, parts in facts.operators.SAID.items()
    }
    if row.mfu_ratio is not None and row.hfu_ratio is not None:
        shares[facts.operators.RECOMPUTED] = row.hfu_ratio - row.mfu_ratio
    largest = sorted(shares, key=lambda said: -shares[said])[:SAID_AT_MOST]
    rest = ", ".join(f"{text.percent(shares[said])} {said}" for said in largest if shares[said] >= 0.005)
    head = "no MFU" if row.mfu_ratio is None else f"{text.percent(row.mfu_ratio)} MFU"
    return f"{head}; {rest}" if rest else head
