"""Real and simulated pairs: the parts add up, and each side finds its partner."""

from __future__ import annotations

import random
from collections import Counter
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import augment
from augment.arrays.types import NO_INDEX
from augment.compare import Diff, alignment, diff
from augment.compare.alignment import align, common
from augment.compare.calls import Names, Paths, settled_name, short_name
from augment.compare.waterfall import BEFORE
from augment.core.trace import Trace
from augment.errors import InputError, UsageError
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.gpu.launched_work import before_recording
from diffs import PAIRS, adds_up, partners_are_partners, rows
from tables import Event, annotation, call, kernel, launched_kernel, op, trace_of


@pytest.mark.parametrize("pair", PAIRS)
def test_real_pairs(pair: str, shared_traces: Path) -> None:
    control, test = (augment.read(str(shared_traces / name)) for name in PAIRS[pair])
    result = diff(control, test)
    adds_up(result)
    partners_are_partners(result)


def test_a_trace_beside_itself(shared_traces: Path) -> None:
    trace = augment.read(str(shared_traces / PAIRS["HTA's"][0]))
    result = diff(trace, trace)
    adds_up(result)
    for row in rows(result, "diff_figures"):
        assert row.delta == 0
        assert row.verdict == "within_noise"
    assert {row.delta_ns for row in rows(result, "diff_waterfall")} == {0}
    assert {row.change for row in rows(result, "diff_names")} == {"unchanged"}
    (pair,) = result.pairs
    inside = pair.control.calls.step >= 0
    assert (pair.alignment.call_of_control[inside] == np.flatnonzero(inside)).all()


def layers(inserted: int | None, gemm: int = 50) -> list:
    """Four layers of two operators with a kernel each; one more operator before the layer ``inserted``."""
    events, at = [annotation("ProfilerStep#3", 0, 1000)], 10
    for layer in range(4):
        for name, ns in [("aten::extra", 20)] * (layer == inserted) + [("aten::mm", gemm), ("aten::add", 10)]:
            events += [op(name, at, at + 40)]
            events += [*launched_kernel(f"{name}_kernel", (at + 5, at + 15), (at + 30, at + 30 + ns), correlation=at)]
            at += 100
    return events


def test_one_operator_more_shifts_nothing() -> None:
    result = diff(trace_of(*layers(None)), trace_of(*layers(2)))
    (pair,) = result.pairs
    assert (pair.alignment.call_of_control != NO_INDEX).all()
    assert pair.alignment.call_of_control.tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
    assert (pair.alignment.work_of_control != NO_INDEX).all()
    added = [row for row in rows(result, "diff_call_paths") if row.change == "added"]
    assert [(row.path, row.test_count, row.test_gpu_ns) for row in added] == [("aten::extra", 1, 20)]
    adds_up(result)


def test_a_renamed_kernel_is_compared_as_its_operators_cost() -> None:
    events = [e if e.name != "aten::mm_kernel" else kernel("other_gemm", e.ts, e.ts + 30, correlation=e.correlation)
              for e in layers(None)]  # fmt: skip
    result = diff(trace_of(*layers(None)), trace_of(*events))
    (renamed,) = [row for row in rows(result, "diff_waterfall") if row.change == "renamed"]
    assert (renamed.operator, renamed.control_names, renamed.test_names, renamed.delta_ns) == (
        "aten::mm", ["aten::mm_kernel"], ["other_gemm"], -80
    )  # fmt: skip
    assert result.pairs[0].alignment.renamed.sum() == 4


def test_a_region_stands_for_steps() -> None:
    def recording(gemm: int) -> list:
        events = []
        for index in range(3):
            at = 1000 * index
            events += [annotation("timed", at, at + 400), op("aten::mm", at + 10, at + 50),
                       call("cudaLaunchKernel", at + 15, at + 25, correlation=index),
                       kernel("gemm", at + 40, at + 40 + gemm, correlation=index)]  # fmt: skip
        return events

    result = diff(trace_of(*recording(50)), trace_of(*recording(600)), region="timed")
    adds_up(result)
    assert [(row.control_ns, row.test_ns) for row in rows(result, "diff_steps")] == [(400, 640)] * 3
    (part,) = [row for row in rows(result, "diff_waterfall") if row.kind == "computation"]
    assert (part.operator, part.control_ns, part.test_ns) == ("aten::mm", 150, 1800)


def test_what_cannot_be_asked() -> None:
    trace = trace_of(*layers(None))
    with pytest.raises(UsageError, match=r"has no step 7 \(it has 3\)"):
        diff(trace, trace, step=7)
    with pytest.raises(UsageError, match=r"no rank 4 \(it "):
        diff([trace], [trace], control_rank=4)
    with pytest.raises(UsageError, match="no annotation or operator that matches 'timed'"):
        diff(trace, trace, region="timed")
    with pytest.raises(UsageError, match="nothing to compare"):
        diff([], trace)
    with pytest.raises(InputError, match="holds no operator"):
        diff(trace_of(), trace)


# What differs from run to run is no part of a name.


