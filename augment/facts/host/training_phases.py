"""The phase of training that each slice of the host belongs to: forward, backward or optimizer."""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np

from augment.arrays.ordering import distinct, each, ordered, run_starts
from augment.arrays.types import Bools, Bytes, Places
from augment.core.context import derived
from augment.core.trace import Category, Trace
from augment.facts.host.call_stacks import NamedPlaces, call_stacks, places_of, thread_bounds
from augment.facts.host.enclosing import enclosing
from augment.facts.host.forward_backward import ForwardBackward, forward_backward
from augment.facts.host.modules import modules
from augment.facts.names.matching import STEP

_OPTIMIZER = re.compile(r"Optimizer\.\w")  #: torch.optim's annotations of step and zero_grad; formerly operators
_ENGINE = "autograd::engine::evaluate_function"
_BACKWARD = re.compile(rf"{_ENGINE}|\w+Backward\d*$")  #: a node of the autograd graph
_SAYS_BACKWARD, _SAYS_FORWARD = re.compile(r"\bbackward\b"), re.compile(r"\bforward\b")  #: such as DDP's annotation
_AUTOGRAD_THREAD = "pt_autograd"


class Phase(IntEnum):
    """The phases. Where several fit, the first counts."""

    OPTIMIZER = 0
    BACKWARD = 1
    FORWARD = 2
    OTHER = 3


@derived(until="breakdowns")
def training_phases(trace: Trace) -> Bytes | None:
    """The :class:`Phase` (uint8) of each place of the call stacks; None if the trace shows no phase."""
    stacks, links = call_stacks(trace), forward_backward(trace)
    ops, annotations = places_of(trace, Category.CPU_OP), places_of(trace, Category.USER_ANNOTATION)

    def within(*places: Places) -> Bools:
        is_within: Bools = enclosing(trace, distinct(np.concatenate(places))) >= 0
        return is_within

    optimizer = within(ops.where(_OPTIMIZER.match), annotations.where(_OPTIMIZER.match))
    source, target = (stacks.place_of[rows].astype(np.intp) for rows in (links.forward, links.backward))
    backward = within(ops.where(_BACKWARD.match), target, annotations.where(_SAYS_BACKWARD.search))
    backward |= _on_autograd_threads(trace, links, ops, annotations)
    forward = within(source, annotations.where(_SAYS_FORWARD.search))
    forward |= _between_sources(trace, links) | (modules(trace).frame_of >= 0)
    if not (optimizer.any() or backward.any() or forward.any()):
        return None
    phase = np.full(len(stacks), Phase.OTHER, np.uint8)
    for phase_, is_it in ((Phase.FORWARD, forward), (Phase.BACKWARD, backward), (Phase.OPTIMIZER, optimizer)):
        phase[is_it] = phase_
    return phase


def _on_autograd_threads(trace: Trace, links: ForwardBackward, ops: NamedPlaces, annotations: NamedPlaces) -> Bools:
    """Which places lie on threads of the autograd engine: by the thread's name, or because they run its nodes and no
    forward.

    Work that hooks launch there between the nodes (DDP's all-reduces) belongs to the backward pass, too.
    """
    track = trace.events.track[call_stacks(trace).row]
    is_autograd = np.zeros(len(trace.tracks), np.bool_)
    is_autograd[track[ops.where(lambda name: name.startswith(_ENGINE))]] = True
    is_autograd[track[annotations.where(lambda name: name.startswith(STEP))]] = False
    is_autograd[trace.events.track[links.forward]] = False
    is_autograd |= [_AUTOGRAD_THREAD in (track.thread_name or "") for track in trace.tracks]
    matches: Bools = is_autograd[track]
    return matches


def _between_sources(trace: Trace, links: ForwardBackward) -> Bools:
    """Which places begin between the first and last operator with a backward operator in a thread's forward pass.

    A forward pass lasts until an event of a backward pass begins.
    """
    stacks, events = call_stacks(trace), trace.events
    is_between = np.zeros(len(stacks), np.bool_)
    backward_ts = ordered(events.ts[links.backward])
    sources = ordered(links.forward)  # rows ascend with time
    for track, of_track in each(events.track[sources], len(trace.tracks)):
        rows = sources[of_track]
        passes = np.searchsorted(backward_ts, events.ts[rows])
        first = run_starts(passes)
        last = np.append(first[1:], len(rows)) - 1
        begin, end = events.ts[rows[first]], events.ts[rows[last]] + events.dur[rows[last]]
        places = slice(*thread_bounds(trace)[track : track + 2])
        ts = events.ts[stacks.row[places]]
        which = np.searchsorted(begin, ts, side="right") - 1
        is_between[places] = (which >= 0) & (ts < end[np.maximum(which, 0)])
    return is_between
