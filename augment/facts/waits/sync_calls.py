"""Calls of the host that wait for a device."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from augment.arrays.types import EventRows, Int64s, Places
from augment.core.context import derived
from augment.core.trace import LAUNCHES, Category, Trace
from augment.facts.names.matching import matching

#: matches names of waiting calls: of CUDA, HIP, Level Zero and others; of SYCL's adapters; of Cambricon
_WAITS = re.compile(r"Synchronize|^(?:ur|pi)(?:QueueFinish|Events?Wait)$|^cnrt(?:QueueSync|SyncDevice|NotifierWait)")
#: give memory back to the driver, which waits until the device is done (on CUDA and HIP; ``…Async`` does not wait)
_FREES = re.compile(r"^(?:cuda|hip)Free$|^cuMemFree(?:_v2)?$")


class SyncCalls(Struct, frozen=True):
    """Calls that wait for a device."""

    row: EventRows  #: the calls whose name says that they wait, from any thread, then the ``cuda_sync`` slices
    general: Places  #: indexes of all of ``row`` but ``cuda_sync`` slices on a stream; others concern a device


@derived
def sync_calls(trace: Trace) -> SyncCalls:
    """Every call that waits for a device, and every ``cuda_sync`` slice."""
    events = trace.events
    waits = matching(trace, _WAITS)
    calls = events.slices_of(*LAUNCHES)
    calls = calls[waits[events.name[calls]]] if len(calls) else calls
    syncs = events.slices_of(Category.CUDA_SYNC)
    on_stream = np.array([_is_stream(track.stream) for track in trace.tracks], np.bool_)
    of_device = np.flatnonzero(~on_stream[events.track[syncs]]) if len(syncs) else np.empty(0, np.intp)
    return SyncCalls(np.concatenate((calls, syncs)), np.concatenate((np.arange(len(calls)), len(calls) + of_device)))


@derived
def freeing_calls(trace: Trace) -> Int64s:
    """The rows of calls that give memory back to the driver. They wait for the device, and then do work of their own:
    whoever asks must look whether a call mostly waited."""
    calls = trace.events.slices_of(*LAUNCHES)
    return calls[matching(trace, _FREES)[trace.events.name[calls]]] if len(calls) else calls


def _is_stream(stream: object) -> bool:
    """Whether ``stream`` names a stream. -1 stands for none, also in Kineto's unsigned form."""
    return isinstance(stream, str) or (isinstance(stream, int) and 0 <= stream < 2**32 - 1)
