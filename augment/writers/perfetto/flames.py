"""Time by call stack, from which Perfetto draws flame graphs: as slices that nest, and as stack samples.

An area selected on the slices has a flame graph in every version of the UI. Stack samples (a weight in nanoseconds for
each piece of time) are read from v58 on, which has the table ``stack_sample``; older versions skip them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np
from msgspec import Struct

from augment import facts
from augment.arrays import NO_INDEX, Bools, Int64s, combinations
from augment.core import Category, Identity, Trace, source_code
from augment.facts.host.queued_tasks import queued_tasks
from augment.facts.host.training_phases import PREFIX, forward_backward
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
        # of each piece of time the first lane in which no other runs
        lane = np.zeros(len(each.ts), np.int64)
        running: list[tuple[int, int]] = []
        free: list[int] = []
        count = 0
        for index, (ts, dur) in enumerate(zip(each.ts.tolist(), each.dur.tolist(), strict=True)):
            while running and running[0][0] <= ts:
                heapq.heappush(free, heapq.heappop(running)[1])
            if not free:
                free.append(count)
                count += 1
            lane[index] = heapq.heappop(free)
            heapq.heappush(running, (ts + dur, int(lane[index])))
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


def write_samples(
    tree: StackTree, times: list[TimeByStack], pid_of: dict[int, Identity], file: wire.Writable, shift_ns: int
) -> None:
    """Write a sample for each piece of time, in a sequence for each kind and device.

    ``pid_of`` is the process of each device, by its track.
    """
    for number, each in enumerate(times):
        sequence = wire.number(wire.PACKET_SEQUENCE, wire.SAMPLES_SEQUENCE + number)
        start = wire.number(wire.PACKET_TIMESTAMP, int(each.ts[0]) + shift_ns)
        # the first packet of a sequence: its source and counter, its process, and its frames and stacks
        pid = pid_of[each.device.track]
        used = sorted({node for last in set(each.node.tolist()) for node in tree.nodes(last)})
        texts = {text: iid for iid, text in enumerate(dict.fromkeys(tree.names[node] for node in used), 1)}
        task = wire.number(1, _ONLY) + (wire.number(wire.TASK_PID, pid) if isinstance(pid, int) and pid > 0 else b"")
        content = wire.message(wire.INTERNED_MAPPINGS, wire.number(1, _ONLY)) + wire.message(wire.INTERNED_TASKS, task)
        for text, iid in texts.items():
            content += wire.message(wire.INTERNED_FUNCTIONS, wire.number(1, iid) + wire.text(2, text))
            frame = wire.number(1, iid) + wire.number(wire.FRAME_FUNCTION_IID, iid)
            frame += wire.number(wire.FRAME_MAPPING_IID, _ONLY) + wire.number(wire.FRAME_ADDRESS, iid)
            content += wire.message(wire.INTERNED_FRAMES, frame)
        for iid, last in enumerate(np.unique(each.node).tolist(), 1):
            frames = b"".join(wire.number(2, texts[text]) for text in tree.frames(last))
            content += wire.message(wire.INTERNED_CALLSTACKS, wire.number(1, iid) + frames)
        counter = wire.text(2, "ns") + wire.number(wire.COUNTER_UNIT, wire.NANOSECONDS)
        source = wire.text(1, _SOURCES[each.kind]) + wire.message(2, counter)
        defaults = wire.message(wire.PACKET_DEFAULTS, wire.message(wire.DEFAULTS_SAMPLES, source))
        described = defaults + wire.message(wire.PACKET_INTERNED, content)
        file.write(wire.message(1, sequence + start + wire.number(wire.PACKET_FLAGS, wire.CLEARED) + described))
        _, callstack = np.unique(each.node, return_inverse=True)
        columns = (each.ts + shift_ns).tolist(), each.dur.tolist(), (callstack + 1).tolist()
        for ts, dur, stack in zip(*columns, strict=True):
            sample = wire.number(wire.SAMPLE_TASK_IID, _ONLY) + wire.number(wire.SAMPLE_CALLSTACK_IID, stack)
            sample += wire.number(wire.SAMPLE_WEIGHT, dur)
            packet = wire.number(wire.PACKET_TIMESTAMP, ts) + wire.number(wire.PACKET_FLAGS, wire.NEEDED)
            file.write(wire.message(1, sequence + packet + wire.message(wire.PACKET_SAMPLE, sample)))


Kind = Literal["GPU time", "Idle time", "Exposed communication"]


class StackTree(Struct):
    """Stacks as a tree: the frame of node ``i`` is ``names[i]``, below that of node ``parent[i]``, which comes before
    it, or -1."""

    names: list[str]
    parent: list[int]
    known: dict[tuple[int, str], int]

    def node(self, below: int, names: Iterable[str]) -> int:
        """The node at the end of ``names``, below a node or -1; made where it is new."""
        for name in names:
            key = below, name
            if key not in self.known:
                self.known[key] = len(self.names)
                self.names.append(name)
                self.parent.append(below)
            below = self.known[key]
        return below

    def nodes(self, node: int) -> list[int]:
        """The nodes down to this one, outermost first; none for -1."""
        nodes = []
        while node >= 0:
            nodes.append(node)
            node = self.parent[node]
        return nodes[::-1]

    def frames(self, node: int) -> list[str]:
        """The stack down to this node, outermost first; none for -1."""
        return [self.names[each] for each in self.nodes(node)]


class TimeByStack(Struct, frozen=True):
    """Time of one kind on a device, in pieces: equal-length int64 columns, ascending ``ts``. ``dur``, above 0, and
    ``ts``: ns. ``node``: of the tree, the innermost frame."""

    kind: Kind
    device: facts.gpu.Device
    ts: Int64s
    dur: Int64s
    node: Int64s


def time_by_stack(trace: Trace) -> tuple[StackTree, list[TimeByStack]]:
    """The stacks of a trace, and the time of each device by them. Kinds that a device has no time of are left out."""
    work, names, tree = facts.gpu.work(trace), trace.strings, StackTree([], [], {})
    calls, is_shown = _calls(trace, tree)
    place_of, launch = facts.host.stacks(trace).place_of, work.launch
    if len(queued_tasks(trace)):  # the operator is on another thread
        launch = np.where(facts.gpu.innermost_operator(trace) >= 0, facts.gpu.innermost_operator(trace), launch)
    around = np.where(launch >= 0, calls[place_of[launch]], -1)
    # each kernel in its stack, and around it the lines that a compiler fused
    source = facts.gpu.lines(trace)
    fused = np.array([*(not site[0].is_start for site in source.sites), False], np.bool_)  # the last is for -1
    site = np.where(fused[source.site], source.site, -1)
    (above, lines, name), code = combinations(around, site, trace.events.name[work.row])
    nodes = [
        tree.node(node, [source.labels[line], names[text]] if line >= 0 else [names[text]])
        for node, line, text in zip(above.tolist(), lines.tolist(), name.tolist(), strict=True)
    ]
    kernel = np.array(nodes, np.int64)[code]

    times: list[TimeByStack] = []
    of_devices = zip(
        work.devices,
        facts.waits.gaps(trace),
        facts.waits.device_idle(trace, facts.waits.KERNEL_DELAY_NS),
        facts.gpu.coverage(trace),
        strict=True,
    )
    for device, gaps, idle, coverage in of_devices:
        places = work.by_time[device.places]
        times.append(_time("GPU time", device, work.ts[places], work.end[places], kernel[places]))
        # waiting for the host in what the host did, else in the work that came next
        row = np.where(idle.cause == facts.waits.GapCategory.HOST_WAIT, idle.row, -1)
        place = place_of[row]
        node = np.where(row >= 0, calls[place], kernel[gaps.next])
        call = np.where((row >= 0) & ~is_shown[place], trace.events.name[row], -1)
        (cause, node, call), code = combinations(idle.cause, node, call)
        nodes = [
            tree.node(
                tree.node(-1, [facts.waits.GapCategory(why).name.lower(), *tree.frames(stack)]), names[text : text + 1]
            )
            for why, stack, text in zip(cause.tolist(), node.tolist(), call.tolist(), strict=True)
        ]
        times.append(_time("Idle time", device, idle.start, idle.end, np.array(nodes, np.int64)[code]))
        exposed = coverage.intervals_of(any_of=facts.gpu.COMMUNICATION, none_of=facts.gpu.COMPUTATION)
        running = kernel[facts.gpu.communication_at(trace, device, exposed.start)]
        times.append(_time("Exposed communication", device, exposed.start, exposed.end, running))
    return tree, [each for each in times if len(each.ts)]


def _time(kind: Kind, device: facts.gpu.Device, ts: Int64s, end: Int64s, node: Int64s) -> TimeByStack:
    lasting = end > ts
    return TimeByStack(kind, device, ts[lasting], (end - ts)[lasting], node[lasting])


def _calls(trace: Trace, tree: StackTree) -> tuple[Int64s, Bools]:
    """Of each place of the call stacks, and of -1, the node of the innermost frame around it or itself, -1 for none;
    and whether it is a frame itself. What is no frame: Python's and PyTorch's own functions, runtime calls, steps."""
    stacks, links = facts.host.stacks(trace), forward_backward(trace)
    lines = [source_code.function_line(name) for name in trace.strings]
    known = np.array(
        [line is not None and source_code.owner(line.file) != source_code.NOT_USERS for line in lines], np.bool_
    )
    is_outer = facts.host.is_of(trace, (Category.PYTHON_FUNCTION,), known | facts.names.starting(trace, PREFIX))
    is_outer |= facts.host.is_of(trace, (Category.USER_ANNOTATION,), ~facts.names.starting(trace, facts.names.STEP))
    is_shown = is_outer | facts.host.is_of(trace, (Category.CPU_OP,))
    shown = stacks.where(is_shown)
    outer = facts.host.directly_around(trace, shown)
    # what runs backward lies where its forward operator was called
    outers = stacks.where(is_outer)
    above = np.append(outers, -1)[facts.host.enclosing(trace, outers)][stacks.place_of[links.forward]]
    backward = stacks.place_of[links.backward][above >= 0]
    outer[np.searchsorted(shown, backward)] = np.searchsorted(shown, above[above >= 0])
    paths = facts.host.call_paths(outer, trace.events.name[stacks.row[shown]])
    named = {name: f"{line.function} ({{}})" for name, line in enumerate(lines) if line and known[name]}
    texts = dict(
        zip(named, source_code.labels([[line] for line in map(lines.__getitem__, named) if line]), strict=True)
    )
    nodes: list[int] = []
    for name, parent in zip(paths.name, paths.parent, strict=True):
        text = named[name].format(texts[name]) if name in named else trace.strings[name].removeprefix(PREFIX)
        nodes.append(tree.node(nodes[parent] if parent >= 0 else -1, [text]))
    node = np.array([*nodes, -1], np.int64)[np.append(paths.path, NO_INDEX)]  # the last is for places in no frame
    return np.append(node[facts.host.enclosing(trace, shown)], NO_INDEX), np.append(is_shown, False)