@pytest.mark.parametrize(("name", "settled"), [
    ("ProfilerStep#12", "ProfilerStep"),
    ("Torch-Compiled Region: 5/2", "Torch-Compiled Region"),
    (
        "## Call CompiledFxGraph fpd3wmmqyhdyzq7yn7xxr4eiayiyblbyaypqn4yuppxs4lnwnrzu ##",
        "## Call CompiledFxGraph … ##",
    ),
    ("<function f at 0x7f0012ab34cd>", "<function f at 0x…>"),
    ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "enumerate(DataLoader)"),
    ("nvjet_tst_192x192_64x3_2x1_v_bz_coopB_NNN", "nvjet_tst_192x192_64x3_2x1_v_bz_coopB_NNN"),
    ("aten::mm", "aten::mm"),
    ("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)", "execute (decode)"),
    ("execute_context_2(14721)_generation_0(0)", "execute (prefill)"),
    ("execute_context_2(14721)_generation_3(3)", "execute"),
    ("execute_new_2_cached_5", "execute"),
    ("step[DECODE bs=32 g_sk=9]", "step[DECODE]"),
    ("decode[bs=117/128 tok=117 d=117]", "decode[]"),
    ("[Executor] _forward_step 12: 1 ctx reqs, 31 gen reqs", "[Executor] _forward_step"),
    ("execute_model", "execute_model"),
])  # fmt: skip
def test_settled_name(name: str, settled: str) -> None:
    assert settled_name(name) == settled


@pytest.mark.parametrize(("name", "short"), [
    ("void at::native::elementwise_kernel<4, f<int>(a)>(int, long)", "at::native::elementwise_kernel"),
    ("aten::mm", "aten::mm"),
    ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
    ("## forward ##", "## forward ##"),
    ("autograd::engine::evaluate_function: MmBackward0",) * 2,
    ("(anonymous)", "(anonymous)"),
])  # fmt: skip
def test_short_name_as_hta_has_it(name: str, short: str) -> None:
    assert short_name(name) == short


def test_equal_names_have_one_number_on_both_sides() -> None:
    names = Names()
    control = names.of(np.array([2, 0, 2], np.int32), ["ProfilerStep#1", "unused", "aten::mm"])
    test = names.of(np.array([0, 1], np.int32), ["aten::mm", "ProfilerStep#7"])
    assert control[0] == control[2] != control[1]
    assert test.tolist() == [control[0], control[1]]


def test_paths() -> None:
    names = Names()
    outer, inner = names.number("aten::linear"), names.number("aten::addmm")
    paths = Paths(names)
    top = paths.of(np.array([NO_INDEX], np.int32), np.array([outer], np.int32))
    below = paths.of(np.repeat(top, 2), np.array([inner, inner], np.int32))
    assert below[0] == below[1]
    assert paths.text(int(below[0])) == "aten::linear > aten::addmm"
    assert paths.text(NO_INDEX) == ""


# Sequences are aligned by a longest common subsequence, however long they are.
items = st.lists(st.integers(0, 4), max_size=30)


def slow_length(xs: list[int], ys: list[int]) -> int:
    """The length of a longest common subsequence, by the textbook's table."""
    above = [0] * (len(ys) + 1)
    for x in xs:
        row = [0]
        for place, y in enumerate(ys):
            row.append(above[place] + 1 if x == y else max(row[-1], above[place + 1]))
        above = row
    return above[-1]


@given(items, items)
def test_pairs_are_equal_ascending_and_as_many_as_can_be(xs: list[int], ys: list[int]) -> None:
    pairs = common(xs, ys)
    assert all(xs[x] == ys[y] for x, y in pairs)
    assert all(a < c and b < d for (a, b), (c, d) in pairwise(pairs))
    assert len(pairs) == slow_length(xs, ys)


def test_what_was_put_in_shifts_nothing() -> None:
    layer = list(range(12))
    xs = layer * 40
    ys = [item for index in range(40) for item in (*layer[:5], *([99] if index % 3 == 0 else []), *layer[5:])]
    assert len(common(xs, ys)) == len(xs)


def test_long_sequences_in_blocks() -> None:
    rng = random.Random(5)
    xs = [rng.randrange(50) for _ in range(5 * alignment.BLOCK)]
    ys = [item for item in xs if rng.random() > 0.01]
    for place in sorted(rng.sample(range(len(ys)), 200), reverse=True):
        ys.insert(place, 77)
    pairs = common(xs, ys)
    assert all(xs[x] == ys[y] for x, y in pairs)
    assert len({x for x, _ in pairs}) == len({y for _, y in pairs}) == len(pairs)
    assert len(pairs) >= 0.999 * (len(ys) - 200)


def test_sequences_that_have_nothing_in_common_end() -> None:
    length = 2 * alignment.BLOCK + 17
    assert common([1] * length, [2] * length) == []
    assert common([1] * length, [2] * 3) == []


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=40),
       st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=40))  # fmt: skip
