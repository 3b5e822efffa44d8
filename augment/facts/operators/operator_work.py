"""The work of operators on each device, and the GPU work that executes it.

The operators are those that count (:func:`counted`). For kernels of CUDA graphs they are the operators of the
graph's capture; for compiled kernels without shapes of their own, what the compiler's log says that they are made of.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from math import prod
from typing import TypeAlias

import numpy as np
from msgspec import Struct

from augment.arrays import EventRow, EventRows, Int32s, Int64s, combinations, sums
from augment.core import Trace, derived, records
from augment.facts import gpu, host, source
from augment.facts.gpu.kernel_families import KernelFamilies, families_of, kernel_families
from augment.facts.gpu.lines_of_work import ANY, kernel_and_call, sites_of_launches
from augment.facts.names import KernelType
from augment.facts.operators.captured_graphs import GraphWork, graph_work
from augment.facts.operators.counted_operators import counted, work_of
from augment.facts.operators.formulas_memory import PARTLY
from augment.facts.operators.formulas_products import ATTENTION, CONVOLUTION, MATMUL
from augment.facts.operators.operator_calls import TYPES, Call, Unrecorded, Work, exactly
from augment.facts.steps import StepWindows, batches, recorded, step_of_work
from augment.facts.steps.engine_steps import Batch


class OperatorWork(Struct, frozen=True):
    """The operators that count and launched computation: equal-length columns, ascending ``row``."""

    row: EventRows  #: the operator, or the launch of the graph that contains it, or of the compiled kernel
    kind: Int32s  #: an index of ``calls`` and ``works``
    calls: tuple[Call, ...]  #: distinct calls
    works: tuple[Work, ...]  #: the work of each of ``calls``
    owner: Int32s  #: of each piece of GPU work the index in these columns of its operator, -1 where there is none
    recorded: bool  #: whether any operator of the trace has shapes

    def __len__(self) -> int:
        return len(self.row)


@derived(until="breakdowns")
def operator_work(trace: Trace) -> OperatorWork:
    """The operators that count, with their operations and bytes.

    The formula is evaluated once for each distinct call.
    """
    work, stacks = gpu.work(trace), host.stacks(trace)
    of_graphs, compiled = graph_work(trace), compiled_work(trace)
    place, kind, calls, works = counted(trace)
    owner = np.full(len(work), -1, np.int32)
    if len(place):
        around = host.enclosing(trace, place)
        computing = np.flatnonzero((work.type == KernelType.COMPUTATION) & (work.launch >= 0))
        launch = stacks.place_of[work.launch[computing]]
        owner[computing] = np.where(launch >= 0, around[np.maximum(launch, 0)], -1)
    calls, works, row = (*calls,), (*works,), stacks.row[place]
    for more in (of_graphs, compiled):
        lacking = np.array([*(each.flops is None and each.bytes is None for each in works), True], np.bool_)
        chosen = (more.owner >= 0) & ((more is of_graphs) | lacking[np.append(kind, -1)[owner]])
        owner = np.where(chosen, more.owner + np.int32(len(row)), owner)
        row = np.concatenate((row, more.row))
        kind = np.concatenate((kind, more.kind + np.int32(len(calls))))
        calls, works = (*calls, *more.calls), (*works, *more.works)
    used = np.zeros(len(row) + 1, np.bool_)
    used[owner] = True  # -1 reads the last entry
    used = used[:-1]
    number = np.append(np.cumsum(used) - 1, -1).astype(np.int32)
    row = row[used]
    order = np.argsort(row, kind="stable")
    rank = np.empty(len(order) + 1, np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    rank[-1] = -1
    recorded = len(source.args(trace).ints("Input Dims").rows) > 0 or len(of_graphs.row) + len(compiled.row) > 0
    row, kind = row[order], kind[used][order]
    kind, calls, works = _with_batches(trace, row, kind, calls, works)
    return OperatorWork(row, kind, calls, works, rank[number[owner]], recorded)


def equal_kernels(trace: Trace, windows: StepWindows) -> tuple[Int64s, bool]:
    """The time, ns, of the kernels that compute and that each step runs equally often: a row for each name and shapes,
    a column for each step; and whether the shapes of most were recorded: then no others are among them."""
    work, operators, step = gpu.work(trace), operator_work(trace), step_of_work(trace, windows)
    places = work.where((step >= 0) & (work.type == KernelType.COMPUTATION))
    shapes = np.append(operators.kind, -1)[operators.owner[places]]
    (names, kinds), which = combinations(trace.events.name[work.row[places]], shapes)
    key, table = which * len(windows) + step[places], (len(names), len(windows))
    ns = sums(key, work.end[places] - work.ts[places], table[0] * table[1]).reshape(table)
    number = np.bincount(key, minlength=table[0] * table[1]).reshape(table)
    same, known = (number == number[:, :1]).all(axis=1), kinds >= 0
    has_shapes = bool(2 * ns[known].sum() > ns.sum())
    return ns[same & (known | (not has_shapes))], has_shapes


def _with_batches(
    trace: Trace, row: EventRows, kind: Int32s, calls: tuple[Call, ...], works: tuple[Work, ...]
) -> tuple[Int32s, tuple[Call, ...], tuple[Work, ...]]:
    """The kinds, calls and works where attention over an engine's cache has the work of its step's batch."""
    of_step = batches(trace)
    places = np.flatnonzero(np.array([work.attends for work in works], np.bool_)[kind]) if of_step else ()
    if not len(places):
        return kind, calls, works
    kind, known = kind.copy(), dict[tuple[int, Batch], int]()
    calls_, works_ = [*calls], [*works]
    for place, step in zip(places, recorded(trace).at(trace.events.ts[row[places]]).tolist(), strict=True):
        heads = works[kind[place]].heads
        if step < 0 or heads is None:
            continue
        key = int(kind[place]), of_step[step]
        if key not in known:
            known[key] = len(calls_)
            calls_.append(calls[key[0]])
            works_.append(work_of(heads, key[1]))
        kind[place] = known[key]
    return kind, tuple(calls_), tuple(works_)


@derived(until="breakdowns")
def work_families(trace: Trace) -> KernelFamilies:
    """As :func:`kernel_families`, but operators of captures decide, too, and products in compiled kernels."""
    graphs, compiled = graph_work(trace), compiled_work(trace)
    if not len(graphs.row) and not len(compiled.row):
        return kernel_families(trace)
    row = gpu.innermost_operator(trace)
    strings = list(trace.strings)
    operator = np.where(row >= 0, trace.events.name[np.maximum(row, 0)], -1)
    for more, names in ((compiled, compiled.products), (graphs, [call.operator for call in graphs.calls])):
        of_call = np.array([len(strings) + number if name else -1 for number, name in enumerate(names)], np.int64)
        strings += names
        named = np.append(np.append(of_call, -1)[more.kind], -1)[more.owner]
        operator = np.where(named >= 0, named, operator)
    return families_of(trace, operator, strings)


# The work of compiled kernels from the graph that they were compiled from, where the trace has no shapes of them.
#
# Of each kernel PyTorch's log of the compiler (``--torch-trace``) tells which operations it was made of, with shapes
# and types. Its operations are those of the products among them. It reads each operand from outside once, and writes
# each result that is used outside. The bytes are unknown if it reads or writes a part of something, changes an operand,
# or has an operation that another kernel has, too.

_TYPES = {
    "f64": "double", "f32": "float", "bf16": "c10::BFloat16", "f16": "c10::Half", "i64": "long int", "i32": "int",
    "i16": "short", "i8": "signed char", "u8": "unsigned char", "b8": "bool", "f8e4m3fn": "c10::Float8_e4m3fn",
    "f8e5m2": "c10::Float8_e5m2", "f8e4m3fnuz": "c10::Float8_e4m3fnuz", "f8e5m2fnuz": "c10::Float8_e5m2fnuz",
}  # fmt: skip
_VIEWS = re.compile(r"aten::(?:permute|t|transpose|_?(?:unsafe_)?view|reshape|expand|(?:un)?squeeze|alias|detach)")


_Site: TypeAlias = tuple[Call, Work, str]


class CompiledWork(GraphWork, frozen=True):
    """As for kernels of CUDA graphs; ``row`` is the operator around the launch, or the launch."""

    products: tuple[str, ...]  #: of each of ``calls`` the product, convolution or attention in it, empty for none


@derived(until="breakdowns")
def compiled_work(trace: Trace) -> CompiledWork:
    """The work of compiled kernels; empty without a log that has graphs."""
    attached = trace.context.attached(records.CompileLogs)
    logs = [log for log in (attached.logs if attached else ()) if trace.rank is None or log.rank in (None, trace.rank)]
    known: dict[tuple[str, str], dict[tuple[int, int], _Site | None]] = {}
    for graph in (graph for log in logs for graph in log.graphs if graph.nodes):
        of_graph = _Graph(graph)
        for full in graph.made_of:
            kernel, number = kernel_and_call(full)
            if number:  # else all its calls are thrown together
                site = of_graph.site(full)
                for key in ((graph.compile_id, kernel), (ANY, kernel)):
                    of_kernel = known.setdefault(key, {})
                    of_kernel[number, len(of_kernel)] = site
    work = gpu.work(trace)
    owner = np.full(len(work), -1, np.int32)
    if not known:
        return CompiledWork(np.empty(0, EventRow), np.empty(0, np.int32), (), (), owner, (), ())
    operators = gpu.innermost_operator(trace)
    rows: list[int] = []
    kinds: list[int] = []
    calls: list[Call] = []
    works: list[Work] = []
    products: list[str] = []
    numbers: dict[tuple[str, str, Work], int] = {}
    for place, sites in sites_of_launches(trace, np.arange(len(work)), known):
        first = sites[0]
        if first is None or any(other is None or other[1] != first[1] for other in sites):
            continue  # which of them it was is not known
        call, what, product = first
        called = call.operator, str(call.dims), what
        if called not in numbers:
            numbers[called] = len(calls)
            calls.append(call)
            works.append(what)
            products.append(product)
        owner[place] = len(rows)
        rows.append(int(operators[place] if operators[place] >= 0 else work.launch[place]))
        kinds.append(numbers[called])
    columns = np.array(rows, EventRow), np.array(kinds, np.int32), tuple(calls), tuple(works), owner
    return CompiledWork(*columns, (), tuple(products))


class _Graph:
    """A graph, and what is known of all its nodes: the node whose memory each is a view of (``base``), those that use
    it outside of views, and how many kernels have it."""

    def __init__(self, graph: records.GraphOrigins) -> None:
        self.nodes, self.made_of = graph.nodes, graph.made_of
        self.base: dict[str, str] = {}
        self.users: dict[str, set[str]] = {}
        self.parts: dict[str, list[str]] = {}  #: by the name of a node with several results
        for name, node in graph.nodes.items():  # operands come before
            operands = [self.base[operand] for operand in node.operands if operand in self.base]
            self.base[name] = operands[0] if operands and _VIEWS.fullmatch(node.operator) else name
            if node.operator == "getitem" and operands:
                self.parts.setdefault(node.operands[0], []).append(name)
            elif self.base[name] == name:
                for operand in operands:
                    self.users.setdefault(operand, set()).add(name)
        for name in graph.results:
            self.users.setdefault(self.base[name], set()).add("")
        self.kernels = Counter(name for names in graph.made_of.values() for name in {*names})

    def site(self, full: str) -> _Site | None:
        """The operands and the work of a kernel, and the product in it; None where neither operations nor bytes can be
        told."""
        if not self.made_of[full] or not {*self.made_of[full]} <= self.nodes.keys():
            return None
        inside = dict.fromkeys(part for name in self.made_of[full] for part in (name, *self.parts.get(name, ())))
        operands = (operand for name in inside for operand in self.nodes[name].operands if operand in self.nodes)
        read = dict.fromkeys(base for base in map(self.base.__getitem__, operands) if base not in inside)
        flops, number, product = 0, "", ""
        try:
            call = self._call(kernel_and_call(full)[0], tuple(read))
            for node in map(self.nodes.__getitem__, inside):
                if (
                    formula := MATMUL.get(node.operator)
                    or CONVOLUTION.get(node.operator)
                    or ATTENTION.get(node.operator)
                ):
                    done = formula(self._call(node.operator, node.operands))
                    flops, number, product = flops + (done.flops or 0), done.number, node.operator
        except (Unrecorded, ValueError):
            return None
        moved = self._bytes(inside, read)
        if not flops and (product or moved is None):
            return None
        return call, exactly(flops, moved, number) if flops else Work(bytes=moved), product

    def _bytes(self, inside: Mapping[str, None], read: Iterable[str]) -> int | None:
        for name in inside:
            operator = self.nodes[name].operator
            changes = operator.endswith("_") and not operator.endswith("__")
            if self.kernels[name] > 1 or PARTLY.search(operator) or changes:
                return None
        written = [name for name in inside if self.users.get(name, inside.keys()) - inside.keys()]
        sizes = [_size(self.nodes[name]) for name in (*read, *written)]
        return sum(size for size in sizes if size is not None) if written and None not in sizes else None

    def _call(self, operator: str, operands: tuple[str, ...]) -> Call:
        """Raises :class:`Unrecorded` for an operand whose shape is not known."""
        dims: list[list[int]] = []
        types, values = [], []
        for operand in operands:
            tensor = self.nodes.get(operand)
            if tensor is not None and tensor.shape is None:
                raise Unrecorded(operand)
            dims.append(list(tensor.shape or ()) if tensor else [])
            types.append(_TYPES.get(tensor.type, "") if tensor else "Scalar")
            values.append("" if tensor else operand)
        return Call(operator, dims, types, values)


def _size(node: records.GraphNode) -> int | None:
    """The bytes of a result. What is expanded, of stride 0, is stored once."""
    number = _TYPES.get(node.type)
    if node.shape is None or number is None:
        return None
    shape = node.shape
    if node.strides is not None and len(node.strides) == len(shape):
        shape = tuple(1 if step == 0 else size for size, step in zip(shape, node.strides, strict=True))
    return prod(shape) * TYPES[number][1]
