"""Whether a recording trains, which of its gathers are of parameters, and which collectives carry activations.

FSDP and ZeRO-3 gather parameters, which nothing computes: such a gather can begin as early as one likes. Any other
gather carries what the device has just computed (activations of tensor, sequence or expert parallelism, outputs of a
server, results of a sharded optimizer), and cannot begin before that.
"""

from __future__ import annotations

import re

import numpy as np

from augment.arrays import NO_INDEX, Bools, Bytes, Int64s, combinations, is_any, sums
from augment.core import Category, Trace, derived
from augment.facts.collectives.collective_kernels import collectives
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.host.call_stacks import call_stacks, enclosing, places_of
from augment.facts.host.training_phases import TrainingPhase, training_phases
from augment.facts.names.kernel_types import ALL_GATHER, REDUCE_SCATTER

SMALL_BYTES = 1 << 20  #: below this a collective takes as long as an empty one
#: ranges, operators and functions of FSDP1, FSDP2 and ZeRO-3
_SHARDS = re.compile(r"\bFSDP::|\bfsdp::|FullyShardedDataParallel|\bfully_shard\b|partitioned_param_coordinator")
#: descriptions of groups that share parameters
_GROUP = re.compile(r"fsdp|dp_shard|zero3", re.IGNORECASE)


@derived
def trains(trace: Trace) -> bool:
    """Whether a backward pass or an optimizer was recorded."""
    phases = training_phases(trace)
    return phases is not None and bool(is_any(phases, (TrainingPhase.BACKWARD, TrainingPhase.OPTIMIZER)).any())


@derived
def gathers_of_parameters(trace: Trace) -> Bools:
    """Whether each of ``collectives`` is a gather of parameters, as far as the trace tells.

    It is if FSDP or ZeRO-3 launches it, or its group's description says so. Without such names the use of the group
    tells: it gathers in the forward or backward pass, and reduces and scatters gradients, in the backward pass alone.
    Activations of sequence parallelism are reduced and scattered in the forward pass, too.
    """
    every = collectives(trace)
    kinds = np.array(every.kind.values)
    gathers, scatters = ((kinds == kind)[every.kind.codes] for kind in (ALL_GATHER, REDUCE_SCATTER))
    phase = _phases(trace)
    in_model = is_any(phase, (TrainingPhase.FORWARD, TrainingPhase.BACKWARD))
    backward, forward = (
        sums(every.group, scatters & (phase == each), len(every.groups))
        for each in (TrainingPhase.BACKWARD, TrainingPhase.FORWARD)
    )
    gathered = sums(every.group, gathers & in_model, len(every.groups))
    behaves = (backward > 0) & (forward == 0) & (gathered > 0)
    described = np.array([bool(_GROUP.search(group.description)) for group in every.groups], np.bool_)
    by_use = described[every.group] | behaves[every.group]
    launch = _launch_places(trace)
    by_shards = np.zeros(len(launch), np.bool_)  # launched within FSDP's or ZeRO-3's own ranges or functions
    named = places_of(trace, Category.CPU_OP, Category.USER_ANNOTATION, Category.PYTHON_FUNCTION).where(_SHARDS.search)
    if len(named) and len(launch):
        by_shards = (launch >= 0) & (enclosing(trace, named) >= 0)[launch]
    chosen: Bools = gathers & (phase != TrainingPhase.OPTIMIZER) & (by_shards | by_use)
    return chosen


@derived
def carries_activations(trace: Trace) -> Bools:
    """Whether each of ``collectives`` carries what the next computation needs, or may: one of a run without training,
    or of a kind and group that also communicate in the forward pass, other than to gather parameters."""
    every = collectives(trace)
    if not trains(trace):
        return np.ones(len(every), np.bool_)
    (kinds, _), which = combinations(every.kind.codes, every.group)
    forward = (_phases(trace) == TrainingPhase.FORWARD) & ~gathers_of_parameters(trace)
    of_model: Bools = sums(which, forward, len(kinds)) > 0
    return of_model[which] & ~gathers_of_parameters(trace)


def _phases(trace: Trace) -> Bytes:
    """The phase in which each collective was launched, :class:`TrainingPhase`."""
    places, phases = _launch_places(trace), training_phases(trace)
    if phases is None or not len(phases):
        return np.full(len(places), TrainingPhase.OTHER, np.uint8)
    return np.where(places >= 0, phases[places], np.uint8(TrainingPhase.OTHER))


def _launch_places(trace: Trace) -> Int64s:
    """The place of each collective's launch in the call stacks, int64; -1: none."""
    launch = gpu_work(trace).launch[collectives(trace).place]
    places = np.full(len(launch), -1, np.int64)
    known = launch != NO_INDEX
    places[known] = call_stacks(trace).place_of[launch[known]]
    return places