def test_groups_are_aligned_each_by_itself(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    def columns(rows: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
        return np.array([g for g, _ in rows], np.int64), np.array([i for _, i in rows], np.int64)

    (group_a, item_a), (group_b, item_b) = columns(a), columns(b)
    partner = align(group_a, item_a, group_b, item_b)
    met = np.flatnonzero(partner != NO_INDEX)
    assert (group_a[met] == group_b[partner[met]]).all()
    assert (item_a[met] == item_b[partner[met]]).all()
    of_group = {g: [i for _, i in rows] for g, rows in groupby(sorted(b, key=lambda row: row[0]), lambda row: row[0])}
    for group, members in groupby(sorted(a, key=lambda row: row[0]), lambda row: row[0]):
        part = [item for _, item in members]
        assert (group_a[met] == group).sum() == slow_length(part, of_group.get(group, []))
        assert (np.diff(partner[met][group_a[met] == group]) > 0).all()


# Work launched before the recording, in a comparison: by order on its stream, and one part of the difference.
LAYER = ("gemm", "relu", "norm")


def recording(first: int, *, steps: bool = False) -> Trace:
    """Nine kernels, of which the first three had run when the recording began, or only as many as ``first``; the calls
    of all but the last three were made before it."""
    events: list[Event] = []
    for place in range(first, 9):
        name, start = LAYER[place % 3], 100 * place
        events.append(kernel(name, start, start + 90, correlation=10 + place))
        if place >= 6:
            launch = 400 + 10 * place
            events += [op(f"aten::{name}", launch, launch + 5),
                       call("cudaLaunchKernel", launch + 1, launch + 4, correlation=10 + place)]  # fmt: skip
    return trace_of(*events, *([annotation("ProfilerStep#3", 450, 880)] if steps else []))


def test_it_is_matched_by_order_on_its_stream() -> None:
    for steps in (False, True):
        (pair,) = diff(recording(1, steps=steps), recording(3, steps=steps)).pairs
        early = np.flatnonzero(before_recording(pair.test.trace))
        assert len(early) == 3
        partner = pair.alignment.work_of_test[early]
        assert (partner != NO_INDEX).all()
        for part, yours in zip(partner.tolist(), early.tolist(), strict=True):
            first, other = gpu_work(pair.control.trace), gpu_work(pair.test.trace)
            assert pair.control.trace.names_of(first.row[[part]]) == pair.test.trace.names_of(other.row[[yours]])
        assert not before_recording(pair.control.trace)[pair.alignment.work_of_test[-3:]].any()


def test_it_is_one_part_and_told_with_its_share() -> None:
    diff_result = diff(recording(1), recording(3))
    rows = diff_result.outcomes["diff_waterfall"].rows  # type: ignore[union-attr]
    assert not [row for row in rows if row.change in ("added", "deleted")]
    (part,) = (row for row in rows if row.test_names == [BEFORE])
    assert (part.operator, part.control_ns, part.test_ns, part.change) == ("", 450, 270, "decreased")
    output = [diagnostic for diagnostic in diff_result.diagnostics if diagnostic.code == "before_recording"]
    assert [(each.count, "62 %" in each.message or "50 %" in each.message) for each in output] == [(5, True), (3, True)]


def test_of_steps_it_is_no_part() -> None:
    diff_result = diff(recording(1, steps=True), recording(3, steps=True))
    rows = diff_result.outcomes["diff_waterfall"].rows  # type: ignore[union-attr]
    assert {row.delta_ns for row in rows} == {0}
    assert not [row for row in rows if BEFORE in row.test_names]


# The figures that HTA's own tests assert of its pair of traces (its tests/test_trace_diff.py).


@pytest.fixture(scope="module")
def compared(shared_traces: Path) -> Diff:
    sides = [
        augment.read(str(shared_traces / "hta_tiny" / f"trace_compare_{name}.json.gz")) for name in ("base", "test")
    ]
    return diff(sides[0], sides[1], step=1010)


def test_control_counts_and_durations(compared: Diff) -> None:
    control = {row.name: (row.control_count, row.control_ns // 1000)
               for row in rows(compared, "diff_names") if row.side == "cpu" and row.control_count}  # fmt: skip
    assert control == {
        "ProfilerStep": (1, 122149),
        "aten::as_strided": (1, 0),
        "aten::empty": (1, 0),
        "cudaEventQuery": (1, 4),
        "cudaLaunchKernel": (1, 4),
        "nccl:all_reduce": (1, 67),
    }


def test_classes_of_change(compared: Diff) -> None:
    of_side = {side: [row for row in rows(compared, "diff_names") if row.side == side] for side in ("cpu", "gpu")}
    assert Counter(row.change for row in of_side["cpu"]) == {"unchanged": 5, "added": 3, "deleted": 1}
    assert Counter(row.change for row in of_side["gpu"]) == {"deleted": 1}
    names = {each: sorted(row.name for row in of_side["cpu"] if row.change == each) for each in ("added", "deleted")}
    assert names == {"added": ["AddmmBackward0", "All2All_Pooled_Req", "CatBackward0"], "deleted": ["nccl:all_reduce"]}
