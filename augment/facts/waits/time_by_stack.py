"""The time of each device by call stack: GPU time, idle time by cause, and exposed communication, as flame graphs draw
them. Each adds up to what the tables say.

A stack is a path through Python functions (none of Python's or PyTorch's own), modules, annotations and operators, as
they lie around the launch, down to the kernel. What backward launches lies in the function or module of its forward
operator; the lines that a compiler fused lie around their kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
from msgspec import Struct

from augment.arrays import NO_INDEX, Bools, Int64s, combinations
from augment.core import Category, Trace
from augment.core.source_code import NOT_USERS, function_line, labels, owner
from augment.facts.gpu.device_activity import COMMUNICATION, COMPUTATION, communication_at, type_coverage
from augment.facts.gpu.gpu_work import Device, gpu_work
from augment.facts.gpu.launched_work import work_operators
from augment.facts.gpu.lines_of_work import source_lines
from augment.facts.host.call_stacks import call_paths, call_stacks, directly_around, enclosing, is_of
from augment.facts.host.queued_tasks import queued_tasks
from augment.facts.host.training_phases import PREFIX, forward_backward
from augment.facts.names.name_masks import STEP, starting
from augment.facts.waits.gap_causes import KERNEL_DELAY_NS, GapCategory, device_gaps, device_idle

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
    device: Device
    ts: Int64s
    dur: Int64s
    node: Int64s


def time_by_stack(trace: Trace) -> tuple[StackTree, list[TimeByStack]]:
    """The stacks of a trace, and the time of each device by them. Kinds that a device has no time of are left out."""
    work, names, tree = gpu_work(trace), trace.strings, StackTree([], [], {})
    calls, is_shown = _calls(trace, tree)
    place_of, launch = call_stacks(trace).place_of, work.launch
    if len(queued_tasks(trace)):  # the operator is on another thread
        launch = np.where(work_operators(trace) >= 0, work_operators(trace), launch)
    around = np.where(launch >= 0, calls[place_of[launch]], -1)
    # each kernel in its stack, and around it the lines that a compiler fused
    source = source_lines(trace)
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
        work.devices, device_gaps(trace), device_idle(trace, KERNEL_DELAY_NS), type_coverage(trace), strict=True
    )
    for device, gaps, idle, coverage in of_devices:
        places = work.by_time[device.places]
        times.append(_time("GPU time", device, work.ts[places], work.end[places], kernel[places]))
        # waiting for the host in what the host did, else in the work that came next
        row = np.where(idle.cause == GapCategory.HOST_WAIT, idle.row, -1)
        place = place_of[row]
        node = np.where(row >= 0, calls[place], kernel[gaps.next])
        call = np.where((row >= 0) & ~is_shown[place], trace.events.name[row], -1)
        (cause, node, call), code = combinations(idle.cause, node, call)
        nodes = [
            tree.node(tree.node(-1, [GapCategory(why).name.lower(), *tree.frames(stack)]), names[text : text + 1])
            for why, stack, text in zip(cause.tolist(), node.tolist(), call.tolist(), strict=True)
        ]
        times.append(_time("Idle time", device, idle.start, idle.end, np.array(nodes, np.int64)[code]))
        exposed = coverage.intervals_of(any_of=COMMUNICATION, none_of=COMPUTATION)
        running = kernel[communication_at(trace, device, exposed.start)]
        times.append(_time("Exposed communication", device, exposed.start, exposed.end, running))
    return tree, [each for each in times if len(each.ts)]


def _time(kind: Kind, device: Device, ts: Int64s, end: Int64s, node: Int64s) -> TimeByStack:
    lasting = end > ts
    return TimeByStack(kind, device, ts[lasting], (end - ts)[lasting], node[lasting])


def _calls(trace: Trace, tree: StackTree) -> tuple[Int64s, Bools]:
    """Of each place of the call stacks, and of -1, the node of the innermost frame around it or itself, -1 for none;
    and whether it is a frame itself. What is no frame: Python's and PyTorch's own functions, runtime calls, steps."""
    stacks, links = call_stacks(trace), forward_backward(trace)
    lines = [function_line(name) for name in trace.strings]
    known = np.array([line is not None and owner(line.file) != NOT_USERS for line in lines], np.bool_)
    is_outer = is_of(trace, (Category.PYTHON_FUNCTION,), known | starting(trace, PREFIX))
    is_outer |= is_of(trace, (Category.USER_ANNOTATION,), ~starting(trace, STEP))
    is_shown = is_outer | is_of(trace, (Category.CPU_OP,))
    shown = stacks.where(is_shown)
    outer = directly_around(trace, shown)
    # what runs backward lies where its forward operator was called
    outers = stacks.where(is_outer)
    above = np.append(outers, -1)[enclosing(trace, outers)][stacks.place_of[links.forward]]
    backward = stacks.place_of[links.backward][above >= 0]
    outer[np.searchsorted(shown, backward)] = np.searchsorted(shown, above[above >= 0])
    paths = call_paths(outer, trace.events.name[stacks.row[shown]])
    named = {name: f"{line.function} ({{}})" for name, line in enumerate(lines) if line and known[name]}
    texts = dict(zip(named, labels([[line] for line in map(lines.__getitem__, named) if line]), strict=True))
    nodes: list[int] = []
    for name, parent in zip(paths.name, paths.parent, strict=True):
        text = named[name].format(texts[name]) if name in named else trace.strings[name].removeprefix(PREFIX)
        nodes.append(tree.node(nodes[parent] if parent >= 0 else -1, [text]))
    node = np.array([*nodes, -1], np.int64)[np.append(paths.path, NO_INDEX)]  # the last is for places in no frame
    return np.append(node[enclosing(trace, shown)], NO_INDEX), np.append(is_shown, False)
