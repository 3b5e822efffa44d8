"""Divides the time of a step into parts. Each moment of its window belongs to one part; overlapping kernels share
it.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from augment.arrays import Bools, EventRows, Int64s, Intervals, Places, distinct, intervals
from augment.core import Category, GraphCapture, Trace, derived, text
from augment.facts import gpu, host, names, source
from augment.facts.gpu.kernel_families import LISTS, MATRIX_FAMILIES
from augment.facts.operators.operator_work import operator_work, work_families
from augment.facts.operators.peaks import UNTOLD_UNITS, Bound, Floats, device_peaks, roofs, why_not_of, why_unknown
from augment.facts.steps.step_figures import StepFigures, step_figures
from augment.facts.steps.step_windows import StepWindows, recorded_windows

#: the parts of the time in which the device computes
PARTS: tuple[str, ...] = (
    "ideal_compute",
    "compute_above",
    "memory_ideal",
    "memory_above",
    "latency_bound",
    "unmodelled",
)
#: what sentences call the parts of a step that are not useful computation
SAID = {
    "below peak": ("compute_above",),
    "memory-bound": ("memory_ideal", "memory_above"),
    "small kernels": ("latency_bound",),
    "not modelled": ("unmodelled",),
    "exposed communication": ("exposed_communication",),
    "exposed copies": ("exposed_memory",),
    "host": ("host_wait",),
    "between kernels": ("kernel_wait",),
    "other idle": ("other_wait",),
}
RECOMPUTED = "recomputed operations at the peak's rate"  #: HFU less MFU: recomputing takes longer than this
LEAST_NAMED = 0.05  #: of the device's work, for an operator without a formula to be named
COVERED = 0.9  #: of the time of matrix products, for an MFU
MOSTLY = 0.5  #: of it, for rules on their sizes to find nothing
ROUNDING = 1e-9  #: above 100 %, an MFU is still one
_GRAPHS = " of its own (as in CUDA graphs){}; to name it: augment run TRACE --graph-capture FILE"
_UNMODELLED = PARTS.index("unmodelled")


class Efficiency(Struct, frozen=True):
    """Where the time went in which a device computed, with an entry for each step."""

    parts: dict[str, Int64s]  #: ns, by name; they add up to the time in which it computed
    flops: Floats  #: all operations
    model_flops: Floats  #: those that are not done a second time
    peak_ns: Floats  #: ns that all would have taken, each at the dense rate of its type of number
    model_peak_ns: Floats  #: ns that those of ``model_flops`` would have taken
    covered: Floats  #: the share of the computing time whose operator has a formula
    numbers: tuple[str, ...]  #: the types of number


def step_efficiency(trace: Trace, device: int, windows: StepWindows, compute_ns: Int64s) -> Efficiency:
    """The efficiency of the device at that place of ``gpu_work(trace).devices``. It computed for ``compute_ns``."""
    operators, on_roof = operator_work(trace), roofs(trace)
    operator, step, share = _shares(trace, device, windows)
    known = operator >= 0
    total = np.zeros(len(operators))
    np.add.at(total, operator[known], share[known])
    count = len(windows)
    inside = known & (step >= 0)
    code, where = np.unique(operator[inside].astype(np.int64) * count + step[inside], return_inverse=True)
    time = _sums(where, share[inside], len(code))
    which, at = np.divmod(code, max(count, 1))
    part_of = np.divide(time, total[which], out=np.zeros(len(time)), where=total[which] > 0)
    parted = np.zeros((len(PARTS), count))
    # the time of each operator in a step, by part. part_of is the fraction of the operator that lies in the step.
    bound = on_roof.bound[which]
    ideal = np.minimum(np.nan_to_num(on_roof.compute_ns[which]) * part_of, time)
    roof = np.maximum(np.minimum(np.nan_to_num(on_roof.roof_ns[which]) * part_of, time), ideal)
    is_memory = bound == Bound.MEMORY
    rest = time - ideal
    for part, ns in enumerate(
        [
            ideal,
            np.where(bound == Bound.COMPUTE, rest, 0),
            np.where(is_memory, roof - ideal, 0),
            np.where(is_memory, time - roof, 0),
            np.where(bound == Bound.LATENCY, rest, 0),
            np.where(bound == Bound.UNKNOWN, rest, 0),
        ]
    ):
        np.add.at(parted[part], at, ns)
    plain = ~known & (step >= 0)
    np.add.at(parted[_UNMODELLED], step[plain], share[plain])
    covered = _sums(at, time * ~np.isnan(on_roof.roof_ns[which]), count)
    flops = np.nan_to_num(on_roof.flops[which]) * part_of
    peak_ns = np.nan_to_num(on_roof.compute_ns[which]) * part_of
    # the share of each operator's operations that belongs to the model: without recomputation and repeated operations
    shares = [1 - work.again_flops / work.flops if work.flops else 1.0 for work in operators.works]
    model = (np.array(shares, np.float64)[operators.kind] * ~recomputed(trace))[which]
    codes = distinct(on_roof.number[which]).tolist()
    # integers that add up to total, each within 1 of the given part. The largest remainders are rounded up.
    whole = np.floor(parted).astype(np.int64)
    missing = compute_ns - whole.sum(axis=0)
    order = np.argsort(whole - parted, axis=0, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(len(parted))[:, None], axis=0)
    whole += rank < missing
    rest = compute_ns - whole.sum(axis=0)  # 0 apart from rounding errors of floats for long times
    whole[np.argmax(whole, axis=0), np.arange(whole.shape[1])] += rest
    return Efficiency(
        parts=dict(zip(PARTS, whole, strict=True)),
        flops=_sums(at, flops, count),
        model_flops=_sums(at, flops * model, count),
        peak_ns=_sums(at, peak_ns, count),
        model_peak_ns=_sums(at, peak_ns * model, count),
        covered=np.divide(covered, compute_ns, out=np.zeros(count), where=compute_ns > 0),
        numbers=tuple(sorted({on_roof.numbers[code] for code in codes if code >= 0} - {""})),
    )


@derived(until="operations")
def efficiencies(trace: Trace) -> tuple[tuple[StepFigures, Efficiency], ...]:
    """The figures of the steps of each device and their efficiency, in the order of ``gpu_work(trace).devices``."""
    windows = recorded_windows(trace)
    return tuple(
        (figures, step_efficiency(trace, place, windows, figures.of_device["compute_ns"]))
        for place, figures in enumerate(step_figures(trace, windows))
    )


def largest_loss(trace: Trace, steps: Bools) -> tuple[float, str, float] | None:
    """The MFU of ``steps``, given for each recorded one, and the largest part of the rest: what it is called, and its
    share of them. None if a device has no MFU, or if most is recomputed."""
    wall, spent, model, again = 0, dict.fromkeys(SAID, 0), 0.0, 0.0
    for place, (figures, reached) in enumerate(efficiencies(trace)):
        whole = figures.wall_ns[steps]
        of_parts = figures.of_device | {f"{name}_ns": ns for name, ns in reached.parts.items()}
        if why_no_mfu(trace, place) or (reached.peak_ns[steps] > whole).any():
            return None
        wall, model = wall + int(whole.sum()), model + float(reached.model_peak_ns[steps].sum())
        again += float((reached.peak_ns - reached.model_peak_ns)[steps].sum())
        for said, parts in SAID.items():
            spent[said] += sum(int(of_parts[f"{part}_ns"][steps].sum()) for part in parts)
    most = max(spent, key=lambda said: spent[said])
    return (model / wall, most, spent[most] / wall) if wall and spent[most] >= again else None


def products_covered(trace: Trace, costs: Floats) -> dict[int, float | None]:
    """For each device, the share of the time of matrix products, convolutions and attention with such ``costs`` (NaN
    where unknown, by operator), in the windows of the steps. Kernels whose work is unknown may be products, and count
    as such. None for a device without products, as far as names show.
    """
    work, operators, families = gpu.work(trace), operator_work(trace), work_families(trace)
    named = families.is_any(MATRIX_FAMILIES)
    counted = np.append(~np.isnan(costs), False)[operators.owner]
    unknown = ~families.known & ~counted & (work.type == names.KernelType.COMPUTATION)
    unknown &= ~names.matching(trace, LISTS)[trace.events.name[work.row]]  # products are of no lists
    windows = recorded_windows(trace)
    step = np.searchsorted(windows.start, work.ts, side="right") - 1
    inside = step >= 0
    inside[inside] = work.ts[inside] < windows.end[step[inside]]
    dur = np.where(inside, work.end - work.ts, 0)
    shares: dict[int, float | None] = {}
    for place, device in enumerate(work.devices):
        products, possible, sure = (
            int(dur[device.places][mask[device.places]].sum()) for mask in (named | counted, unknown, counted)
        )
        shares[place] = sure / (products + possible) if products else None
    return shares


@derived(until="operations")
def products_peaked(trace: Trace) -> dict[int, float | None]:
    """For each device, the share of :func:`products_covered` whose operations are counted against a peak."""
    return products_covered(trace, roofs(trace).compute_ns)


def _shares(trace: Trace, device: int, windows: StepWindows) -> tuple[npt.NDArray[np.int32], Places, Floats]:
    """Pieces of computing kernels: the operator of each, its step (-1 outside of all), and its share of the time.

    A moment is shared equally by all kernels that compute at that moment. So the share of a kernel is the integral of 1
    / (number of kernels) over its time.
    """
    work, operators = gpu.work(trace), operator_work(trace)
    places = work.by_time[work.devices[device].places]
    places = places[(work.type[places] == names.KernelType.COMPUTATION) & (work.end[places] > work.ts[places])]
    start, end = work.ts[places], work.end[places]
    ones = np.ones(len(places), np.int64)
    ts, running = intervals.steps(np.concatenate((start, end)), np.concatenate((ones, -ones)))
    if not len(ts):
        return np.empty(0, np.int32), np.empty(0, np.intp), np.empty(0)
    first = ts[0]
    each = np.where(running[:-1] > 0, np.diff(ts) / np.maximum(running[:-1], 1), 0.0)
    until, axis = np.concatenate(([0.0], np.cumsum(each))), (ts - first).astype(np.float64)
    del ts, running, each  # frees memory for what follows, as below

    def integral(moments: Int64s) -> Floats:
        shares: Floats = np.interp((moments - first).astype(np.float64), axis, until)
        return shares

    outside = integral(end) - integral(start)
    which, step, pieces = intervals.clip(Intervals(start, end), Intervals(windows.start, windows.end))
    del start, end
    inside = integral(pieces.end) - integral(pieces.start)
    del pieces
    np.subtract.at(outside, which, inside)
    operator = operators.owner[places]
    return (
        np.concatenate((operator[which], operator)),
        np.concatenate((step, np.full(len(places), -1, np.intp))),
        np.concatenate((inside, outside)),
    )


def _sums(code: Places, values: Floats, count: int) -> Floats:
    totals = np.zeros(count)
    np.add.at(totals, code, values)
    return totals


def why_no_mfu(trace: Trace, place: int) -> str | None:
    """What an MFU of that device lacks, if anything."""
    device = gpu.work(trace).devices[place].device
    if not operator_work(trace).recorded:
        return f"shapes were not recorded: record with {text.recording_words(trace.source.metadata).shapes}"
    if device_peaks(trace)[device] is None:
        return why_unknown(trace, device)
    covered = products_peaked(trace)[place]
    if covered is None:
        return "no matrix product, convolution or attention is known among the kernels"
    if covered < COVERED and (number := _without_peak(trace, place, COVERED - covered)):
        return why_not_of(trace, device, number)
    if covered < COVERED <= (products_covered(trace, roofs(trace).flops)[place] or 0):
        return ": ".join(UNTOLD_UNITS)
    return why_unsized(trace, place, covered, COVERED)


@derived(until="diagnosis")
def why_hardly_sized(trace: Trace) -> str | None:
    """Why FLOPs are known for less than half of the time of a device's matrix products; None if for more."""
    shares = products_covered(trace, roofs(trace).flops).items()
    whys = (why_unsized(trace, place, covered, MOSTLY) for place, covered in shares if covered is not None)
    return next(filter(None, whys), None)


