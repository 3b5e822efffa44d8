"""Time by call stack, from which Perfetto draws flame graphs: as slices that nest, and as stack samples.

An area selected on the slices has a flame graph in every version of the UI. Stack samples (a weight in nanoseconds for
each piece of time) are read from v58 on, which has the table ``stack_sample``; older versions skip them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np

from augment.arrays import Int64s
from augment.core import Identity
from augment.facts.waits.time_by_stack import StackTree, TimeByStack
from augment.writers.perfetto import wire
from augment.writers.perfetto.packets import Blobs, Events, InternedTexts, slices
from augment.writers.perfetto.tracks import Tracks

_MOST = 1 << 20  #: slices that are made together
_SOURCES = {"GPU time": "gpu.time", "Idle time": "gpu.idle", "Exposed communication": "gpu.exposed_communication"}
_ONLY = 1  #: the number of the only interned mapping, and of the only task


def nested_slices(
    tree: StackTree, times: list[TimeByStack], tracks: Tracks, interned: InternedTexts
) -> Iterator[Events]:
    """A track for each kind of time of each device, and one beside it for work that overlaps other work. Each piece of
    time is a slice for each frame of its stack, all as long: nothing but the innermost has time of its own."""
    category = interned.number(wire.INTERNED_CATEGORIES, "augment.flamegraph")
    for each in times:
        node, which = np.unique(each.node, return_inverse=True)
        stacks = [[interned.number(wire.INTERNED_NAMES, text) for text in tree.frames(last)] for last in node.tolist()]
        depth, names = np.array(list(map(len, stacks)), np.int64), np.concatenate(stacks)
        begin = np.cumsum(depth) - depth
        lane = _lanes(each)
        made = [tracks.of_time(each.device.track, f"{each.kind} by stack") for _ in range(int(lane.max()) + 1)]
        some = max(1, _MOST // int(depth.max()))
        for first in range(0, len(lane), some):
            stack = which[first : first + some]
            of = np.repeat(np.arange(first, first + len(stack)), depth[stack])
            place = np.arange(len(of)) - np.repeat(np.cumsum(depth[stack]) - depth[stack], depth[stack])
            name = names[begin[which[of]] + place]
            nothing = np.zeros(len(of), np.int64)
            blobs = Blobs(np.zeros(8, np.uint8), nothing, nothing)
            yield from slices(each.ts[of], each.dur[of], np.array(made)[lane[of]], category, name, blobs)


def _lanes(times: TimeByStack) -> Int64s:
    """Of each piece of time the first lane in which no other runs."""
    lane = np.zeros(len(times.ts), np.int64)
    running: list[tuple[int, int]] = []
    free: list[int] = []
    count = 0
    for place, (ts, dur) in enumerate(zip(times.ts.tolist(), times.dur.tolist(), strict=True)):
        while running and running[0][0] <= ts:
            heapq.heappush(free, heapq.heappop(running)[1])
        if not free:
            free.append(count)
            count += 1
        lane[place] = heapq.heappop(free)
        heapq.heappush(running, (ts + dur, int(lane[place])))
    return lane


def write_samples(
    tree: StackTree, times: list[TimeByStack], pid_of: dict[int, Identity], file: wire.Writable, shift_ns: int
) -> None:
    """Write a sample for each piece of time, in a sequence for each kind and device.

    ``pid_of`` is the process of each device, by its track.
    """
    for number, each in enumerate(times):
        sequence = wire.number(wire.PACKET_SEQUENCE, wire.SAMPLES_SEQUENCE + number)
        start = wire.number(wire.PACKET_TIMESTAMP, int(each.ts[0]) + shift_ns)
        described = _described(tree, each, pid_of[each.device.track])
        file.write(wire.message(1, sequence + start + wire.number(wire.PACKET_FLAGS, wire.CLEARED) + described))
        _, callstack = np.unique(each.node, return_inverse=True)
        columns = (each.ts + shift_ns).tolist(), each.dur.tolist(), (callstack + 1).tolist()
        for ts, dur, stack in zip(*columns, strict=True):
            sample = wire.number(wire.SAMPLE_TASK_IID, _ONLY) + wire.number(wire.SAMPLE_CALLSTACK_IID, stack)
            sample += wire.number(wire.SAMPLE_WEIGHT, dur)
            packet = wire.number(wire.PACKET_TIMESTAMP, ts) + wire.number(wire.PACKET_FLAGS, wire.NEEDED)
            file.write(wire.message(1, sequence + packet + wire.message(wire.PACKET_SAMPLE, sample)))


def _described(tree: StackTree, times: TimeByStack, pid: Identity) -> bytes:
    """The first packet of a sequence: its source and counter, its process, and its frames and stacks."""
    used = sorted({node for last in set(times.node.tolist()) for node in tree.nodes(last)})
    texts = {text: number for number, text in enumerate(dict.fromkeys(tree.names[node] for node in used), 1)}
    task = wire.number(1, _ONLY) + (wire.number(wire.TASK_PID, pid) if isinstance(pid, int) and pid > 0 else b"")
    content = wire.message(wire.INTERNED_MAPPINGS, wire.number(1, _ONLY)) + wire.message(wire.INTERNED_TASKS, task)
    for text, number in texts.items():
        content += wire.message(wire.INTERNED_FUNCTIONS, wire.number(1, number) + wire.text(2, text))
        frame = wire.number(1, number) + wire.number(wire.FRAME_FUNCTION_IID, number)
        frame += wire.number(wire.FRAME_MAPPING_IID, _ONLY) + wire.number(wire.FRAME_ADDRESS, number)
        content += wire.message(wire.INTERNED_FRAMES, frame)
    for number, last in enumerate(np.unique(times.node).tolist(), 1):
        frames = b"".join(wire.number(2, texts[text]) for text in tree.frames(last))
        content += wire.message(wire.INTERNED_CALLSTACKS, wire.number(1, number) + frames)
    counter = wire.text(2, "ns") + wire.number(wire.COUNTER_UNIT, wire.NANOSECONDS)
    source = wire.text(1, _SOURCES[times.kind]) + wire.message(2, counter)
    defaults = wire.message(wire.PACKET_DEFAULTS, wire.message(wire.DEFAULTS_SAMPLES, source))
    return defaults + wire.message(wire.PACKET_INTERNED, content)
