"""One timeline of a job, as Perfetto's engine reads it: every slice of every rank, on one clock, linked."""

from __future__ import annotations

import itertools
import re
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from augment import AugmentedTrace, AugmentError, OutputError, Trace, UsageError, augment, read
from augment.batch.conversion import RunPlan
from augment.batch.inputs import choose_inputs
from augment.batch.merged_timeline import Merged, default_output, merge, only_job
from augment.batch.timeline_contents import view_of_unjoined
from augment.core import COMPLETE
from augment.diagnosis.drawing import COLOURS
from augment.job.answer import answer
from augment.job.ranks import summarize
from augment.pipeline.request import Request
from augment.viewer.view import timeline_view
from augment.writers import perfetto as native
from augment.writers.perfetto.several import first_view
from perfetto_engine import Cell, PerfettoEngine
from simulator import JobOptions, simulate
from traces import kernel, step, write_trace

pytestmark = pytest.mark.slow

#: each slice with the root track that it lies below
ROOTS = """
    with recursive root(id, top) as (
        select id, name from track where parent_id is null
        union all select track.id, root.top from track join root on track.parent_id = root.id
    )
"""
OF_CATEGORY = f"""{ROOTS}
    select a.ts, b.ts, a.ts + a.dur, b.ts + b.dur, a.name, b.name, ra.top, rb.top from flow
    join slice a on a.id = slice_out join slice b on b.id = slice_in
    join root ra on ra.id = a.track_id join root rb on rb.id = b.track_id where ra.top <> rb.top and a.category = '{{}}'
"""
ACROSS, HANDOVERS = OF_CATEGORY.format("kernel"), OF_CATEGORY.format("augment.cross_rank_critical_path")
OFFSETS = (0, 5_000_000_000, -3_000_000_123, 77)


def simulated(folder: Path, ranks: int, *, layers: int = 1, steps: int = 2, **options: Any) -> list[Path]:
    """The traces of a simulated job."""
    return [path for path, _ in simulate(JobOptions(ranks=ranks, steps=steps, layers=layers, **options), folder)]


def merged(folder: Path, out: Path, **how: Any) -> Merged:
    """Merge what is in ``folder``."""
    return merge(only_job(choose_inputs([str(folder)], None).inputs), str(out), RunPlan(**how))


def slices(perfetto: PerfettoEngine, path: Path, top: str | None = None) -> Counter[tuple[Cell, ...]]:
    """Name, category, time and duration of all slices below a root track; of the whole file if none is named."""
    perfetto.load_clean(path)
    part = f"join root on root.id = track_id where top = '{top}'" if top else ""
    return Counter(perfetto.rows(f"{ROOTS} select slice.name, slice.category, ts, dur from slice {part}"))


def of_job(result: Counter[tuple[Cell, ...]]) -> Counter[tuple[Cell, ...]]:
    """Those of ``result`` that the comparison of ranks added, or tells otherwise than the rank."""
    ours = "augment.job_collectives", "augment.cross_rank_critical_path", "augment.told_by_job", "augment.diagnosis"
    return Counter({each: count for each, count in result.items() if each[1] in ours})


@pytest.mark.parametrize("ranks", [2, 8])
def test_every_slice_of_every_rank_is_there(ranks: int, perfetto: PerfettoEngine, tmp_path: Path) -> None:
    paths = simulated(tmp_path / "job", ranks)
    merged(tmp_path / "job", tmp_path / "job.pftrace", align=False)
    for rank, path in enumerate(paths):
        alone = tmp_path / "alone.pftrace"
        native.write(augment(read(str(path))), alone)
        expected, result = slices(perfetto, alone), slices(perfetto, tmp_path / "job.pftrace", f"rank {rank}")
        assert expected - result == of_job(expected - result)
        assert result - expected == of_job(result - expected)
    order = "order by extract_arg(source_arg_set_id, 'sibling_order_rank')"
    roots = f"select name from track where parent_id is null and name is not null {order}"
    assert perfetto.rows(roots) == [(f"rank {rank}",) for rank in range(ranks)]
    above = "select distinct above.name from track join track above on above.id = track.parent_id"
    assert set(perfetto.rows(f"{above} where track.name glob 'GPU*'")) >= set(perfetto.rows(roots))


