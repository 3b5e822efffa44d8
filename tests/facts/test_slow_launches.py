"""Calls that hand over their work late: by hand, and on real traces where a call is made to take longer."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from augment.core.trace import LAUNCHES, Trace
from augment.diagnosis.host_causes import LONG_CALL_NS
from augment.facts.critical.critical_graph import critical_graph
from augment.facts.critical.critical_path import BoundBy, critical_path
from augment.facts.critical.what_if import saved_ns, without_host_time
from augment.facts.waits.gap_causes import GapCategory, device_categories, device_gaps
from augment.readers import read
from metamorphic import CALLS, GPU_WORK, Document, load, real_trace, save
from metamorphic import Event as Row
from tables import Event, call, kernel, trace_of

US = 1_000
FIRST = [call("cudaLaunchKernel", 0, 5 * US, correlation=1), kernel("a", 4 * US, 50 * US, correlation=1)]  # latency: 4


def launch(begin: int, end: int) -> Event:
    return call("cudaLaunchKernel", begin * US, end * US, correlation=2)


def second(begin: int, **where: int) -> Event:
    return kernel("b", begin * US, (begin + 10) * US, correlation=2, **where)


def without_calls(trace: Trace) -> int:
    """What is saved if no call takes time, µs."""
    rows = trace.events.slices_of(*LAUNCHES)
    start, end = trace.events.ts[rows], trace.events.ts[rows] + trace.events.dur[rows]
    return saved_ns(trace, without_host_time(trace, trace.events.track[rows], start, end)) // US


def test_time_in_which_a_call_holds_its_work_back_is_time_of_the_call() -> None:
    trace = trace_of(*FIRST, launch(10, 900), second(890))
    path = critical_path(trace)
    assert path.dur[path.bound_by == BoundBy.RUNTIME_CALL].sum() // US >= 876
    assert path.dur[path.bound_by == BoundBy.LAUNCH_DELAY].sum() // US <= 4
    assert 835 <= without_calls(trace) <= 840  # the first kernel ends at 50, the second could follow
    assert device_categories(trace, device_gaps(trace)[0]).tolist() == [GapCategory.HOST_WAIT]


def test_the_delay_after_a_call_stays() -> None:
    """Nobody knows what kept the work after the call had returned."""
    trace = trace_of(*FIRST, launch(10, 500), second(890))
    assert without_calls(trace) == 5 + 490  # the delay of 390 stays
    assert device_categories(trace, device_gaps(trace)[0]).tolist() == [GapCategory.HOST_WAIT]  # for most of the gap
    late = trace_of(*FIRST, launch(10, 100), second(890))
    assert device_categories(late, device_gaps(late)[0]).tolist() == [GapCategory.OTHER]


@pytest.mark.parametrize(
    "others",
    [
        [launch(10, 20), second(400)],  # an ordinary call: what kept its work is not known
        [launch(10, 300), second(52)],  # its work followed the work before it
        [launch(10, 300), second(31, stream=8)],  # it handed its work over soon
    ],
    ids=["short", "queued", "at once"],
)
def test_other_launches_count_from_the_start_of_their_call(others: list[Event]) -> None:
    trace = trace_of(*FIRST, *others)
    graph = critical_graph(trace)
    edges = np.flatnonzero(graph.from_row == np.flatnonzero(trace.events.correlation[:] == 2)[0])
    assert (graph.ts[graph.source[edges]] == 10 * US).all()


def test_work_that_waited_for_another_stream_did_not_wait_for_its_call() -> None:
    other = [
        call("cudaLaunchKernel", 6 * US, 9 * US, correlation=3),
        kernel("c", 12 * US, 200 * US, stream=9, correlation=3),
    ]
    trace = trace_of(*FIRST, *other, launch(10, 260), second(203))
    assert without_calls(trace) <= 70


def held_back(document: Document, ns: int) -> Document:
    """The document in which one launch onto an idle device takes ``ns`` longer, and hands its work over as much later.
    All that began later comes later."""
    events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    work = {event["args"]["correlation"]: event for event in events if event.get("cat") in GPU_WORK}
    calls = [event for event in events if event.get("cat") in CALLS and "LaunchKernel" in event["name"]]
    in_order = sorted(work.values(), key=lambda event: event["ts"])
    ended: dict[int, Decimal] = {}
    reached = in_order[0]["ts"]
    for event in in_order:
        ended[event["args"]["correlation"]] = reached
        reached = max(reached, event["ts"] + event["dur"])
    calls = [each for each in calls if (code := each["args"].get("correlation")) in work and ended[code] < each["ts"]]
    chosen = calls[len(calls) // 2]
    moment, more = chosen["ts"], Decimal(ns) / 1000

    def changed(event: Row) -> Row:
        if "ts" not in event or event.get("ph") == "M":
            return event
        if event["ts"] > moment:
            return event | {"ts": event["ts"] + more}
        if event.get("ph") == "X" and (event is chosen or event["ts"] + event["dur"] > moment):
            return event | {"dur": event["dur"] + more}
        return event

    return document | {"traceEvents": [changed(event) for event in document["traceEvents"]]}


@pytest.mark.parametrize(
    "name",
    ["hta_amd_mi250/mi250_minitoy_train_ROCm6_2.json.gz", "pairs_h100_vs_mi300_tracelens/bert_small_h100.json.gz",
     "pairs_h100_vs_mi300_tracelens/nsfw_vit_mi300.json.gz"],
)  # fmt: skip
def test_a_call_that_is_made_longer_saves_as_much_more(tmp_path: Path, name: str) -> None:
    """Metamorphic: the recording is longer by what the call takes longer, so without it as much more is saved."""
    document = load(real_trace(name))
    longer_ns = 40_000_000
    changed = held_back(document, longer_ns)
    saved = []
    for place, each in enumerate((document, changed)):
        trace = read(str(save(each, tmp_path / f"{place}.json")))
        rows = trace.events.slices_of(*LAUNCHES)
        rows = rows[trace.events.dur[rows] >= LONG_CALL_NS]
        start, end = trace.events.ts[rows], trace.events.ts[rows] + trace.events.dur[rows]
        saved.append(saved_ns(trace, without_host_time(trace, trace.events.track[rows], start, end)))
    assert saved[1] - saved[0] == pytest.approx(longer_ns, rel=0.02)
