"""Why a rank was late: what its device did since the last but one rank had arrived."""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache
from itertools import zip_longest
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import layered_job
from answered_jobs import answered, job_at
from augment import AugmentedTrace, Findings, Trace, read
from augment.arrays import NO_INDEX
from augment.core import CounterTrack
from augment.facts.collectives.rank_progress import device_states, host_gaps
from augment.job.answer import Answer
from augment.job.ranks import read_summary, summarize
from augment.job.ranks.states import MOST_STAYS, state_table
from augment.job.verdict.excess import main_cause, main_causes
from simulator import JobOptions, simulate
from simulator.communication import TOKENS
from traces import HOST, THREAD, event, kernel, launch, op, write_trace

pytestmark = pytest.mark.slow

GPU, CALLS = ("kernel", "gpu_memcpy", "gpu_memset"), ("cuda_runtime", "cuda_driver")
SHARE = 0.6  # of the charged time, to call one cause the cause
CLEARLY = 2.0  # of the other cause


@cache
def _job(paths: tuple[Path, ...]) -> Answer:
    return answered(paths)


def job(paths: Sequence[Path]) -> Answer:
    return _job(tuple(paths))


def rows(result: Answer, question: str) -> Any:
    outcome = result.outcomes[question]
    assert isinstance(outcome, Findings), outcome
    return outcome.rows


@lru_cache(8)
class PlainRank:
    """A rank's events as plain Python, with its states by a second method."""

    def __init__(self, path: Path) -> None:
        document = json.loads(gzip.decompress(path.read_bytes()))
        self.number = document.get("distributedInfo", {}).get("rank")
        slices = [event for event in document["traceEvents"] if event.get("ph") == "X"]
        self.launched = {
            event["args"]["correlation"]: float(event["ts"]) + float(event["dur"])
            for event in slices
            if event.get("cat") in CALLS and "correlation" in (event.get("args") or {})
        }
        work = [event for event in slices if event.get("cat") in GPU]
        spans = [(float(event["ts"]), float(event["ts"]) + float(event["dur"]), event) for event in work]
        self.work = sorted(spans, key=lambda span: span[:2])
        self.groups: dict[str, list[float]] = defaultdict(list)
        listed = document.get("distributedInfo", {}).get("pg_config", [])
        only = {"Process Group Name": listed[0]["pg_name"]} if len(listed) == 1 else {}  # launched before the recording
        for start, _, piece in self.work:
            if "nccl" in piece["name"].lower() and "Process Group Name" in (args := only | piece["args"]):
                self.groups[str(args["Process Group Name"])].append(start)

    def split(self, since: float, until: float) -> tuple[float, float, float]:
        """Busy, idle without work, idle with launched work, µs in [since, until)."""
        busy = queued = 0.0
        free = since
        for start, stop, piece in self.work:
            if stop <= since or start > until:
                continue
            if start > free and (launched := self.launched.get(piece["args"].get("correlation"))) is not None:
                queued += max(0.0, min(start, until) - max(free, launched))
            busy += max(0.0, min(stop, until) - max(start, free))
            free = max(free, min(stop, until))
        return busy, until - since - busy - queued, queued


def plain_causes(paths: Sequence[Path]) -> dict[tuple[str, Any], dict[str, float]]:
    """By group and rank, in µs: charged, gpu, host, queued."""
    ranks = [PlainRank(path) for path in paths]
    names = ("charged", "gpu", "host", "queued")
    totals: dict[tuple[str, Any], dict[str, float]] = defaultdict(lambda: dict.fromkeys(names, 0.0))
    for group in {name for rank in ranks for name in rank.groups}:
        members = [rank for rank in ranks if group in rank.groups]
        for arrivals in zip_longest(*(rank.groups[group][::-1] for rank in members), fillvalue=-inf):
            *_, before, last = sorted(arrivals)  # recordings that begin later lack the first
            if before == -inf:
                continue
            late = members[arrivals.index(last)]
            times = last - before, *late.split(before, last)
            for name, time in zip(names, times, strict=True):
                totals[group, late.number][name] += time
    return totals