def why_unsized(trace: Trace, place: int, covered: float, least: float) -> str | None:
    """Why FLOPs are known for only this share of the time of a device's matrix products, if it is below ``least``."""
    if covered >= least:
        return None
    # why most operations are not counted, and the operators, or kernels without one, with most of that time
    work, families = gpu.work(trace), work_families(trace)
    counted = np.append(~np.isnan(roofs(trace).flops), False)[operator_work(trace).owner]
    is_product = families.is_any(MATRIX_FAMILIES)
    launched = names.matching(trace, names.GRAPH_LAUNCH)[trace.events.name[np.maximum(work.launch, 0)]]
    around = gpu.innermost_operator(trace)
    alone = (around < 0) | (launched & (work.launch >= 0))
    captured = trace.context.attached(GraphCapture) is not None
    graphs = " of known sizes in the graph capture{}" if captured else _GRAPHS
    unnamed = ~families.known & (work.type == names.KernelType.COMPUTATION)
    taught = "{{}}; to {}: augment run TRACE --tables FILE, with {} in FILE (example: docs/tables.md)"
    formulas, patterns = taught.format("count it", "[[flops]]"), taught.format("name them", "[[kernel]]")
    reasons = {
        f"has no operator{graphs}": (is_product & alone, around, "within"),
        f"has no shapes or no formula{formulas}": (is_product & ~alone, around, "such as"),
        f"is in kernels whose names say nothing{patterns}": (unnamed, work.row, "such as"),
    }
    ns, here = (work.end - work.ts) * ~counted, work.devices[place].places
    why = max(reasons, key=lambda reason: int((ns * reasons[reason][0])[here].sum()))
    chosen, rows, lead = reasons[why]
    chosen &= ~counted
    inside = largest_names(trace, place, (chosen & (rows >= 0))[here], LEAST_NAMED, rows)
    largest = inside or largest_names(trace, place, chosen[here], LEAST_NAMED, work.row)
    such = f", {lead if inside else 'such as'} {text.listed(largest)}" if largest else ""
    known, rest = (f"only {text.percent(covered)}", "the rest") if covered >= text.LEAST_SHARE else ("none", "it")
    share = f"FLOPs are known for {known} of the time of matrix products"
    return f"{share}; most of {rest} {why.format(such)}"


