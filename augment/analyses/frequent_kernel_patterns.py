"""Which sequences of kernels do operators launch again and again?

A pattern is an operator and the names of all work that it launched, directly or through what it calls on its thread.
The names are in the order of the launches; the work of a CUDA graph is in the order in which it began. Patterns of many
small kernels are candidates for fusion, for CUDA graphs or for ``torch.compile``.

With ``operator``, the analysis takes every slice of the host whose name contains it and that lies in no other such
slice: operators, annotations, Python functions. Without it, the analysis takes all operators that occur more than once.
Where nested operators launch exactly the same work, only the innermost counts. The most frequent patterns come first.

The work of these patterns is marked on a track ``Frequent kernel patterns stream N`` for each stream. A slice named
after the operator covers the work of each occurrence; its ``pattern`` is the pattern's place among the rows. Other work
in between splits it into several slices. Work that belongs to several patterns is marked as the most frequent one's.

**What to do**: patterns of short kernels with a high count are candidates for fusion: ``torch.compile``, a fused
operator, or a kernel of your own.

Options:
    operator: text that the name must contain; empty for every operator.
    min_kernel_count: the least number of pieces of work that an operator must have launched.
    top_pattern_count: the greatest number of patterns to report.
    at_minimum_depth: whether to select slices as HTA does.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from msgspec import Struct

from augment import arrays, facts
from augment.core import GPU_WORK, LAUNCHES, Category, Diagnostic, Findings, Skipped, SliceTrack, Texts, Trace, column

NAME = "frequent_kernel_patterns"
HOST = (Category.CPU_OP, Category.USER_ANNOTATION, Category.PYTHON_FUNCTION)
NEEDS = (GPU_WORK, LAUNCHES, HOST)
DRAWN_AT_MOST = 10_000  #: occurrences


class Row(Struct, frozen=True):
    """One pattern."""

    rank: Annotated[int | None, column("The rank of the process, if known.")]
    operator: Annotated[str, column("The name of the operator.")]
    pattern: Annotated[
        list[str], column("The names of the kernels, copies and memsets, in the order of their launches.")
    ]
    count: Annotated[int, column("Number of occurrences.", "count")]
    kernel_ns: Annotated[int, column("Sum of the durations of its kernels, copies and memsets.", "ns")]
    cpu_ns: Annotated[int, column("Sum of the durations of these calls of the operator.", "ns")]


class Occurrences(Struct, frozen=True):
    """Equal-length columns: ``operator`` (ascending places in the call stacks) launched the work ``[start, stop)`` of
    ``launched_work(trace).listed``."""

    operator: arrays.StackIndexes
    start: arrays.Int64s
    stop: arrays.Int64s


def analyze(
    trace: Trace,
    *,
    operator: str = "",
    min_kernel_count: int = 3,
    top_pattern_count: int = 10,
    at_minimum_depth: bool = False,
) -> Findings | Skipped:
    """Find the patterns, count and mark them."""
    if not len(facts.gpu.launched(trace).place):
        return Skipped("no GPU work whose correlation names a launch")
    if operator:  # the outermost ones with this text in their names, or those of least depth
        chosen = facts.host.places_of(trace, *HOST).where(lambda name: operator in name)
        if len(chosen) and at_minimum_depth:
            depth = facts.host.stacks(trace).depth[chosen]
            chosen = chosen[depth == depth.min()]
        elif len(chosen):
            chosen = chosen[facts.host.directly_around(trace, chosen) < 0]
    else:
        chosen = facts.host.stacks(trace).where(trace.events.category[facts.host.stacks(trace).row] == Category.CPU_OP)
    occurrences = _occurrences(trace, chosen, min_kernel_count, distinct=not operator)
    if not len(occurrences.operator):
        what = f"slice of the host with {operator!r} in its name" if operator else "operator"
        return Skipped(f"no {what} launched {min_kernel_count} or more pieces of GPU work")
    # the most frequent patterns, and the places of their occurrences
    work, events = facts.gpu.work(trace), trace.events
    place = facts.gpu.launched(trace).listed
    row = facts.host.stacks(trace).row[occurrences.operator]
    name = events.name[work.row[place]]
    keys, code = arrays.combinations(
        events.name[row], arrays.sequence_hashes(name, occurrences.start, occurrences.stop)
    )
    count, groups = len(keys[0]), arrays.grouped(code, len(keys[0]))
    bounds = arrays.group_bounds(code, count)
    until = np.concatenate((np.zeros(1, np.int64), np.cumsum((work.end - work.ts)[place])))
    kernel_ns = np.add.reduceat((until[occurrences.stop] - until[occurrences.start])[groups], bounds[:-1])
    cpu_ns = np.add.reduceat(events.dur[row][groups], bounds[:-1])
    ranked = np.lexsort((groups[bounds[:-1]], -kernel_ns, -np.diff(bounds)))
    ranked = ranked[np.diff(bounds)[ranked] >= (1 if operator else 2)][:top_pattern_count]
    rows, patterns = [], []
    for index in ranked.tolist():
        places = groups[bounds[index] : bounds[index + 1]]
        names = name[occurrences.start[places[0]] : occurrences.stop[places[0]]].tolist()
        pattern = [trace.strings[code] for code in names]
        around = trace.strings[int(keys[0][index])]
        rows.append(Row(trace.rank, around, pattern, len(places), int(kernel_ns[index]), int(cpu_ns[index])))
        patterns.append(places)
    tracks = _tracks(trace, occurrences, rows, patterns)
    undrawn = max(0, sum(map(len, patterns)) - DRAWN_AT_MOST)
    message = f"pattern occurrences beyond {DRAWN_AT_MOST:,} (not drawn)"
    return Findings(rows, tracks, [Diagnostic("pattern_not_drawn", undrawn, message)] if undrawn else [])


def _occurrences(trace: Trace, operator: arrays.StackIndexes, least: int, *, distinct: bool) -> Occurrences:
    """The operators that launched at least ``least`` pieces of work; of several with the same work, the innermost."""
    start, stop = facts.gpu.launched(trace).spans(operator)
    chosen = stop - start >= max(least, 1)
    operator, start, stop = operator[chosen], start[chosen], stop[chosen]
    if distinct:
        order = np.lexsort((stop, start))  # stable: of operators with the same work, the innermost is the last
        last = np.append((start[order][1:] != start[order][:-1]) | (stop[order][1:] != stop[order][:-1]), True)
        innermost = np.sort(order[last[: len(order)]])
        operator, start, stop = operator[innermost], start[innermost], stop[innermost]
    return Occurrences(operator, start, stop)


def _tracks(trace: Trace, occurrences: Occurrences, rows: list[Row], patterns: list[arrays.Int64s]) -> list[SliceTrack]:
    """The marks of each stream. Work of several patterns is marked as that of the first."""
    if not rows:
        return []
    work = facts.gpu.work(trace)
    drawn = np.concatenate(patterns)[:DRAWN_AT_MOST]
    pattern = np.repeat(np.arange(len(rows)), [len(pattern) for pattern in patterns])[:DRAWN_AT_MOST]
    whose, index = arrays.expand(occurrences.start[drawn], occurrences.stop[drawn])
    mark = np.full(len(work), -1, np.int64)
    mark[facts.gpu.launched(trace).listed[index[::-1]]] = whose[::-1]  # of several assignments, the last one stays
    tracks = []
    for stream in work.streams:
        marks = mark[stream.places]
        start = arrays.run_starts(marks)
        marked = marks[start] >= 0
        if not marked.any():
            continue
        end = np.maximum.reduceat(work.end[stream.places], start)[marked]
        ts = work.ts[stream.places][start[marked]]
        dur = np.maximum(np.minimum(end, np.append(ts[1:], end[-1])) - ts, 0)
        whose_pattern = pattern[marks[start[marked]]]
        figures = {
            "pattern": np.arange(1, len(rows) + 1),
            "kernel_count": np.array([len(row.pattern) for row in rows], np.int64),
            "occurrence_count": np.array([row.count for row in rows], np.int64),
        }
        tracks.append(
            SliceTrack(
                analysis=NAME,
                name=f"Frequent kernel patterns stream {stream.stream}",
                under=stream.track,
                ts=ts,
                dur=dur,
                names=Texts(whose_pattern.astype(np.int32), [row.operator for row in rows]),
                args={name: values[whose_pattern] for name, values in figures.items()},
                description="work of one of the sequences that operators launch most often",
            )
        )
    return tracks
