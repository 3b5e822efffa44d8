"""The module that each piece of GPU work belongs to, and whether it is part of the module's backward pass."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from augment.arrays.types import NO_INDEX, Bools, Int64s
from augment.core.trace import Trace
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.host.call_stacks import call_stacks
from augment.facts.host.enclosing import enclosing
from augment.facts.host.forward_backward import forward_backward
from augment.facts.host.modules import modules


class ModuleWork(Struct, frozen=True):
    """For each piece of ``gpu_work``: the ``path`` of the innermost module (int64, an index into
    ``modules(trace).paths``, or :data:`NO_INDEX`), and whether the work is ``backward``."""

    path: Int64s
    backward: Bools


def module_work(trace: Trace) -> ModuleWork:
    """The modules of all GPU work.

    A piece of work belongs to the module around its launch. If the launch lies in an operator of the backward pass, the
    module is the one around the forward operator that the flow names, unless a module within that backward operator
    is around the launch (a recomputed forward pass).
    """
    stacks, tree, links = call_stacks(trace), modules(trace), forward_backward(trace)
    launch = gpu_work(trace).launch
    known = np.flatnonzero(launch != NO_INDEX)
    place = stacks.place_of[launch[known]]
    frame = tree.frame_of[place]
    paths = tree.path_of(frame)
    backward = np.zeros(len(known), np.bool_)
    if len(links):
        target = np.sort(stacks.place_of[links.backward]).astype(np.intp)
        which = enclosing(trace, target)[place]
        around = np.where(which >= 0, target[which], -1)
        forward = links.forward_of(np.where(which >= 0, stacks.row[around], NO_INDEX))
        linked = tree.path_of(tree.frame_of[stacks.place_of[forward]])
        nearer = around > np.where(frame >= 0, tree.frame[frame], -1) if len(tree.frame) else which >= 0
        backward = nearer & (forward != NO_INDEX) & (linked != NO_INDEX)
        paths = np.where(backward, linked, paths)
    path = np.full(len(launch), NO_INDEX, np.int64)
    is_backward = np.zeros(len(launch), np.bool_)
    path[known], is_backward[known] = paths, backward
    return ModuleWork(path, is_backward)
