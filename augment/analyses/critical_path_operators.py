"""Which operators, calls and kernels are on the critical path, and what would a step gain without them?

Of each step, the names that hold most time on its critical path (see `critical_path`). ``time_ns`` is an operator's
own: what it calls has rows of its own, and its kernels have theirs.

``saved_ns`` answers: if all that has this name had taken no time in this step, how much shorter would the recording be?
It is found by taking those times out of the graph and looking for the longest path anew: what ran beside the old one
sets the bound then, so it is at most ``time_ns``, and often far less. Delays are kept as they are. It is an estimate:
a trace does not tell all that had to wait.

``slack_ns`` speaks of what is *not* on the path: how much longer the occurrence nearest to being critical could have
taken without making the recording longer.

Options:
    name_count: how many names of each step have a row.

HTA has no such table; its users simulate changes on a copy of its graph.
"""

from __future__ import annotations

from dataclasses import dataclass

from augment.derived.critical.critical_path import KINDS
from augment.derived.critical.what_if import longest_names, windows
from augment.derived.steps.steps import steps
from augment.findings import Findings, Skipped, column
from augment.trace import LAUNCHES, Trace

NAME = "critical_path_operators"
NEEDS = (LAUNCHES,)


@dataclass(frozen=True, slots=True)
class Row:
    """One name in one step."""

    rank: int | None = column("The rank of the process, if known.")
    step: int | None = column("The step's number; null: the whole recording, which has no steps.")
    name: str = column("The name of the operator, call or kernel.")
    bound_by: str = column("What its time on the path consists of, as in critical_path.")
    count: int = column("How many of that name are on the path.", "count")
    time_ns: int = column("Their own time on the critical path.", "ns")
    time_ratio: float = column("Share of the step's duration.", "ratio")
    total_ns: int = column("Own time of all of that name in the step, on the path or not.", "ns")
    slack_ns: int | None = column("Least slack of those off the path; null where all are on it.", "ns")
    saved_ns: int = column("How much shorter the recording would be had all of that name taken no time here.", "ns")


ROW = Row


def analyze(trace: Trace, *, name_count: int = 10) -> Findings | Skipped:
    """Rank what is on the critical path of each step."""
    found = longest_names(trace, name_count)
    if not len(found.name):
        return Skipped("nothing that has a name is on the critical path")
    start, end = windows(trace)
    lengths = (end - start).tolist()
    numbers = steps(trace).number.tolist() or [None]
    columns = (found.window, found.name, found.bound_by, found.count, found.ns, found.total_ns, found.slack_ns,
               found.saved_ns)  # fmt: skip
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
            )
            for window, name, kind, count, ns, total, slack, saved in zip(
                *(column.tolist() for column in columns), strict=True
            )
        ]
    )