def check(paths: Sequence[Path]) -> int:
    """Compare the parts of what is charged, and the cause; the number of ranks compared."""
    expected = plain_causes(paths)
    compared = 0
    for row in rows(job(paths), "stragglers"):
        host_ns = row.host_ns + row.unknown_ns  # idle with nothing known to be launched
        parts = [row.compute_ns + row.communication_ns + row.memory_ns, host_ns, row.queued_ns]
        assert sum(parts) + row.before_ns == row.after_the_others_ns
        plain = expected[row.group, row.rank]
        if plain["charged"] < 100 or abs(row.after_the_others_ns / 1000 - plain["charged"]) > 0.02 * plain["charged"]:
            continue  # too little, or the clocks were corrected
        compared += 1
        for part, name in zip(parts, ("gpu", "host", "queued"), strict=True):
            assert part / 1000 == pytest.approx(plain[name], abs=0.02 * plain["charged"] + 1), (row, plain)
        decided = [name for name in ("gpu", "host", "queued") if plain[name] > SHARE * plain["charged"]]
        assert decided in ([], [row.meanwhile]), (row, plain)
        most = max(plain["gpu"], plain["host"], plain["queued"])
        assert row.meanwhile_ratio == pytest.approx(most / plain["charged"], abs=0.03)
    return compared


def plain_excess(paths: Sequence[Path]) -> dict[Any, dict[str, float]]:
    """By rank: how long its device computed (gpu), and was idle with nothing launched (host), beyond the median, µs."""
    ranks, totals = [PlainRank(path) for path in paths], {}
    for rank in ranks:
        until = max(stop for _, stop, _ in rank.work)
        computed, reach = 0.0, rank.work[0][0]
        for start, stop, piece in rank.work:
            if "nccl" not in piece["name"].lower():
                computed += max(0.0, stop - max(start, reach))
                reach = max(reach, stop)
        totals[rank.number] = {"gpu": computed, "host": rank.split(rank.work[0][0], until)[1]}
    middle = {name: float(np.median([each[name] for each in totals.values()])) for name in ("gpu", "host")}
    return {rank: {name: each[name] - middle[name] for name in middle} for rank, each in totals.items()}


def check_cause(paths: Sequence[Path]) -> None:
    """The cause of the rank that is charged most, by plain sums, in the table and the verdict."""
    result = job(paths)
    worst = rows(result, "stragglers")[0]
    excess = plain_excess(paths)[worst.rank]
    assert max(excess.values()) > CLEARLY * min(excess.values())
    assert worst.cause == max(excess, key=lambda name: excess[name]), (worst, excess)
    (row, *_) = result.verdict.rows
    assert (row.rank, row.cause) == (worst.rank, {"gpu": "compute"}.get(worst.cause, worst.cause))


@pytest.mark.parametrize("late", ["gpu", "host"])
def test_the_cause_is_what_the_device_did_meanwhile(tmp_path: Path, late: str) -> None:
    paths = layered_job.make(tmp_path, "seq", 4, late)
    assert check(paths) >= 4
    tensor = [row for row in rows(job(paths), "stragglers") if row.group == "2" and row.rank == layered_job.SLOW]
    assert [row.meanwhile for row in tensor] == [late]
    check_cause(paths)


def test_a_recorded_job(shared_traces: Path) -> None:
    paths = job_at(shared_traces / "h100_8rank_modded_nanogpt")
    assert check(paths) >= 2
    check_cause(paths)


def test_ranks_that_are_late_together(shared_traces: Path) -> None:
    """Two ranks whose hosts take far longer than the others', by sums over the raw JSON. One is so in the first step
    alone, which is not judged."""
    paths = job_at(shared_traces / "h100_8rank_modded_nanogpt")
    excess = plain_excess(paths)
    assert sorted(excess, key=lambda rank: -excess[rank]["host"])[:2] == [1, 0]
    verdict = job(paths).verdict
    (row,) = verdict.rows
    assert row.rank == 1
    assert row.charged_ns / 1000 == pytest.approx(excess[1]["host"], rel=0.1)
    assert verdict.text[1].startswith("Then rank 2 would be late: with ranks 1 and 2 at the median's speed, the job")


