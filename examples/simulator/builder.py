"""Plays a step once and notes its host points, slices, launches and texts: what :mod:`simulator.program` repeats."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import numpy as np

from simulator import kineto
from simulator.options import JobOptions
from simulator.program import DEVICE, ID_KINDS, PID, TIDS, GpuOp, HostSlice, Program, Slot, Sync

MAIN, AUTOGRAD = 0, 1
Kind = Literal["kernel", "gpu_memcpy", "gpu_memset"]
LAUNCH_CALLS: dict[Kind, tuple[str, str, int]] = {
    "kernel": ("cuda_runtime", "cudaLaunchKernel", 211),
    "gpu_memcpy": ("cuda_runtime", "cudaMemcpyAsync", 41),
    "gpu_memset": ("cuda_runtime", "cudaMemsetAsync", 51),
}
DRIVER_CALL = ("cuda_driver", "cuLaunchKernelEx", 652)  #: by which cuBLAS launches


@dataclass
class _Page:
    """Texts in their order in the file, and the slots that their placeholders take."""

    texts: list[str] = field(default_factory=list)
    slots: list[tuple[Slot, ...]] = field(default_factory=list)

    def add(self, text: str, *slots: Slot) -> None:
        self.texts.append(text)
        self.slots.append(slots)


class StepBuilder:
    """Plays a step once and notes what happens: nested slices on two host threads, launches, waits, memory."""

    pid, tids, device = PID, TIDS, DEVICE

    def __init__(self, options: JobOptions) -> None:
        self.options = options
        self.stacks, self.memory, self.counters = options.stacks, options.memory, options.counters
        self._cross_every, self._nested = options.cross_every if options.cross_ns else 0, 0
        self.thread = MAIN
        self.ops: list[GpuOp] = []
        self.stall_point = 0
        self._costs: list[float] = []
        self._pending = 0.0
        self._syncs: list[Sync] = []
        self._host, self._gpu = _Page(), _Page()
        self._host_pairs: list[tuple[int, int]] = []
        self._slices: list[HostSlice] = []
        self._open: list[int] = []
        self._note_pairs: list[tuple[int, int]] = []
        self._counts = dict.fromkeys(ID_KINDS, 0)
        self._external: list[int] = []
        self._frames: list[int] = []
        self._allocated = 1 << 30
        self._graph: tuple[int, int, Slot] | None = None  #: the launch of the graph that is played
        self._arrows: set[Slot] = set()

    @property
    def tid(self) -> str:
        """The thread that runs now."""
        return self.tids[self.thread]

    def spend(self, ns: float) -> None:
        """Let the host work so long."""
        self._pending += ns

    def point(self) -> int:
        """A moment that something refers to."""
        self._costs.append(self._pending)
        self._pending = 0.0
        return len(self._costs) - 1

    def new_id(self, kind: str) -> Slot:
        """A fresh id of ``kind``, as a slot to be used any number of times."""
        self._counts[kind] += 1
        return kind, self._counts[kind] - 1

    @contextmanager
    def _slice(
        self, page: _Page, category: str, name: str, args: str, slots: Sequence[Slot], named: Sequence[Slot] = ()
    ) -> Iterator[int]:
        start = self.point()
        index = self._new_slice(category, name, start, start)
        text = kineto.slice_text(category, name, self.pid, self.tid, args)
        page.add(text, *named, ("host", start), ("host_dur", index), *slots)
        self._open.append(index)
        yield start
        self._open.pop()
        self._host_pairs[index] = start, self.point()

    def _new_slice(self, category: str, name: str, start: int, end: int) -> int:
        """Note a slice; every so many operators inside another it will outlast that one, if so asked."""
        self._host_pairs.append((start, end))
        inside = [index for index in self._open if self._slices[index].tid == self.tid]
        outlasts = -1
        if category == "cpu_op" and inside and self._slices[inside[-1]].category == "cpu_op":
            self._nested += 1
            if self._cross_every and self._nested % self._cross_every == 0:
                outlasts = inside[-1]
        self._slices.append(HostSlice(category, name, self.tid, outlasts))
        return len(self._slices) - 1

    @contextmanager
    def op(
        self,
        name: str,
        *,
        before: float = 1400,
        after: float = 700,
        dims: str = "",
        sequence: Slot | None = None,
        extra: str = "",
        forward_thread: int | None = None,
    ) -> Iterator[int]:
        """A ``cpu_op`` that lasts as long as its block."""
        if self._graph:
            yield self._graph[0]
            return
        external, event = self.new_id("external"), self.new_id("event")
        args, slots = '"External id": %d,', [external]
        if sequence is not None:
            args += f'"Sequence number": %d, "Fwd thread id": {forward_thread or 0}, '
            slots.append(sequence)
        args += (
            '"Record function id": 0, '
            + (dims and dims + ", ")
            + (extra and kineto.plain(extra) + ", ")
            + '"Ev Idx": %d'
        )
        self.spend(before)
        with self._slice(self._host, "cpu_op", kineto.plain(name), args, [*slots, event]) as start:
            self._external.append(external[1])
            self.spend(before)
            yield start
            self.spend(after)
            self._external.pop()

    @contextmanager
    def annotation(self, name: str, *slots: Slot) -> Iterator[Slot]:
        """A ``user_annotation``, its external id given to the block; ``name`` may hold a ``%d`` for each slot."""
        external, event = self.new_id("external"), self.new_id("event")
        if self._graph:
            yield external
            return
        self.spend(900)
        args = '"External id": %d,"Record function id": 0, "Ev Idx": %d'
        with self._slice(self._host, "user_annotation", name, args, [external, event], slots):
            self.spend(900)
            yield external
            self.spend(500)

    @contextmanager
    def frame(self, name: str, module: int | None = None) -> Iterator[None]:
        """A Python function on the stack, if stacks are asked for."""
        if not self.stacks or self._graph:
            yield
            return
        python, event = self.new_id("python"), self.new_id("event")
        parent = '"Python parent id": %d, ' if self._frames else '"Python parent id": null, '
        slots = [("python", self._frames[-1])] if self._frames else []
        args = (
            parent
            + '"Python id": %d, '
            + (f'"Python module id": {module}, ' if module is not None else "")
            + '"Ev Idx": %d'
        )
        self.spend(600)
        with self._slice(self._host, "python_function", kineto.plain(name), args, [*slots, python, event]):
            self._frames.append(python[1])
            yield
            self.spend(300)
            self._frames.pop()

    def _external_now(self) -> Slot:
        """The id of the operator that runs now."""
        return "external", self._external[-1] if self._external else 0

    def _call(self, call: tuple[str, str, int], cost: float, correlation: Slot) -> tuple[int, int]:
        """A CUDA API call: its first and last host point."""
        category, name, cbid = call
        args = '"External id": %d,      ' + f'"cbid": {cbid}, "correlation": %d'
        with self._slice(self._gpu, category, name, args, [self._external_now(), correlation]) as start:
            self.spend(cost)
        return start, len(self._costs) - 1

    def call(self, name: str, cbid: int, cost: float = 1800) -> None:
        """A CUDA API call that starts nothing on the GPU."""
        if not self._graph:
            self._call(("cuda_runtime", name, cbid), cost, self.new_id("correlation"))

    @contextmanager
    def graph(self, wanted: bool = True) -> Iterator[None]:
        """One call that launches all of its block, which no operator of the host shows."""
        if not wanted:
            yield
            return
        with self.op("cuda_graph_replay"):
            correlation = self.new_id("correlation")
            self._graph = *self._call(("cuda_runtime", "cudaGraphLaunch", 311), 9000, correlation), correlation
            self._gpu.add(kineto.flow_text("s", "ac2g", self.pid, self.tid), correlation, ("host", self._graph[0]))
            yield
            self._graph = None

    def launch(
        self,
        name: str,
        ns: float,
        stream: int,
        *,
        category: Kind = "kernel",
        size: int = 0,
        waits: Sequence[int] = (),
        collective: str | None = None,
        seq: Slot | None = None,
        members: tuple[int, ...] = (),
        meeting: tuple[object, ...] = (),
        buffered: bool = False,
        cost: float = 4600,
        loads: bool = False,
    ) -> int:
        """Queue an operation on ``stream``; its index. A call that ``loads`` it first queues it at its end."""
        if self._graph:
            start, end, correlation = self._graph
        else:
            correlation = self.new_id("correlation")
            call = DRIVER_CALL if name.startswith("nvjet") else LAUNCH_CALLS[category]
            start, end = self._call(call, cost, correlation)
            self._gpu.add(kineto.flow_text("s", "ac2g", self.pid, self.tid), correlation, ("host", start))
        met = collective is not None, members, meeting, buffered
        self.ops.append(GpuOp(name, category, stream, ns, start, end, size, tuple(waits), *met, loads))
        self._show(len(self.ops) - 1, correlation, collective or "", seq)
        self.spend(0 if self._graph else 500)
        return len(self.ops) - 1

    def _show(self, index: int, correlation: Slot, collective: str, seq: Slot | None) -> None:
        """The text of a GPU operation and of the flow that ends at it."""
        op = self.ops[index]
        slots: list[Slot] = [("start", index), ("gpu_dur", index), self._external_now()]
        where = f'"device": {self.device}, "context": 1,      "stream": {op.stream}, "correlation": %d,      '
        args = f'"External id": %d,      {where}'
        if op.category == "kernel":
            args = (
                args.replace('"device"', '"queued": 0, "device"')
                + self._shape_of(op)
                + (collective and ", " + collective)
            )
            if self._graph:
                args += f', "graph id": 1, "graph node id": {index + 1}'
            slots += [correlation, *([seq] if seq else [])]
        else:
            args += f'"bytes": {op.bytes}, "memory bandwidth (GB/s)": %d.%09d'
            slots += [correlation, ("rate", index)]
        self._gpu.add(kineto.slice_text(op.category, kineto.plain(op.name), self.device, op.stream, args), *slots)
        self._gpu.add(kineto.flow_text("f", "ac2g", self.device, op.stream), correlation, ("start", index))
        if self.counters and op.category == "kernel":
            self._show_counters(index)

    def _show_counters(self, index: int) -> None:
        """The range of a kernel: in the order of the launches, as CUPTI runs one kernel at a time."""
        op = self.ops[index]
        name = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
        args = f'"{name.format("ffma")}": {64 * int(op.base_ns)}, "{name.format("fadd")}": {sum(map(ord, op.name))}'
        text = kineto.slice_text("cuda_profiler_range", kineto.plain(op.name), self.device, 0, args)
        index = self._new_slice("cuda_profiler_range", op.name, op.launch, op.launch_end)
        self._gpu.add(text, ("host", op.launch), ("host_dur", index))

    @staticmethod
    def _shape_of(op: GpuOp) -> str:
        """Launch configuration: made up, but the same for the same kernel."""
        seed = sum(map(ord, op.name)) + int(op.base_ns)
        blocks, threads = (24, 544) if op.collective else (8 + seed * 7919 % 40000, (128, 256, 384, 512)[seed % 4])
        return kineto.plain(
            f'"registers per thread": {16 + seed % 150},      "shared memory": {seed % 5 * 24576},      '
            f'"blocks per SM": {blocks / 132:.6f},      "warps per SM": {blocks * threads / 32 / 132:.6f},      '
            f'"grid": [{blocks}, 1, 1],      "block": [{threads}, 1, 1],      "est. achieved occupancy %": {seed % 100}'
        )

    def synchronize(self, stream: int | None = None, back: int = 0, frees: bool = False) -> None:
        """The host waits for one stream, for the device, or for an event at the end of the step ``back`` before; with
        ``frees`` for the device because it gives memory back."""
        name, cbid = ("cudaDeviceSynchronize", 165) if stream is None else ("cudaStreamSynchronize", 131)
        if back:
            name, cbid = "cudaEventSynchronize", 137
        if frees:
            name, cbid = "cudaFree", 22
        _, end = self._call(("cuda_runtime", name, cbid), 1500, self.new_id("correlation"))
        self._syncs.append(Sync(end, len(self.ops), stream, back))

    def note_on_gpu(self, name: str, stream: int, first: int, last: int, external: Slot, *slots: Slot) -> None:
        """A ``gpu_user_annotation`` from the start of operation ``first`` to the end of ``last``."""
        if self._graph:
            return
        self._note_pairs.append((first, last))
        text = kineto.slice_text("gpu_user_annotation", name, self.device, stream, '"External id": %d')
        number = len(self._note_pairs) - 1
        self._gpu.add(text, *slots, ("note_start", number), ("note_dur", number), external)

    def flow(self, phase: str, flow: Slot, start: int) -> None:
        """One end of a forward-backward arrow, at the host point ``start``; a graph has none."""
        if self._graph or (phase == "f" and flow not in self._arrows):
            return
        self._arrows.add(flow)
        self._host.add(kineto.flow_text(phase, "fwdbwd", self.pid, self.tid), flow, ("host", start))

    def allocate(self, size: int, address: Slot | None = None) -> Slot | None:
        """A ``[memory]`` instant, if asked for: ``size`` below zero frees ``address``."""
        if not self.memory or self._graph:
            return None
        where = address or self.new_id("address")
        self._allocated += size
        args = (
            f'"Total Reserved": {8 << 30}, "Total Allocated": {self._allocated}, "Bytes": {size}, "Addr": %d, '
            f'"Device Id": {self.device}, "Device Type": 1, "Ev Idx": %d'
        )
        self._host.add(
            kineto.memory_text(self.pid, self.tid, args), ("host", self.point()), where, self.new_id("event")
        )
        return where

    def build(self) -> Program:
        """The program that was played."""
        points, ops, pairs, notes = len(self._costs), len(self.ops), len(self._host_pairs), len(self._note_pairs)
        kinds = ("host", "start", "host_dur", "gpu_dur", "note_dur", "note_start")
        first = dict(zip(kinds, np.cumsum((0, points, ops, pairs, ops, notes)).tolist(), strict=True))
        times = points + ops + pairs + ops + notes + notes
        take: list[int] = []
        ends: list[int] = []
        ids: dict[Slot, int] = {}
        pages = [*self._host.slots, *self._gpu.slots]
        whole = self.options.whole_us
        for slots in pages:
            for slot in slots:
                kind, index = slot
                if kind in first:
                    take += [first[kind] + index, times + first[kind] + index][: 1 if whole else 2]
                elif kind == "rate":
                    take += (2 * times + index, 2 * times + ops + index)
                else:
                    take.append(2 * (times + ops) + ids.setdefault(slot, len(ids)))
            ends.append(len(take))
        texts = self._host.texts + self._gpu.texts
        if whole:
            texts = [text.replace(kineto.TIME, "%d") for text in texts]
        return Program(
            np.array(self._costs),
            tuple(self.ops),
            tuple(self._syncs),
            self.stall_point,
            tuple(map(kineto.one_key_a_line, texts) if self.options.layout == "lines" else texts),
            np.array(take, np.int64),
            np.array(ends, np.int64),
            tuple(map(self._anchor, pages)),
            tuple(self._slices),
            np.array(self._host_pairs, np.int64).reshape(-1, 2),
            np.array(self._note_pairs, np.int64).reshape(-1, 2),
            np.array([ID_KINDS.index(kind) for kind, _ in ids], np.int64),
            np.array([index for _, index in ids], np.int64),
            np.array([self._counts[kind] for kind in ID_KINDS], np.int64),
            self.options.cross_ns,
            2 if whole else 4,
        )

    @staticmethod
    def _anchor(slots: Sequence[Slot]) -> Slot:
        """The duration of a slice, or the time of an instant or of one end of an arrow."""
        durations = [slot for slot in slots if slot[0].endswith("_dur")]
        return (durations or [slot for slot in slots if slot[0] in ("host", "start")])[0]


@cache
def dims_text(*shapes: tuple[int, ...], kind: str = "c10::BFloat16", values: tuple[str, ...] = ()) -> str:
    """The four lists that shapes are recorded in; ``values`` are arguments after the tensors."""
    strides = []
    for shape in shapes:
        step = 1
        out: list[int] = []
        for extent in reversed(shape):
            out.insert(0, step)
            step *= extent
        strides.append(out)
    lists = {
        "Concrete Inputs": [""] * len(shapes) + list(values),
        "Input type": [kind] * len(shapes) + ["Scalar"] * len(values),
        "Input Strides": strides + [[] for _ in values],
        "Input Dims": [list(shape) for shape in shapes] + [[] for _ in values],
    }
    return ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in lists.items())
