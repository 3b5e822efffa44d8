"""Rules on what the compiler's log tells, proven on made runs, on real ones by plain loops, and by what may not change.

The counts of the checker come from the events themselves; it has no code of the rules.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from augment import Trace, read
from augment.core.records import Compilation, CompileLog, CompileLogs, CompileSpan, GraphBreak
from augment.core.source_code import CodeLine
from augment.diagnosis import judging, rule
from augment.diagnosis.rules import graph_breaks, recompilation
from metamorphic import load, real_trace
from tables import Event, annotation, call, kernel, op, trace_of

MS = 1_000_000
IDS = ("0/0", "0/1", "1/0", "2/0")


class Made:
    """Steps of 10 ms, each with calls of regions of two threads, and a log; what the rules should say of them."""

    def __init__(self, seed: int, scale: int = 1, shift: int = 1_700_000_000 * 1000 * MS) -> None:
        chance = random.Random(seed)
        self.steps = chance.randint(3, 6)
        broken = set(chance.sample(IDS, chance.randint(0, 2)))
        events: list[Event] = []
        self.breaks = 0
        for step in range(self.steps):
            at = (5 + 10 * step) * MS
            events.append(annotation(f"ProfilerStep#{step}", at, at + 10 * MS))
            events.append(op("aten::add", at + 10 * MS - 2000, at + 10 * MS - 1000))
            for place in range(chance.randint(1, 4)):
                number, start = chance.choice(IDS), at + (2 * place + 1) * MS
                thread, correlation = 1 + place % 2, 10 * step + place + 1
                events += [
                    op(f"Torch-Compiled Region: {number}", start, start + MS, thread=thread),
                    call("cudaLaunchKernel", start + 100, start + 200, thread=thread, correlation=correlation),
                    kernel("triton_poi_0", start + 1000, start + 2 * MS, correlation=correlation),
                ]
                self.breaks += number in broken
        self.guards = []
        compilations = []
        for number in IDS:
            begin = chance.randrange(0, (15 + 10 * self.steps) * MS)
            guard = chance.choice(["", f"size of {number}"])
            if guard and 5 * MS <= begin < (5 + 10 * self.steps) * MS:
                self.guards.append(f"guard `{guard}` failed (m.py:7)")
            span = CompileSpan("dynamo", begin * scale + shift, (begin + MS // 10) * scale + shift)
            breaks = [GraphBreak("a call of print", CodeLine("m.py", 3))] if number in broken else []
            line = CodeLine("m.py", 7, "forward")
            compilations.append(Compilation(number, line=line, guard=guard, spans=[span], breaks=breaks))
        events = [replace(each, ts=each.ts * scale + shift, end=each.end * scale + shift) for each in events]
        chance.shuffle(compilations)
        self.trace = trace_of(*events, beside=[CompileLogs((CompileLog("a.log", 0, compilations),))])


def said(trace: Trace) -> tuple[Any, ...]:
    """The breaks of a step and the guards, as the rules say them; None where they find nothing."""
    broken, again = graph_breaks.check(trace), recompilation.check(trace)
    return (
        broken.seen.break_count if isinstance(broken, rule.Found) else None,  # type: ignore[attr-defined]
        sorted(again.seen.guards) if isinstance(again, rule.Found) else None,  # type: ignore[attr-defined]
    )


@pytest.mark.parametrize("seed", range(30))
def test_made_runs(seed: int) -> None:
    made = Made(seed)
    assert judging.measure(made.trace).count == made.steps
    count, guards = said(made.trace)
    assert count == (pytest.approx(made.breaks / made.steps) if made.breaks else None)
    assert (guards or []) == sorted(made.guards)


@pytest.mark.parametrize("seed", range(10))
def test_later_or_slower_it_says_the_same(seed: int) -> None:
    assert (
        said(Made(seed, shift=1_700_000_077 * 1000 * MS).trace)
        == said(Made(seed).trace)
        == said(Made(seed, scale=3).trace)
    )


REAL = ("h100_8rank_modded_nanogpt/rank1.json.gz", "hta_triton/triton_example.json.gz")


@pytest.mark.parametrize("name", REAL)
def test_real_runs_by_plain_loops(name: str) -> None:
    """Each region that a real run has is said to have a break, one after the other."""
    path = real_trace(name)
    slices = [each for each in load(path)["traceEvents"] if each.get("ph") == "X"]
    trace = read(str(path))
    steady = {f"ProfilerStep#{number}" for number in judging.measure(trace).windows.number.tolist()}
    steps = [each for each in slices if each["name"] in steady and each["cat"] == "user_annotation"]
    windows = [(each["ts"], each["ts"] + each["dur"]) for each in steps]
    prefix = "Torch-Compiled Region: "
    calls = [each for each in slices if each["name"].startswith(prefix)]
    ids = {each["name"].removeprefix(prefix).split(" ")[0] for each in calls}
    for number in sorted(ids):
        compilation = Compilation(number, breaks=[GraphBreak("a reason")])
        logged = CompileLogs((CompileLog("a.log", None, [compilation]),))
        answer = graph_breaks.check(replace(trace, context=trace.context.fresh(logged)))
        inside = sum(
            begin <= each["ts"] < end
            for each in calls
            if each["name"].removeprefix(prefix).split(" ")[0] == number
            for begin, end in windows
        )
        count = answer.seen.break_count if isinstance(answer, rule.Found) else 0  # type: ignore[attr-defined]
        assert count == pytest.approx(inside / len(windows))
    other = CompileLogs((CompileLog("a.log", None, [Compilation("99/9", breaks=[GraphBreak("x")])]),))
    assert not isinstance(graph_breaks.check(replace(trace, context=trace.context.fresh(other))), rule.Found)