def test_what_all_ranks_of_a_recorded_job_wait_for(shared_traces: Path) -> None:
    """Devices that idle for a third of the time and more on all ranks, with nothing launched, by the raw JSON: between
    their work, and from the begin of the step to the first."""
    paths = sorted((shared_traces / "dlrm_8rank_v100_param" / "kineto").glob("*.json.gz"))
    if not paths:
        pytest.skip("the job is not at hand")
    result = job(paths)
    (shared, *_) = result.verdict.rows
    tracks = {track.name: track for track in result.of_job((-(1 << 62), 1 << 62))}
    assert "Late rank" not in tracks
    waiting = tracks["Devices that wait for their hosts"]
    assert isinstance(waiting, CounterTrack)
    assert (waiting.values.max(), waiting.values[-1]) == (len(paths), 0)
    waited = (waiting.values[:-1] * np.diff(waiting.ts)).sum() / len(paths)
    assert shared.figures["least_ns"] < waited < 1.5 * shared.figures["most_ns"]  # from before the step, too
    assert (shared.cause, shared.ranks) == ("shared", list(range(8)))
    plain = []
    for rank, summary in zip((PlainRank(path) for path in paths), result.summaries, strict=True):
        first, last = rank.work[0][0], max(stop for _, stop, _ in rank.work)
        plain.append(rank.split(first, last)[1] + max(first - summary.step_column("start")[0] / 1000, 0))
    assert shared.figures["least_ns"] / 1000 == pytest.approx(min(plain), rel=0.03)
    assert shared.figures["most_ns"] / 1000 == pytest.approx(max(plain), rel=0.03)


def test_ranks_of_several_nodes_that_are_equally_late(shared_traces: Path, tmp_path: Path) -> None:
    """The job as two nodes: no rank gains alone; those late alike are one finding, the largest gain first."""
    paths = job_at(shared_traces / "h100_8rank_modded_nanogpt")
    ranks = ", ".join(map(str, range(2 * len(paths))))
    for rank in range(2 * len(paths)):
        text = gzip.decompress(paths[rank % len(paths)].read_bytes()).decode()
        text = re.sub(r'("rank": )\d+', rf"\g<1>{rank}", text, count=1)
        text = re.sub(r'("world_size": )\d+', rf"\g<1>{2 * len(paths)}", text)
        text = text.replace("[0, 1, 2, 3, 4, 5, 6, 7]", f"[{ranks}]").replace('"Group size": 8', '"Group size": 16')
        (tmp_path / f"rank{rank:02}.json").write_text(text)
    verdict = job(sorted(tmp_path.glob("*.json"))).verdict
    assert [row.ranks for row in verdict.rows] == [[1, 9]]
    late = "Ranks 1 and 9 (local rank 1 of all 2 nodes) delay the others in data parallelism by 10.6 ms"
    assert verdict.text[0].startswith(late)
    assert not re.search(r"take (\S+ ms) instead of \1", " ".join(verdict.text))