def largest_names(trace: Trace, place: int, chosen: Bools, least: float, rows: EventRows | None = None) -> list[str]:
    """The two operators, or kernels without an operator, that most of the time of the ``chosen`` work of the device is
    in, and their shares of the device's work, from ``least`` on; or those among ``rows``, one for each piece."""
    work = gpu.work(trace)
    device = work.devices[place].places
    around = gpu.innermost_operator(trace)
    code = trace.events.name[(np.where(around >= 0, around, work.row) if rows is None else rows)[device]]
    ns = (work.end - work.ts)[device]
    spent = np.bincount(code, ns * chosen, len(trace.strings)) / max(int(ns.sum()), 1)
    most = np.argsort(-spent, kind="stable")[:2].tolist()
    return [
        f"`{text.short(trace.strings[code])}` ({text.percent(float(spent[code]))})"
        for code in most
        if spent[code] >= least
    ]


def _without_peak(trace: Trace, place: int, lacking: float) -> str:
    """The type of number without a peak whose operators take the most time, if they are the share ``lacking`` of the
    time of all products at least; else empty."""
    work, operators, on_roof = gpu.work(trace), operator_work(trace), roofs(trace)
    owner = operators.owner[work.devices[place].places]
    ns = (work.end - work.ts)[work.devices[place].places]
    product = np.append(~np.isnan(on_roof.flops), False)[owner]
    unknown = product & np.append(np.isnan(on_roof.compute_ns), False)[owner]
    number = np.append(on_roof.number, -1)[owner]
    spent = {name: int(ns[unknown & (number == code)].sum()) for code, name in enumerate(on_roof.numbers) if name}
    most = max(spent, key=lambda name: spent[name], default="")
    return most if most and sum(spent.values()) >= lacking * int(ns[product].sum()) > 0 else ""


