"""Does compiled code end graphs where Python must go on?

At a graph break ``torch.compile`` returns to Python, which launches the next graph: fewer operators are fused, and the
device may wait. Breaks are known from the log of the compiler (``--torch-trace``), joined with the compiled regions of
steady steps. What a break costs cannot be told from a recording, so nothing is predicted.

**What to do**: read the reason in the log; move printing, ``.item()`` and branches on values of tensors out of compiled
functions, or use ``fullgraph=True`` to find them while developing.
"""

from __future__ import annotations

import numpy as np

from augment import facts
from augment.core import Trace, records, source_code, text
from augment.diagnosis import judging, rule

NAME = "graph_breaks"
_MOST_NAMED = 3


class GraphBreaks(rule.Seen, frozen=True):
    """Graph breaks of compiled regions that steady steps run."""

    break_count: float
    reasons: list[str]
    ADVICE = "Move what the log names out of compiled functions; what a break costs cannot be told from a recording"

    def title(self, words: text.Words) -> str:
        return f"Compiled code breaks its graph {words.often(self.break_count, 'time')}"

    def evidence(self, words: text.Words) -> list[str]:
        return [text.short(reason) for reason in self.reasons[:_MOST_NAMED]]


def check(trace: Trace) -> rule.Answer:
    """Count the breaks of the regions that steady steps run."""
    logged = facts.host.logged_compilations(trace)
    if logged is None:
        return rule.NotApplicable("no log of the compiler is given")
    if isinstance(logged, str):
        return rule.NoData(logged, "name the log of this trace with --torch-trace")
    broken = {each.compile_id: each.breaks for each in logged.compilations if each.breaks}
    if not broken:
        return rule.NotApplicable("the compiler's log has no graph break")
    called = {number: judging.rows_in_steps(trace, rows) for number, rows in facts.host.compiled_regions(trace).items()}
    called = {number: rows for number, rows in called.items() if number in broken and len(rows)}
    if not called:
        return rule.Fine("no steady step runs compiled code with a graph break")
    # a call ends at one break: what comes after it is compiled as a frame of its own
    count = sum(map(len, called.values())) / max(judging.measure(trace).count, 1)
    reasons = dict.fromkeys(_said(each) for number in called for each in broken[number])
    spans = rule.Spans.of(trace, np.sort(np.concatenate(list(called.values()))))
    return rule.Found(GraphBreaks(count, list(reasons)), spans, "high", severity="info")


def _said(broken: records.GraphBreak) -> str:
    return f"{source_code.label(broken.line)}: {broken.reason}" if broken.line else broken.reason


def sentences_compiled(trace: Trace) -> list[str]:
    """What a log of the compiler says without a trace: what was compiled, again and why, and where graphs break; empty
    without a log."""
    logged = facts.host.logged_compilations(trace)
    if logged is None or isinstance(logged, str):
        return []
    every = logged.compilations
    again, breaks = [each for each in every if each.guard], [broken for each in every for broken in each.breaks]
    if not every:
        return ["The compiler's log has no compilation."]
    taken = text.time(sum(each.compile_ns for each in every))
    count, ahead = (
        text.counted(len(every), "compilation"),
        sum(each.compile_id == records.AHEAD_OF_TIME for each in every),
    )
    way = f"{'' if ahead == len(every) else f', {ahead} of them'} ahead of time (AOTInductor)" if ahead else ""
    said = [f"The compiler's log has {count} in {taken}{way}"]
    if again:
        guards = [f"`{each.function or each.compile_id}` for `{each.guard}`" for each in again]
        named = text.listed([*dict.fromkeys(guards)][:_MOST_NAMED])
        said.append(f"{text.counted(len(again), 'compilation')} again, as a guard failed: {named}")
    if breaks:
        named = "; ".join([*dict.fromkeys(map(_said, breaks))][:_MOST_NAMED])
        said.append(f"{text.counted(len(breaks), 'graph break')}: {named}")
    if failed := [each.failure for each in every if each.failure]:
        said.append(f"{text.counted(len(failed), 'compilation')} failed: {failed[0]}")
    return [f"{sentence.rstrip('.')}." for sentence in said]
