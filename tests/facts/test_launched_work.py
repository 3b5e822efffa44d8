"""What each operator launched, against its definition, for any set of slices."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from augment.analyses import operator_breakdown
from augment.core.findings import Findings
from augment.core.trace import Category
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.gpu.launched_work import launched_work
from augment.facts.host.call_stacks import call_stacks
from tables import Event, annotation, call, kernel, op, python, trace_of

TIMES = st.tuples(st.integers(0, 12), st.integers(0, 12)).map(lambda ends: (min(ends), max(ends)))
HOST = st.lists(st.tuples(TIMES, st.sampled_from([op, annotation, python])), max_size=8)
CALLS = st.lists(st.tuples(TIMES, st.integers(0, 99), st.integers(1, 2)), max_size=6, unique_by=lambda item: item[1])


@given(HOST, CALLS)
def test_spans_hold_what_lies_within_in_the_order_of_launch(
    host: list[tuple[tuple[int, int], object]], calls: list[tuple[tuple[int, int], int, int]]
) -> None:
    events: list[Event] = [make(f"o{index}", *ends) for index, (ends, make) in enumerate(host)]  # type: ignore[operator]
    for ends, number, pieces in calls:
        events.append(call("cudaLaunchKernel", *ends, correlation=number))
        events += [kernel("k", 20 + piece, 21 + piece, correlation=number) for piece in range(pieces)]
    trace = trace_of(*events, op("last", 30, 31))
    stacks, launched, table = call_stacks(trace), launched_work(trace), trace.events
    assert len(launched.place) == sum(pieces for _, _, pieces in calls)
    launch = gpu_work(trace).launch[launched.listed]
    part: dict[str, tuple[int, int]] = {}
    for place, row in enumerate(stacks.row.tolist()):
        if table.category[row] == Category.CUDA_RUNTIME:
            continue
        (start,), (stop,) = launched.spans(stacks.place_of[[row]].astype(int))
        within = [
            each
            for each in set(launch.tolist())
            if stacks.place_of[each] > place
            and table.ts[row] <= table.ts[each] < table.end[row]
            and table.end[each] <= table.end[row]
        ]
        pieces = {number: count for _, number, count in calls}
        result = launch[start:stop].tolist()
        assert sorted(set(result)) == sorted(within)
        assert len(result) == sum(pieces[int(table.correlation[each])] for each in within)
        assert [table.ts[each] for each in result] == sorted(table.ts[each] for each in result)
        part[trace.names_of(stacks.row[[place]])[0]] = int(start), int(stop)
    found_rows = operator_breakdown.analyze(trace)
    assert isinstance(found_rows, Findings)
    for each in found_rows.rows:
        if each.operator is not None:
            assert (each.gpu_ns or 0) == part[each.operator][1] - part[each.operator][0]  # each piece takes 1 ns
    assert sum(row.self_gpu_ns or 0 for row in found_rows.rows) == len(launched.place)


def test_launches_of_one_moment_stand_by_correlation() -> None:
    trace = trace_of(
        op("aten::addmm", 100, 120),
        call("cudaLaunchKernel", 105, 113, correlation=12),
        call("cudaMemsetAsync", 105, 105, correlation=11),
        kernel("memset", 120, 122, correlation=11),
        kernel("sgemm", 123, 132, correlation=12),
    )
    assert trace.names_of(gpu_work(trace).row[launched_work(trace).place]) == ["memset", "sgemm"]
