"""Passes of training on the host: modules, which forward operator a backward one is of, and the phase of a slice."""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np
from msgspec import Struct

from augment import arrays
from augment.core import Category, Trace, derived
from augment.facts.host.call_stacks import (
    around_moments,
    call_paths,
    call_stacks,
    directly_around,
    enclosing,
    places_of,
    thread_bounds,
)
from augment.facts.names import STEP
from augment.facts.source.event_args import arg_columns

_OPTIMIZER = re.compile(r"Optimizer\.\w")  #: torch.optim's annotations of step and zero_grad; formerly operators
_ENGINE = "autograd::engine::evaluate_function"
_BACKWARD = re.compile(rf"{_ENGINE}|\w+Backward\d*$")  #: a node of the autograd graph
_SAYS_BACKWARD, _SAYS_FORWARD = re.compile(r"\bbackward\b"), re.compile(r"\bforward\b")  #: such as DDP's annotation
_AUTOGRAD_THREAD = "pt_autograd"


class TrainingPhase(IntEnum):
    """The phases. Where several fit, the first counts."""

    OPTIMIZER = 0
    BACKWARD = 1
    FORWARD = 2
    OTHER = 3


@derived(until="breakdowns")
def training_phases(trace: Trace) -> arrays.Bytes | None:
    """The phase of training of each call stack: forward, backward, optimizer; None where it cannot be known.

    A :class:`TrainingPhase` (uint8) for each place of the call stacks.
    """
    stacks, links = call_stacks(trace), forward_backward(trace)
    ops, annotations = places_of(trace, Category.CPU_OP), places_of(trace, Category.USER_ANNOTATION)

    def within(*places: arrays.Places) -> arrays.Bools:
        is_within: arrays.Bools = enclosing(trace, arrays.distinct(np.concatenate(places))) >= 0
        return is_within

    optimizer = within(ops.where(_OPTIMIZER.match), annotations.where(_OPTIMIZER.match))
    source, target = (stacks.place_of[rows].astype(np.intp) for rows in (links.forward, links.backward))
    backward = within(ops.where(_BACKWARD.match), target, annotations.where(_SAYS_BACKWARD.search))
    # which places lie on threads of the autograd engine: by the thread's name, or because they run its nodes and no
    # forward. Work that hooks launch there between the nodes (DDP's all-reduces) belongs to the backward pass, too.
    track = trace.events.track[call_stacks(trace).row]
    is_autograd = np.zeros(len(trace.tracks), np.bool_)
    is_autograd[track[ops.where(lambda name: name.startswith(_ENGINE))]] = True
    is_autograd[track[annotations.where(lambda name: name.startswith(STEP))]] = False
    is_autograd[trace.events.track[links.forward]] = False
    is_autograd |= [_AUTOGRAD_THREAD in (track.thread_name or "") for track in trace.tracks]
    matches: arrays.Bools = is_autograd[track]
    backward |= matches
    forward = within(source, annotations.where(_SAYS_FORWARD.search))
    forward |= _between_sources(trace, links) | (modules(trace).frame_of >= 0)
    if not (optimizer.any() or backward.any() or forward.any()):
        return None
    phase = np.full(len(stacks), TrainingPhase.OTHER, np.uint8)
    phase[forward] = TrainingPhase.FORWARD
    phase[backward] = TrainingPhase.BACKWARD
    phase[optimizer] = TrainingPhase.OPTIMIZER
    return phase


def _between_sources(trace: Trace, links: ForwardBackward) -> arrays.Bools:
    """Which places begin between the first and last operator with a backward operator in a thread's forward pass.

    A forward pass lasts until an event of a backward pass begins.
    """
    stacks, events = call_stacks(trace), trace.events
    is_between = np.zeros(len(stacks), np.bool_)
    backward_ts = arrays.ordered(events.ts[links.backward])
    sources = arrays.ordered(links.forward)  # rows ascend with time
    for track, of_track in arrays.each(events.track[sources], len(trace.tracks)):
        rows = sources[of_track]
        passes = np.searchsorted(backward_ts, events.ts[rows])
        first = arrays.run_starts(passes)
        last = np.append(first[1:], len(rows)) - 1
        begin, end = events.ts[rows[first]], events.ts[rows[last]] + events.dur[rows[last]]
        places = slice(*thread_bounds(trace)[track : track + 2])
        ts = events.ts[stacks.row[places]]
        which = np.searchsorted(begin, ts, side="right") - 1
        is_between[places] = (which >= 0) & (ts < end[np.maximum(which, 0)])
    return is_between


# The operator of the forward pass that each operator of the backward pass belongs to.
#
# The ``fwdbwd`` flows link the two. In traces without these flows, mostly older ones, the sequence numbers do, from
# which Kineto makes the flows: a node of the autograd graph has the number of the operator that created it.


_BEGIN, _ENDS = ord("s"), (ord("f"), ord("t"))


