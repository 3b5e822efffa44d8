"""Which operators, calls and kernels are on the critical path, and how much faster would a step be without them?

For each step, the names with the most time on its critical path (see `critical_path`). ``time_ns`` is an operator's own
time: the operators that it calls have rows of their own, and so have its kernels.

``saved_ns`` answers: if everything of this name had taken no time in this step, how much shorter would the recording
be? The analysis sets those durations to 0 in the graph and computes the longest path again. What ran in parallel to the
old path then sets the bound, so ``saved_ns`` is at most ``time_ns``, and often far less. Delays keep their length. It
is an estimate, because a trace does not record all dependencies.

``slack_ns`` is about occurrences *off* the path: how much longer the occurrence with the least slack could have taken
without making the recording longer.

**What to do**: begin with the greatest ``saved_ns``, not with the greatest time.

Options:
    name_count: the number of names per step that have a row.

HTA has no such table; its users simulate changes on a copy of its graph.
"""

from __future__ import annotations

from typing import Annotated

from augment.core import LAUNCHES, Findings, OfRank, Skipped, Trace, column
from augment.facts.critical.longest_path import KINDS, windows
from augment.facts.critical.what_if import longest_names
from augment.facts.gpu.lines_of_work import lines_of_names
from augment.facts.steps.step_windows import steps

NAME = "critical_path_operators"
NEEDS = (LAUNCHES,)


class Row(OfRank, frozen=True):
    """One name in one step."""

    step: Annotated[int | None, column("The step's number; null if the recording has no steps.")]
    name: Annotated[str, column("The name of the operator, call or kernel.")]
    bound_by: Annotated[str, column("What its time on the path consists of, as in critical_path.")]
    count: Annotated[int, column("Number of its occurrences on the path.", "count")]
    time_ns: Annotated[int, column("Own time of these occurrences on the critical path.", "ns")]
    time_ratio: Annotated[float, column("Share of the step's duration.", "ratio")]
    total_ns: Annotated[int, column("Own time of all occurrences in the step, on the path or not.", "ns")]
    slack_ns: Annotated[int | None, column("Least slack of the occurrences off the path; null if all are on it.", "ns")]
    saved_ns: Annotated[int, column("How much shorter the recording would be if these occurrences took no time.", "ns")]
    source: Annotated[
        str | None, column("The line that most GPU work of this name, or launched by it, comes from; null if unknown.")
    ]


def analyze(trace: Trace, *, name_count: int = 10) -> Findings | Skipped:
    """Rank the names on the critical path of each step."""
    longest = longest_names(trace, name_count)
    if not len(longest.name):
        return Skipped("nothing on the critical path has a name")
    start, end = windows(trace)
    lengths = (end - start).tolist()
    numbers = steps(trace).number.tolist() or [None]
    lines = lines_of_names(trace)
    columns = (
        longest.window,
        longest.name,
        longest.bound_by,
        longest.count,
        longest.ns,
        longest.total_ns,
        longest.slack_ns,
        longest.saved_ns,
    )
    return Findings(
        [
            Row(
                rank=trace.rank,
                step=numbers[window],
                name=trace.strings[name],
                bound_by=KINDS[kind],
                count=count,
                time_ns=ns,
                time_ratio=ns / lengths[window],
                total_ns=total,
                slack_ns=None if slack < 0 else slack,
                saved_ns=saved,
                source=lines.get(name),
            )
            for window, name, kind, count, ns, total, slack, saved in zip(
                *(column.tolist() for column in columns), strict=True
            )
        ]
    )