def why_beyond(peak_ns: float, wall_ns: int) -> str | None:
    """Why operations that would take ``peak_ns`` at the peak give no MFU in a step of ``wall_ns``; None if they do."""
    if peak_ns <= wall_ns * (1 + ROUNDING):
        return None
    return (
        f"the step's operations are {peak_ns / max(wall_ns, 1):,.2f} times what the device can do at most in its time: "
        "the peak is too low for this device (--peak), or operations are counted too high"
    )


# The operators that repeat work of the forward pass within the backward pass: checkpointing.
#
# An operator is recomputation if it runs within a node of the autograd graph in one of two ways:
#
# - directly within ``CheckpointFunctionBackward`` (reentrant checkpointing), in no node of the backward run there;
# - with gradients recorded, as a ``Sequence number`` of its own or of an operator around it tells, though the node does
#   its own work without (checkpointing by hooks). Where a node does all of its work with gradients recorded, that is a
#   backward that will be differentiated itself (``create_graph=True``), and no recomputation.


_NODE = "autograd::engine::evaluate_function"
_CHECKPOINT = "CheckpointFunctionBackward"
_OF_ENGINE = re.compile(r"autograd::|torch::autograd|\w+Backward\d*$|.*CheckpointFunction")


@derived(until="operations")
def recomputed(trace: Trace) -> Bools:
    """Whether each operator of ``operator_work`` is recomputation."""
    operators = operator_work(trace)
    stacks, ops = host.stacks(trace), host.places_of(trace, Category.CPU_OP)
    called = stacks.place_of[operators.row].astype(np.intp)  # kernels of graphs: the graph's launch, in no operator
    nodes = ops.where(lambda name: name.startswith(_NODE))
    if not len(nodes) or not len(called):
        return np.zeros(len(called), np.bool_)
    node = host.enclosing(trace, nodes).astype(np.intp)
    inside = node[called] >= 0
    checkpoints = np.isin(nodes, ops.where(lambda name: name.startswith(_NODE) and _CHECKPOINT in name))
    again = inside & checkpoints[node[called]]
    work = ops.where(lambda name: not _OF_ENGINE.match(name))
    work = work[node[work] >= 0]  # an operator that records gradients within a node lies in the node itself
    # those with a sequence number that are not nodes themselves
    columns, rows = source.args(trace), stacks.row[work]
    order = np.argsort(rows, kind="stable")
    number, forward_thread = np.empty((2, len(rows)), np.int64)
    number[order] = columns.ints("Sequence number").at(rows[order], -1)
    forward_thread[order] = columns.ints("Fwd thread id").at(rows[order], 0)
    recording = work[(number >= 0) & (forward_thread == 0)]
    if len(recording):
        around = host.enclosing(trace, recording).astype(np.intp)
        plain = work[~_in_node(recording, nodes, around[work], node[work])]
        does_plain = np.zeros(len(nodes), np.bool_)
        does_plain[node[plain]] = True
        again |= inside & _in_node(recording, nodes, around[called], node[called]) & does_plain[node[called]]
    return again


def _in_node(recording: Places, nodes: Places, around: Places, node: Places) -> Bools:
    """Whether the recording operator around each event lies inside the node around that event: it begins after the
    node.
    """
    matches: Bools = (around >= 0) & (recording[around] > nodes[node])
    return matches