class ForwardBackward(Struct, frozen=True):
    """Equal-length columns: the operator ``backward`` differentiates ``forward``."""

    forward: arrays.EventRows  #: several may be the same
    backward: arrays.EventRows  #: ascending and distinct

    def __len__(self) -> int:
        return len(self.backward)

    def forward_of(self, backward: arrays.EventRows) -> arrays.EventRows:
        """The forward operator of each row; :data:`NO_INDEX` where there is none."""
        if not len(self):
            return np.full(len(backward), arrays.NO_INDEX, np.int64)
        place = np.minimum(np.searchsorted(self.backward, backward), len(self) - 1)
        return np.where(self.backward[place] == backward, self.forward[place], arrays.NO_INDEX)


@derived(until="breakdowns")
def forward_backward(trace: Trace) -> ForwardBackward:
    """Which operator of backward differentiates which of forward.

    The pairs are linked by flows or, without flows, by sequence numbers.
    """
    # the pairs linked by flows. Ends of flows outside operators, or without a beginning, are ignored.
    events = trace.events
    sparse = events.flow_id
    rows = sparse.rows[:]
    chosen = events.category[rows] == Category.FWDBWD
    rows, ids = rows[chosen], sparse.values[chosen]
    begins = events.phase[rows] == _BEGIN
    known = begins | arrays.is_any(events.phase[rows], _ENDS)
    rows, ids, begins = rows[known], ids[known], begins[known]
    order = np.lexsort((~begins, events.ts[rows], ids))
    rows, ids, begins = rows[order], ids[order], begins[order]
    last = np.maximum.accumulate(np.where(begins, np.arange(len(rows)), -1))  # the beginning before each end
    ends = np.flatnonzero(~begins & (last >= 0))
    ends = ends[ids[last[ends]] == ids[ends]]
    # the operator that each arrow binds to: the outermost that begins at its moment, else the innermost around it
    stacks, bounds = call_stacks(trace), thread_bounds(trace)
    is_op = events.category[stacks.row] == Category.CPU_OP
    track, ts = events.track[rows], events.ts[rows]
    operator, _ = around_moments(trace, ts, track, (Category.CPU_OP,))
    for index, asked in arrays.each(track, len(trace.tracks)):
        low, high = bounds[index : index + 2]
        place = low + np.flatnonzero(is_op[low:high])
        if len(place):
            start = events.ts[stacks.row[place]]
            here = np.minimum(np.searchsorted(start, ts[asked]), len(place) - 1)
            operator[asked] = np.where(start[here] == ts[asked], stacks.row[place[here]], operator[asked])
    forward, backward = operator[last[ends]], operator[ends]
    real = (forward != arrays.NO_INDEX) & (backward != arrays.NO_INDEX) & (forward != backward)
    backward, first = np.unique(backward[real], return_index=True)
    linked = ForwardBackward(forward[real][first], backward)
    if len(linked):
        return linked
    # each operator with a forward thread, and the last earlier one of its number without a forward thread
    args = arg_columns(trace)
    numbers = args.ints("Sequence number")
    rows, number = numbers.rows[:], numbers.values[:]
    rows, number = rows[number >= 0], number[number >= 0]
    is_backward = args.ints("Fwd thread id").at(rows, 0) > 0
    order = np.argsort(number, kind="stable")  # rows of one number stay in the order of time
    rows, number, is_backward = rows[order], number[order], is_backward[order]
    last = np.maximum.accumulate(np.where(is_backward, -1, np.arange(len(rows))))
    ends = np.flatnonzero(is_backward & (last >= 0))
    ends = ends[number[last[ends]] == number[ends]]
    ends = ends[np.argsort(rows[ends])]
    return ForwardBackward(rows[last[ends]], rows[ends])


PREFIX = "nn.Module: "  #: torch.profiler's prefix of a module's call, before its class and number: Linear_3
_CATEGORIES = (Category.PYTHON_FUNCTION, Category.USER_ANNOTATION, Category.CPU_OP)


class Modules(Struct, frozen=True):
    """The calls of modules, and their paths among modules."""

    frame: arrays.StackIndexes  #: the calls, ascending
    path: arrays.Int64s  #: of each call, an index of ``paths``
    paths: list[str]  #: such as ``Block_1/Linear_4``
    parent: list[int]  #: of each path the index of the path above it, which comes before it, or ``NO_INDEX``
    frame_of: arrays.Int32s  #: of each call stack the innermost module call around it: an index of ``frame``, or -1

    def path_of(self, frame: arrays.Int32s) -> arrays.Int64s:
        """The path of each index into ``frame``; :data:`NO_INDEX` for -1."""
        return (
            np.where(frame >= 0, self.path[frame], arrays.NO_INDEX)
            if len(self.path)
            else np.full(len(frame), arrays.NO_INDEX)
        )


@derived(until="breakdowns")
def modules(trace: Trace) -> Modules:
    """The calls of modules, and their paths among modules."""
    stacks = call_stacks(trace)
    frame = places_of(trace, *_CATEGORIES).where(lambda name: name.startswith(PREFIX))
    frame_of = enclosing(trace, frame)
    calls = call_paths(directly_around(trace, frame), trace.events.name[stacks.row[frame]])
    paths: list[str] = []
    for name, above in zip(calls.name, calls.parent, strict=True):
        module = trace.strings[name].removeprefix(PREFIX)
        paths.append(module if above == arrays.NO_INDEX else f"{paths[above]}/{module}")
    return Modules(frame, calls.path, paths, calls.parent, frame_of)
