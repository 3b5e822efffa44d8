"""Which line of the user's program each piece of GPU work comes from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct

from augment.arrays import NO_INDEX, EventRows, Int32s, Int64s, Places, StackIndex, combinations
from augment.core import Category, Trace, derived, records
from augment.core.source_code import INSTALLED, USERS, CodeLine, function_line, labels, lines_of
from augment.facts import host, names
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.gpu.launched_work import work_operators
from augment.facts.host.compile_logs import REGION, regions
from augment.facts.source.event_args import arg_columns

_HANDLE = re.compile(r":(\d{1,9})$")  #: the number of a kernel's call in its graph
ANY = "any"  #: stands for the ids of all graphs


Site = TypeVar("Site")


class SourceLines(Struct, frozen=True):
    """Where GPU work comes from. A site is a line, or the lines that a compiler fused into one kernel."""

    site: Int32s  #: of each piece of ``gpu_work`` an index of ``sites``, -1 where unknown
    sites: Sequence[Sequence[CodeLine]]  #: of each its lines
    labels: Sequence[str]  #: of each site: ``model.py:217``

    def __bool__(self) -> bool:
        return bool(self.sites)


@derived(until="breakdowns")
def source_lines(trace: Trace) -> SourceLines:
    """Which line of the user's program each piece of work comes from.

    Of compiled kernels those that the compiler wrote beside them, else the innermost Python function of the user's own
    around the launch. What backward launches comes from where its forward operator was called.
    """
    site = np.full(len(gpu_work(trace)), -1, np.int32)
    numbers: dict[tuple[CodeLine, ...], int] = {}
    _by_stacks(trace, site, numbers)
    _by_provenance(trace, site, numbers)
    _by_functions(trace, site, numbers)
    return SourceLines(site, list(numbers), labels(list(numbers)))


def _by_stacks(trace: Trace, site: Int32s, numbers: dict[tuple[CodeLine, ...], int]) -> None:
    """The stacks that Inductor's handler of traces writes as an arg of compiled kernels."""
    rows, stacks = arg_columns(trace).texts("stack")
    if not len(rows):
        return
    of_code = np.full(len(stacks.values), -1, np.int32)
    for code, text in enumerate(stacks.values):
        try:
            known = json.loads(text)
        except (ValueError, RecursionError):
            known = text
        if lines := lines_of(known if isinstance(known, list) else [text]):
            of_code[code] = numbers.setdefault(lines, len(numbers))
    of_row = np.full(len(trace.events), -1, np.int32)
    of_row[rows] = of_code[stacks.codes]
    site[:] = of_row[gpu_work(trace).row]


def _by_provenance(trace: Trace, site: Int32s, numbers: dict[tuple[CodeLine, ...], int]) -> None:
    """What Inductor wrote of its kernels beside the trace, in its folders or in the compiler's log.

    A graph is told by the compiled region around the launch. Graphs whose id is not known count in any region, and
    outside regions (in backward) all that have such a kernel do. Of a kernel with several call sites the n-th launch in
    a call of the region is the n-th site, if there are as many; else it comes from the lines of all.
    """
    beside, logs = trace.context.attached(records.KernelOrigins), trace.context.attached(records.CompileLogs)
    graphs = [*beside.graphs] if beside else []
    graphs += [graph for log in (logs.logs if logs else ()) for graph in log.graphs]
    if not graphs:
        return
    known: dict[tuple[str, str], dict[int, tuple[CodeLine, ...]]] = {}
    for graph in graphs:
        for full, lines in graph.lines.items():
            kernel, call = kernel_and_call(full)
            for key in ((graph.compile_id, kernel), (ANY, kernel)):
                sites = known.setdefault(key, {})
                sites[call] = tuple(sorted({*sites.get(call, ()), *lines}))
    for place, of_kernel in sites_of_launches(trace, np.flatnonzero(site < 0), known):
        lines = tuple(sorted({line for lines in of_kernel for line in lines}))
        site[place] = numbers.setdefault(lines, len(numbers))


def kernel_and_call(full: str) -> tuple[str, int]:
    """The name of a compiled kernel, and the number of its call in its graph, 0 if none is in ``full``."""
    handle = _HANDLE.search(full)
    return (full[: handle.start()], int(handle[1])) if handle else (full, 0)