def test_a_rank_with_more_work_is_not_slow(tmp_path: Path) -> None:
    """Metamorphic: were the products of the slow rank larger, others would have to take a part of them, and it could
    not be like its peers; a rank that is slow at equal work could."""
    options = JobOptions(ranks=4, steps=4, layers=3, seed=2, straggler=2, straggler_factor=1.6)
    paths = [path for path, _ in simulate(options, tmp_path)]
    (slow,) = job(paths).verdict.rows
    document = json.loads(gzip.decompress(paths[2].read_bytes()))
    for each in document["traceEvents"]:
        if each["name"] in ("aten::mm", "aten::addmm"):
            shapes = each["args"]["Input Dims"]
            more = [[size * 8 // 5 if size == TOKENS else size for size in shape] for shape in shapes]
            each["args"]["Input Dims"] = more
    paths[2].write_bytes(gzip.compress(json.dumps(document).encode()))
    result = answered(paths)
    (row,) = result.verdict.rows
    assert (row.rank, row.cause, row.charged_ns) == (2, "compute", slow.charged_ns)
    assert "its products take 42 % more operations" in result.verdict.text[0]  # those of attention are not
    assert "If work were balanced" in result.verdict.text[0]
    assert row.gain_ns == pytest.approx(0.75 * slow.gain_ns, rel=0.05)  # from 1.6 times its peers' to the mean, 1.15


@pytest.mark.parametrize("fault", [{"host_stall_us": 5000.0, "host_stall_rank": 2}, {"straggler": 2}])
@pytest.mark.parametrize("shape", [{}, {"tp": 2}])
def test_table_track_and_verdict_agree(tmp_path: Path, shape: dict[str, Any], fault: dict[str, Any]) -> None:
    """After a stall of its host the late device computes while others wait: that is not why it is late."""
    options = JobOptions(ranks=4, steps=4, layers=2, seed=1, **shape, **fault)
    paths = [path for path, _ in simulate(options, tmp_path)]
    result = job(paths)
    (row,) = result.verdict.rows
    because = "host" if "host_stall_us" in fault else "compute"
    assert (row.rank, row.cause) == (2, because)
    check_cause(paths)
    (late,) = [track for track in result.of_job((-(1 << 62), 1 << 62)) if track.name == "Late rank"]
    of_rank = np.array([late.names.values[code] == "rank 2" for code in late.names.codes])
    label = {"host": "its host is late", "compute": "its device works"}[because]
    right = of_rank & np.array([late.inner.values[code] == label for code in late.inner.codes])
    assert late.dur[right].sum() > 0.8 * late.dur[of_rank].sum() > 0


def test_no_cause_by_a_hair() -> None:
    assert main_cause({"compute": 1340, "host": 1338}, 2678) == "unknown"
    assert main_cause({"compute": 1600, "host": 1100}, 2700) == "compute"
    assert main_cause({"compute": 900, "host": 100, "unknown": 0}, 2000) == "unknown"
    table = np.array([[1340, 1600, 0], [1338, 1100, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]])
    assert main_causes(table).tolist() == [4, 0, -1]


@pytest.mark.parametrize("more", [10_000, 40_000])
def test_a_longer_stall_changes_the_share_not_the_cause(tmp_path: Path, more: int) -> None:
    """Metamorphic: a longer stall of the same host is charged to the same rank and cause, and more of it."""
    base = JobOptions(ranks=4, steps=3, layers=2, seed=3, host_stall_rank=1, host_stall_us=4000.0)
    tables = []
    for number, options in enumerate((base, replace(base, host_stall_us=base.host_stall_us + more))):
        paths = [path for path, _ in simulate(options, tmp_path / str(number))]
        tables.append(rows(job(paths), "stragglers")[0])
    less, longer = tables
    assert (less.rank, less.cause) == (longer.rank, longer.cause) == (1, "host")
    assert longer.after_the_others_ns - less.after_the_others_ns == pytest.approx(3000 * more, rel=0.15)


@pytest.fixture
def small(tmp_path: Path) -> Trace:
    """A rank idle for its host (0 to 8, 40 to 66), then with queued work (8 to 20, 66 to 70), with a late end."""
    return read(
        str(
            write_trace(
                tmp_path / "rank0.json.gz",
                op("aten::mm", 0, 30), launch(ts=5, dur=3, correlation=1), kernel("gemm", 20, 20, correlation=1),
                event("user_annotation", "load", 35, 28, HOST, THREAD), launch(ts=63, dur=3, correlation=2),
                kernel("ncclDevKernel_AllReduce", 70, 10, correlation=2),
            )
        )
    )  # fmt: skip


def test_states_of_a_small_trace(small: Trace) -> None:
    states = device_states(small)
    begin = states.ts[0]
    table = state_table(states, host_gaps(small, NO_INDEX), [])
    ends = np.array([0, 4, 8, 20, 40, 66, 70, 80, 90]) * 1000 + begin
    parts = table.parts(np.full(len(ends), begin - 5000), ends)
    assert (sum(parts) == ends - begin + 5000).all()
    assert (parts.before == 5000).all()
    assert (parts.host // 1000).tolist() == [0, 4, 8, 8, 8, 34, 34, 34, 34]
    assert (parts.queued // 1000).tolist() == [0, 0, 0, 12, 12, 12, 16, 16, 16]
    assert (parts.compute // 1000).tolist() == [0, 0, 0, 0, 20, 20, 20, 20, 20]
    assert (parts.communication // 1000).tolist() == [0, 0, 0, 0, 0, 0, 0, 10, 10]
    assert (parts.unknown // 1000).tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 10]


def test_what_the_host_did(small: Trace) -> None:
    table = state_table(device_states(small), host_gaps(small, NO_INDEX), [])
    begin = device_states(small).ts[0]
    whole = table.doing(np.array([begin]), np.array([begin + 80_000]))
    assert whole == [("load", "annotation", 26_000), ("aten::mm", "operator", 8_000)]
    assert table.doing(np.array([begin + 2000]), np.array([begin + 3000])) == [("aten::mm", "operator", 1000)]


def test_parts_add_up_with_more_stays_than_the_table_holds(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    count = 2 * MOST_STAYS
    gaps, durs = random.integers(1, 9, count), random.integers(1, 30, count)
    start = np.cumsum(gaps + np.append(0, durs[:-1])) + 100
    events = [
        piece
        for number, (ts, dur, gap) in enumerate(zip(start.tolist(), durs.tolist(), gaps.tolist(), strict=True))
        for piece in (
            launch(ts=ts - gap, dur=1, correlation=number + 1),
            kernel("gemm", ts, dur, correlation=number + 1),
        )
    ]
    trace = read(str(write_trace(tmp_path / "rank0.json.gz", *events)))
    states = device_states(trace)
    table = state_table(states, host_gaps(trace, NO_INDEX), [])
    ends = np.sort(random.integers(states.ts[0], states.ts[-1], 50))
    parts = table.parts(np.full(50, states.ts[0]), ends)
    assert (sum(parts) == ends - states.ts[0]).all()
    assert all((part >= 0).all() for part in parts)
    begin = states.ts[0] + gaps[0] * 1000  # the first launch, which is the first event, comes so long before its work
    kernels = [begin + (start - start[0]) * 1000, durs * 1000]
    computed = sum(np.clip(ends - ts, 0, dur) for ts, dur in zip(*kernels, strict=True))
    assert np.abs(parts.compute - computed).max() < 40_000  # within one short stay


@pytest.mark.parametrize("most", [0, 200])
def test_thinned_states_are_exact_where_figures_ask(tmp_path: Path, most: int) -> None:
    """Of many ranks a few moments are kept: the parts of stretches between collectives must not change."""
    ((path, _), *_) = simulate(JobOptions(ranks=2, steps=3, layers=4, seed=6), tmp_path)
    summary = read_summary(summarize(AugmentedTrace(read(str(path)), {})), "")
    moments = np.unique(np.concatenate(summary.moments()))
    thin = summary.states.thinned(most, summary.moments())
    before, after = (table.parts(moments[:-1], moments[1:]) for table in (summary.states, thin))
    assert all((column == other).all() for column, other in zip(before, after, strict=True))
    assert len(thin.ts) < len(summary.states.ts) / 2
    middle = (moments[:-1] + moments[1:]) // 2
    assert (sum(thin.parts(moments[:-1], middle)) == middle - moments[:-1]).all()
    assert summary.states.thinned(len(summary.states.ts), []) is summary.states
    narrow = thin.narrowed()
    assert len(narrow.ts) < 0.6 * len(thin.ts)
    assert narrow.narrowed() is narrow
    for start, end in ((moments[:-1], middle), (moments[:-1], moments[1:])):
        assert all(
            (column == other).all()
            for column, other in zip(narrow.parts(start, end), thin.parts(start, end), strict=True)
        )
    assert all((side == other).all() for side, other in zip(narrow.communicating(), thin.communicating(), strict=True))
    assert narrow.thinned(0, summary.moments()) == thin.thinned(0, summary.moments())
    long = msgspec.structs.replace(thin, ts=np.array([0, 1 << 31], np.int64).tobytes())
    assert long.narrowed() is long


def test_the_table_names_the_cause_of_the_verdict(shared_traces: Path) -> None:
    """A recorded job: most of the delay of rank 1 is computing, as its host had stalled before."""
    result = job(job_at(shared_traces / "h100_8rank_modded_nanogpt", "rank*.json.gz"))
    (row,) = result.verdict.rows
    worst = rows(result, "stragglers")[0]
    assert (worst.rank, worst.cause) == (row.rank, row.cause) == (1, "host")
    assert worst.meanwhile == "unknown"


@pytest.mark.parametrize("collectives", ["ddp", "fsdp"])
def test_a_stall_in_every_second_step_is_the_hosts(collectives: Any, tmp_path: Path) -> None:
    """As by garbage collection: what is charged and what would be gained is what the stall costs. Truth: the same job
    simulated without it."""
    options = JobOptions(ranks=4, steps=6, layers=3, collectives=collectives, run_ahead=1)
    faulty = replace(options, host_stall_us=15_000.0, host_stall_every=2, host_stall_rank=0)
    result, healthy = (
        job([path for path, _ in simulate(each, tmp_path / name)]) for name, each in (("a", faulty), ("b", options))
    )
    assert (
        result.judgement.steps.left_out == 1
    )  # the host does not run ahead of it: a stall costs all of its time there
    whole, usual = result.judgement.recorded_ns, healthy.judgement.recorded_ns / healthy.judgement.step_count
    lost = 1 - usual * result.judgement.step_count / whole
    assert lost > 0.15
    row = result.verdict.rows[0]
    assert (row.rank, row.cause) == (0, "host")
    assert row.charged_ns / whole == pytest.approx(lost, abs=0.08)
    assert row.gain_ns / whole == pytest.approx(lost, abs=0.08)