def test_clocks_are_aligned_and_collectives_linked(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    simulated(tmp_path / "job", 4, layers=6, clock_offset_ns=OFFSETS)
    assert merged(tmp_path / "job", tmp_path / "raw.pftrace", align=False).ranks == 4
    perfetto.load(tmp_path / "raw.pftrace")
    assert max(abs(int(str(a)) - int(str(b))) for _, _, a, b, *_ in perfetto.rows(ACROSS)) > 4_000_000_000
    merged(tmp_path / "job", tmp_path / "job.pftrace")
    perfetto.load_clean(tmp_path / "job.pftrace")
    rows = perfetto.rows(ACROSS)
    names = Counter(name for name, *_ in perfetto.rows("select name from slice where category = 'kernel'"))
    collectives = sum(count for name, count in names.items() if str(name).startswith("nccl"))
    assert len(rows) == collectives * 3 // 4 > 0
    assert max(abs(int(str(a)) - int(str(b))) for _, _, a, b, *_ in rows) < 20_000
    assert all(int(str(a)) <= int(str(b)) for a, b, *_ in rows)
    assert all(out == into for *_, out, into, _, _ in rows)


def test_the_path_through_the_ranks_is_one(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    options = {"layers": 3, "collectives": "fsdp", "work": 0.1, "jitter": 0.2}
    simulated(tmp_path / "job", 4, clock_offset_ns=OFFSETS, **options)
    merged(tmp_path / "job", tmp_path / "job.pftrace")
    perfetto.load_clean(tmp_path / "job.pftrace")
    category = "slice.category = 'augment.cross_rank_critical_path'"
    result = perfetto.rows(f"{ROOTS} select ts, ts + dur, top, slice.name from slice join root on root.id = track_id "
                          f"where {category} order by ts, dur")  # fmt: skip
    assert all(before[1] == after[0] for before, after in itertools.pairwise(result))
    changes = [(a[2], b[2], b[0]) for a, b in itertools.pairwise(result) if a[2] != b[2]]
    assert len(changes) > 3
    output = perfetto.rows(HANDOVERS)
    assert sorted((out, into, start) for _, start, _, _, _, _, out, into in output) == sorted(changes)
    assert all(end == start for _, start, end, *_ in output)
    assert {str(name) for *_, name in result} <= {"local work", "transfer AllGather", "transfer ReduceScatter"}


def test_the_job_comes_first_and_says_what_to_show(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    simulated(tmp_path / "job", 3, layers=6, steps=4, clock_offset_ns=OFFSETS[:3], straggler=1, first_step=3)
    merged(tmp_path / "job", tmp_path / "job.pftrace", request=Request(steps=(4, 4)))
    perfetto.load_clean(tmp_path / "job.pftrace")
    order = "order by extract_arg(source_arg_set_id, 'sibling_order_rank')"
    roots = perfetto.rows(f"select name from track where parent_id is null and name is not null {order}")
    assert roots == [("Job diagnosis",), *((f"rank {rank}",) for rank in range(3))]
    tracks = perfetto.rows(f"{ROOTS} select name from track join root using (id) where top = 'Job diagnosis'")
    assert tracks == [("Job diagnosis",), ("Job critical path",), ("Late rank",), ("Ranks waiting",)]
    drawn = "select count(*) from slice join track on track.id = track_id where track.name = 'Job diagnosis'"
    root = (
        "track.parent_id is null"  # the UI shows the slices of a root that has others below it, though it is not open
    )
    assert perfetto.rows(f"{drawn} and {root}") == perfetto.rows(drawn) == [(1,)]
    said = perfetto.rows(
        "select slice.name from slice join track on track.id = track_id where track.name = 'Job diagnosis'"
    )
    assert re.match("Rank 1 is late \\(a fix saves [0-9.]+ %\\): Rank 1 delays the other two", str(said[0][0]))
    assert " → Rank 1: Give it less work, or compare its device" in str(said[0][0])
    advice = drawn.replace("count(*)", "extract_arg(arg_set_id, 'debug.advice')")
    assert str(said[0][0]).endswith(f" → {perfetto.rows(advice)[0][0]}")
    colour = drawn.replace("count(*)", "extract_arg(arg_set_id, 'correlation_id')")
    assert perfetto.rows(colour) == [(f"tp:#{COLOURS['high']}",)]
    last = "(select max(ts + dur) from slice where category <> 'augment.job_timeline')"
    of_job = "slice.category = 'augment.job_timeline'"
    bounds = f"select min(ts) >= (select min(ts) from slice), max(ts + dur) <= {last} from slice where {of_job}"
    assert perfetto.rows(bounds) == [(1, 1)]
    stays = f"{of_job} and depth = 0 and dur > 1e5 and name glob 'rank *'"
    late = f"select name, extract_arg(arg_set_id, 'correlation_id') from slice where {stays}"
    assert set(perfetto.rows(late)) == {("rank 1", "tp:#1")}
    view = timeline_view(first_view(tmp_path / "job.pftrace"))
    names = [str(name) for (name,) in perfetto.rows("select name from track where name is not null")]
    pinned = [[name for name in names if re.fullmatch(pattern, name)] for pattern in view.pins]
    assert [name for (name,) in pinned][:6] == [
        "Job diagnosis",
        "Job critical path", "Late rank", "Ranks waiting", "GPU state rank 1", "Wait and transfer stream 23 rank 1",
    ]  # fmt: skip
    steps = perfetto.rows("select min(ts), max(ts + dur) from slice where name = 'ProfilerStep#4'")
    ((start, end),) = steps
    assert int(str(start)) <= view.window[0] < view.window[1] <= int(str(end)) + 10**9


def test_a_correction_moves_all_of_a_rank_by_the_same(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    simulated(tmp_path / "job", 2, layers=6, clock_offset_ns=(0, 2_000_000_000))
    merged(tmp_path / "job", tmp_path / "raw.pftrace", align=False)
    merged(tmp_path / "job", tmp_path / "job.pftrace")
    # what is drawn of a collective depends on the clocks
    raw, aligned = (slices(perfetto, tmp_path / name, "rank 1") for name in ("raw.pftrace", "job.pftrace"))
    for each in (raw, aligned):
        for slice_ in of_job(each):
            del each[slice_]
    shifts = {b[2] - a[2] for a, b in zip(sorted(raw, key=by_time), sorted(aligned, key=by_time), strict=True)}  # type: ignore[operator]
    (shift,) = shifts
    assert abs(shift + 2_000_000_000) < 20_000


def by_time(slice_: tuple[Cell, ...]) -> tuple[str, ...]:
    name, category, ts, dur = slice_
    return f"{ts:030}", f"{dur:030}", str(name), str(category)


def test_some_ranks_and_steps(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    simulated(tmp_path / "job", 2, first_step=3)
    merged(tmp_path / "job", tmp_path / "job.pftrace", request=Request(steps=(4, 4)))
    perfetto.load_clean(tmp_path / "job.pftrace")
    steps = "select distinct name from slice where name glob 'ProfilerStep*' and category = 'user_annotation'"
    assert perfetto.rows(steps) == [("ProfilerStep#4",)]
    rows = perfetto.rows(ACROSS)
    (count,) = perfetto.rows("select count(*) from slice where name glob 'nccl*Dev*' and category = 'kernel'")
    assert 2 * len(rows) == count[0]
    bounds = "select min(ts), max(ts + dur) from slice where category {} like 'augment.job%'"
    (whole, ours) = (perfetto.rows(bounds.format(what))[0] for what in ("not", ""))
    assert whole[0] <= ours[0] < ours[1] <= whole[1]  # type: ignore[operator]
    merged(tmp_path / "job", tmp_path / "job.pftrace", request=Request(steps=(3, 3)))
    perfetto.load(tmp_path / "job.pftrace")
    drawn = perfetto.rows("select count(*) from slice where name in ('wait', 'transfer') and depth = 0")
    inner = perfetto.rows("select count(*) from slice where category = 'augment.job_collectives' and depth = 1")
    assert drawn == inner != [(0,)]
    with pytest.raises(UsageError, match="no rank has step 9"):
        merged(tmp_path / "job", tmp_path / "job.pftrace", request=Request(steps=(9, 9)))


def test_what_no_browser_holds_is_left_out(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    size = sum(read(str(path)).source.text_bytes for path in simulated(tmp_path / "job", 2))
    output = merged(tmp_path / "job", tmp_path / "job.pftrace", timeline_bytes=size * 3 // 4)
    assert output.left_out.endswith("left out: steps 0 (--all includes them)")
    perfetto.load(tmp_path / "job.pftrace")
    names = "select distinct name from slice where name glob 'ProfilerStep*' and category = 'user_annotation'"
    assert perfetto.rows(names) == [("ProfilerStep#1",)]
    assert merged(tmp_path / "job", tmp_path / "job.pftrace", timeline_bytes=None).left_out == ""


def test_a_rank_that_cannot_be_read_is_told_of(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    job = tmp_path / "job"
    for rank in range(3):
        write_trace(job / f"rank{rank}.json", kernel(f"k{rank}"))
    (job / "rank1.json").write_bytes(b'{"traceEvents": nope')
    assert [Path(path).name for path, _ in merged(job, tmp_path / "job.pftrace").failed] == ["rank1.json"]
    perfetto.load(tmp_path / "job.pftrace")
    assert sorted(perfetto.rows("select name from slice where category = 'kernel'")) == [("k0",), ("k2",)]
    for rank in (0, 2):
        (job / f"rank{rank}.json").write_bytes(b"{")
    with pytest.raises(AugmentError, match=r"rank0\.json"):
        merged(job, tmp_path / "job.pftrace")


def test_times_before_zero_are_moved_with_all_others(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    for rank, at in enumerate((-70, 5)):
        write_trace(tmp_path / "job" / f"rank{rank}.json", kernel(f"k{rank}", ts=at, dur=10))
    write_trace(tmp_path / "job" / "rank2.json").write_bytes(b'{"traceEvents": []}')  # has no time at all
    assert merged(tmp_path / "job", tmp_path / "job.pftrace").ranks == 3
    kernels = sorted(each for each in slices(perfetto, tmp_path / "job.pftrace") if each[1] == "kernel")
    assert kernels == [("k0", "kernel", 0, 10_000), ("k1", "kernel", 75_000, 10_000)]


def test_never_over_an_input_and_never_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_trace(tmp_path / "rank0.json", step(), kernel())
    before = path.read_bytes()
    with pytest.raises(OutputError, match="one of the inputs"):
        merged(tmp_path, path)
    assert path.read_bytes() == before

    def broken(*_: object, **__: object) -> None:
        raise AugmentError("broken")

    monkeypatch.setattr("augment.pipeline.augment", broken)
    with pytest.raises(AugmentError, match="broken"):
        merged(tmp_path, tmp_path / "job.pftrace")
    assert [each.name for each in tmp_path.iterdir()] == ["rank0.json"]


def test_one_rank_at_a_time_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulated(tmp_path / "job", 3)
    traces: list[weakref.ref[Trace]] = []

    def counted(path: str) -> Trace:
        assert [trace() for trace in traces if trace() is not None] == []
        trace = read(path)
        traces.append(weakref.ref(trace))
        return trace

    monkeypatch.setattr("augment.readers.read", counted)
    assert merged(tmp_path / "job", tmp_path / "job.pftrace").ranks == 3
    assert len(traces) >= 6


def test_urls(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec", reason="no fsspec: pip install fsspec")
    store = fsspec.filesystem("memory")
    for rank in range(2):
        store.pipe_file(f"/merging/rank{rank}.json", write_trace(tmp_path / "t.json", kernel(f"k{rank}")).read_bytes())
    job = only_job(choose_inputs(["memory://merging"], None).inputs)
    assert default_output(job) == "memory://merging/job.augmented.pftrace"
    assert merge(job, default_output(job), RunPlan()).ranks == 2
    (tmp_path / "job.pftrace").write_bytes(store.cat_file("/merging/job.augmented.pftrace"))
    assert {"k0", "k1"} <= {slice_[0] for slice_ in slices(perfetto, tmp_path / "job.pftrace")}
    store.rm("/merging", recursive=True)


def test_which_traces_are_one_job(tmp_path: Path) -> None:
    for window in (1, 2):
        for rank in range(2):
            write_trace(tmp_path / f"iteration_{window}" / f"rank{rank}_trace.json")
    with pytest.raises(UsageError, match="2 jobs or windows"):
        only_job(choose_inputs([str(tmp_path)], None).inputs)
    job = only_job(choose_inputs([str(tmp_path / "iteration_2")], None).inputs)
    assert [member.rank for member in job.members] == [0, 1]
    assert default_output(job) == str(tmp_path / "iteration_2" / "job.augmented.pftrace")
    for host, rank in (("a", 1), ("b", 0)):
        write_trace(tmp_path / host / f"x-rank{rank}.json")
    apart = only_job(choose_inputs([str(tmp_path / "a"), str(tmp_path / "b")], None).inputs)
    assert [member.rank for member in apart.members] == [0, 1]
    assert apart.folder == str(tmp_path)


def test_a_late_rank_that_never_waits_has_its_collectives_pinned(tmp_path: Path) -> None:
    """In a job without data parallelism, the first of its streams has only collectives that are matched with nobody."""
    simulated(tmp_path / "job", 4, layers=2, tp=2, pp=2, microbatches=2, straggler=3, straggler_factor=1.6)
    merged(tmp_path / "job", tmp_path / "job.pftrace")
    pins = timeline_view(first_view(tmp_path / "job.pftrace")).pins
    expected = ["GPU state rank 3", "Wait and transfer stream 24 rank 3"]
    assert [pin.replace(r"( device \S+)?", "") for pin in pins[4:6]] == expected


def test_traces_that_nothing_joins_are_all_shown_first() -> None:
    pins = view_of_unjoined(["rank 0", "a.json.gz"]).pins
    assert [pin for pin in pins if pin.startswith("Diag")] == ["Diagnosis rank 0", r"Diagnosis a\.json\.gz"]


@pytest.mark.parametrize("late_ns", [0, 1, 2, 3])
def test_a_kernel_that_outlasts_its_annotation_by_a_rounding_stays_in_its_row(
    late_ns: int, tmp_path: Path, perfetto: PerfettoEngine
) -> None:
    """Starts and durations are rounded on their own, so that ends which are one moment differ by a nanosecond."""
    events: list[dict[str, Any]] = []
    for number in range(3):
        at = 1000 * (number + 1)
        work = {"ph": "X", "pid": 0, "tid": 7}
        events += [
            {**work, "cat": "gpu_user_annotation", "name": f"ProfilerStep#{number}", "ts": at, "dur": 900},
            {**work, "cat": "gpu_user_annotation", "name": "forward", "ts": at + 1, "dur": 899},
            {**work, "cat": "kernel", "name": "first", "ts": at + 2, "dur": 100, "args": {"stream": 7}},
            {**work, "cat": "kernel", "name": "last", "ts": at + 500, "dur": 400 + late_ns / 1000},
        ]
    native.write(augment(read(str(write_trace(tmp_path / "rank0.json", *events)))), tmp_path / "out.pftrace")
    perfetto.load(tmp_path / "out.pftrace")
    rows = perfetto.rows(
        "select name, count(distinct track_id), min(depth), max(depth), max(dur) from slice"
        " where category in ('kernel', 'gpu_user_annotation') and name in ('first', 'last', 'forward') group by 1"
    )
    kept = late_ns <= 2
    end = 400_000 + late_ns
    assert {row[0]: row[1:] for row in rows} == {
        "first": (1, 2, 2, 100_000),
        "forward": (1, 1, 1, 499_000 + end if kept else 899_000),
        "last": (1, 2, 2, end) if kept else (1, 0, 0, end),
    }
    tracks = perfetto.rows("select count(distinct track_id) from slice where category = 'kernel'")
    assert tracks[0][0] == (1 if kept else 2)


# Recorded jobs merged: every slice of every rank in Perfetto's engine, every collective linked across all
# ranks.
JOBS = {
    "h100_8rank_modded_nanogpt": 8,
    "dlrm_8rank_v100_param/kineto": 8,
    "v100_4rank_pair_torchrec/control": 4,
    "v100_4rank_pair_torchrec/sst_sleep_pl_dense_after_backward_2": 4,
}


@pytest.mark.parametrize("job", JOBS)
def test_a_recorded_job(job: str, perfetto: PerfettoEngine, shared_traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "job.pftrace"
    result = only_job(choose_inputs([str(shared_traces / job)], None).inputs)
    output = merge(result, str(out), RunPlan(Request(only=("idle_time_breakdown",))))
    assert (output.ranks, output.left_out, output.failed) == (JOBS[job], "", ())
    perfetto.load_clean(out)
    summaries = []
    for rank, member in enumerate(result.members):
        trace = read(member.input.path)
        summaries.append(summarize(AugmentedTrace(trace, {})))
        drawn = int(np.count_nonzero(np.isin(trace.events.phase, [COMPLETE, *b"iIR"])))
        sql = f"{ROOTS} select count(*) from slice join root on root.id = track_id where top = 'rank {rank}'"
        assert perfetto.rows(f"{sql} and coalesce(slice.category, '') not glob 'augment.*'") == [(drawn,)]
        assert perfetto.rows(f"{sql} and slice.category = 'augment.idle_time_breakdown'") != [(0,)]
    instance, members, _ = answer(summaries, [str(rank) for rank in range(len(summaries))]).links()
    assert len(perfetto.rows(ACROSS)) == len(instance) - len(np.unique(instance)) > 0
    assert set(members.tolist()) == set(range(JOBS[job]))


def test_the_path_waits_where_its_rank_waits_for_its_host(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    """Its slices are exactly as long as the stays of the rank's device, and together as long as the path."""
    options = {"layers": 2, "steps": 3, "host_stall_rank": 1, "host_stall_us": 30_000, "run_ahead": 2}
    simulated(tmp_path / "job", 2, **options)
    merged(tmp_path / "job", tmp_path / "job.pftrace")
    perfetto.load_clean(tmp_path / "job.pftrace")
    path = "from slice join track on track.id = track_id where track.name = 'Job critical path'"
    doing = "select slice.name, sum(dur), sum(extract_arg(arg_set_id, 'debug.idle_ns'))"
    seen = {name: (dur, idle) for name, dur, idle in perfetto.rows(f"{doing} {path} and depth = 1 group by 1")}
    assert seen["host_wait"][0] == seen["host_wait"][1] > 3 * 20 * 10**6
    assert seen["compute"][1] < 0.1 * seen["compute"][0]
    ((whole,),) = perfetto.rows(f"select sum(dur) {path} and depth = 0")
    assert sum(dur for dur, _ in seen.values()) == whole