def sites_of_launches(
    trace: Trace, places: Places, known: Mapping[tuple[str, str], Mapping[Any, Site]]
) -> Iterator[tuple[int, list[Site]]]:
    """Each of ``places`` of GPU work that a kernel of compiled graphs ran at, and its call site; all sites of the
    kernel where it is not known which.

    ``known`` are the sites by the graph's compile id (:data:`ANY`: any, or empty) and the kernel's name, by the number
    of the call.
    """
    work, events = gpu_work(trace), trace.events
    calls = {number: rows for number, rows in regions(trace).items() if number}
    region_of_row = {row: number for number, rows in calls.items() for row in rows.tolist()}
    asked = places[work.launch[places] != NO_INDEX]
    asked = asked[np.argsort(events.ts[work.launch[asked]], kind="stable")]
    around = host.innermost(
        trace, work.launch[asked], (Category.CPU_OP, Category.USER_ANNOTATION), names.starting(trace, REGION)
    )
    operator = work_operators(trace)[asked]
    kernels = trace.names_of(work.row[asked])
    operators = [trace.strings[events.name[row]] if row >= 0 else "" for row in operator.tolist()]
    met: dict[tuple[int, str], list[int]] = {}
    for place, region, name, by in zip(asked.tolist(), around.tolist(), kernels, operators, strict=True):
        number = region_of_row.get(region, ANY)
        for wanted in (name, by.replace("aten::", "extern_kernels.") if region >= 0 else name):
            if (number, wanted) in known or ("", wanted) in known:
                met.setdefault((region, wanted), []).append(place)
                break
    for (region, wanted), of_region in met.items():
        sites_of_kernel = known.get((region_of_row.get(region, ANY), wanted)) or known["", wanted]
        in_turn = [each for _, each in sorted(sites_of_kernel.items(), key=itemgetter(0))]
        alike = region >= 0 and len(in_turn) == len(of_region)
        for turn, place in enumerate(of_region):
            yield place, [in_turn[turn]] if alike else in_turn


def _by_functions(trace: Trace, site: Int32s, numbers: dict[tuple[CodeLine, ...], int]) -> None:
    """Python functions as ``with_stack=True`` records them, where no line is known yet."""
    launch = gpu_work(trace).launch
    if not len(trace.events.slices_of(Category.PYTHON_FUNCTION)):
        return
    links, stacks = host.backward(trace), host.stacks(trace)
    asked = np.flatnonzero((site < 0) & (launch != NO_INDEX))
    for least in (USERS, INSTALLED):
        # the innermost function of such an owner around each, else around the forward operator of its backward one
        mask, rows = host.owners(trace) == least, launch[asked]
        frame = host.innermost(trace, rows, (Category.PYTHON_FUNCTION,), mask)
        rest = np.flatnonzero(frame < 0)
        if len(links) and len(rest):
            target = np.sort(stacks.place_of[links.backward]).astype(StackIndex)
            which = host.enclosing(trace, target)[stacks.place_of[rows[rest]]]
            backward = np.where(which >= 0, stacks.row[target[which]], NO_INDEX)
            frame[rest] = host.innermost(trace, links.forward_of(backward), (Category.PYTHON_FUNCTION,), mask)
        known, code = np.unique(trace.events.name[frame[frame >= 0]], return_inverse=True)
        lines = [function_line(trace.strings[name]) for name in known.tolist()]
        number = np.array([numbers.setdefault((line,), len(numbers)) for line in lines if line], np.int32)
        site[asked[frame >= 0]] = number[code]
        asked = asked[frame < 0]


def lines_of_rows(trace: Trace, rows: EventRows) -> Int32s:
    """The site of each of ``rows`` (of the event table, or -1) that is GPU work, or a call that launched some; -1 where
    none is known."""
    work, source = gpu_work(trace), source_lines(trace)
    site = np.full(len(trace.events) + 1, -1, np.int32)  # the last entry stands for no row
    if source:
        site[work.launch] = np.where(work.launch != NO_INDEX, source.site, -1)
        site[work.row] = source.site
    return site[rows]


@derived(until="breakdowns")
def lines_of_names(trace: Trace) -> dict[int, str]:
    """By the number of a name the line that most GPU work of that name, or of an operator of it, comes from."""
    known: dict[int, str] = {}
    if source_lines(trace):
        operators = work_operators(trace)
        of_operators = np.where(operators >= 0, trace.events.name[operators], -1)
        for code in (of_operators, trace.events.name[gpu_work(trace).row].astype(np.int64)):
            lines = longest_lines(trace, code, len(trace.strings))
            known |= {name: line for name, line in enumerate(lines) if line}
    return known


def longest_lines(trace: Trace, code: Int64s, count: int) -> list[str | None]:
    """The label with the most time among the pieces of work of each ``code`` (below ``count``, of each place of
    ``gpu_work``; -1: of none); None where no line is known."""
    work, source = gpu_work(trace), source_lines(trace)
    answer: list[str | None] = [None] * count
    places = np.flatnonzero((source.site >= 0) & (code >= 0)) if source else np.empty(0, np.int64)
    if not len(places):
        return answer
    keys, part = combinations(code[places], source.site[places])
    ns = np.bincount(part, (work.end - work.ts)[places].clip(min=0), len(keys[0]))
    for place in np.lexsort((-keys[1], ns, keys[0])).tolist():  # of each code, the longest comes last
        answer[int(keys[0][place])] = source.labels[int(keys[1][place])]
    return answer
