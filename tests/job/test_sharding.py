"""The tables ``sharding`` and ``expert_parallel`` beside plain sums over the events of the raw JSON, one by one.

Nothing here shares code with the analyses: events are dictionaries, collectives are matched by their place in the order
of their group, and times are compared by the true clocks of simulated ranks.
"""

from __future__ import annotations

import gzip
import json
import random
from bisect import bisect, bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from answered_jobs import answer_to, job_at, rows, summaries_at
from augment import AugmentedTrace, Findings, read
from augment.job.answer import Answer, answer
from augment.job.parallel import comparison
from augment.job.ranks import RankSummary, summarize
from augment.job.ranks.rank_tables import unit_names
from job_summaries import summary_of as made
from simulator import JobOptions, simulate
from traces import event, kernel, launch, write_trace

STAND_US = 2.0  #: shorter times without computation lie between any two kernels
SOON_US = 20.0


class Plain:
    """The GPU work of one rank, µs: ``kernels`` that communicate, ``computing`` ones, and ``other`` work."""

    def __init__(self, path: Path) -> None:
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        slices = [each for each in events if each.get("ph") == "X"]
        self.records = [each for each in slices if each["name"] == "record_param_comms"]
        work = [each for each in slices if each.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
        work.sort(key=lambda each: float(each["ts"]))
        self.calls = {
            each["args"]["correlation"]: each
            for each in slices
            if each.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in each.get("args", {})
        }
        self.kernels = [each for each in work if is_communication(each["name"])]
        self.other = [each for each in work if not is_communication(each["name"])]
        self.starts = [float(each["ts"]) for each in self.other]
        self.computing: list[tuple[float, float]] = []  # disjoint
        for begin, stop in (span(each) for each in self.other if each["cat"] == "kernel"):
            if self.computing and begin <= self.computing[-1][1]:
                self.computing[-1] = self.computing[-1][0], max(stop, self.computing[-1][1])
            else:
                self.computing.append((begin, stop))

    def around(self, start: float, end: float) -> list[tuple[float, float]]:
        """The times of computation that may touch a time."""
        return self.computing[max(bisect(self.computing, (start,)) - 1, 0) : bisect(self.computing, (end, end))]

    def exposed(self, piece: dict[str, Any]) -> float:
        """The time of a kernel in which nothing computes."""
        start, end = span(piece)
        covered = (max(0.0, min(stop, end) - max(begin, start)) for begin, stop in self.around(start, end))
        return end - start - sum(covered)

    def computes_at(self, moment: float) -> bool:
        return any(begin < moment <= stop for begin, stop in self.around(moment, moment))

    def continues_after(self, end: float) -> bool:
        """Whether work that was launched before begins soon after a moment."""
        place = bisect_left(self.starts, end)
        if place == len(self.other):
            return True
        following = self.other[place]
        call = self.calls.get(following["args"].get("correlation"))
        return float(following["ts"]) - end <= SOON_US and (call is None or float(call["ts"]) < end)


def is_communication(name: str) -> bool:
    return "nccl" in name.lower() or "deep_ep" in name.lower()


def span(piece: dict[str, Any]) -> tuple[float, float]:
    return float(piece["ts"]), float(piece["ts"]) + float(piece["dur"])


def outcome_of(paths: Sequence[Path], question: str) -> Any:
    contents = [summarize(AugmentedTrace(read(str(path)), {})) for path in paths]
    outcome = answer(contents, [path.name for path in paths]).outcomes[question]
    assert isinstance(outcome, Findings), outcome
    return outcome.rows


def together(ranks: Sequence[Plain], key: Callable[[dict[str, Any]], Any]) -> Iterator[tuple[Any, list[Any]]]:
    """The parts of each collective: the n-th kernel of equal key on each rank that has it; with the ranks' places."""
    parts: dict[Any, list[Any]] = defaultdict(list)
    for place, rank in enumerate(ranks):
        count: Counter[Any] = Counter()
        for piece in rank.kernels:
            if (name := key(piece)) is not None:
                parts[name, count[name]].append((place, piece))
                count[name] += 1
    for (name, _), pieces in parts.items():
        yield name, pieces


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [{"ranks": 4}, {"ranks": 4, "work": 0.1}, {"ranks": 8, "tp": 2, "straggler": 3},
     {"ranks": 8, "pp": 2, "microbatches": 2}],
)  # fmt: skip
def test_sharding_of_simulated_jobs(tmp_path: Path, shape: dict[str, Any]) -> None:
    options = JobOptions(collectives="fsdp", steps=2, layers=4, seed=5, causes=True, **shape)
    made = simulate(options, tmp_path)
    paths = [path for path, _ in made]
    ranks = [Plain(path) for path in paths]
    expected: dict[Any, Counter[str]] = defaultdict(Counter)

    def key(piece: dict[str, Any]) -> tuple[str, str] | None:
        kind = next((kind for kind in ("AllGather", "ReduceScatter") if kind in piece["name"]), None)
        return None if kind is None else (piece["args"]["Process Group Name"], kind)

    for name, pieces in together(ranks, key):
        arrival = max(float(piece["ts"]) for _, piece in pieces)
        total = expected[name]
        total["count"] += 1
        args = pieces[0][1]["args"]
        side = "Out msg nelems" if name[1] == "AllGather" else "In msg nelems"
        total["bytes"] += 2 * args[side]
        for place, piece in pieces:
            start, end = span(piece)
            total["wait"] += min(max(arrival - start, 0.0), end - start)
            total["time"] += end - start
            stood = ranks[place].exposed(piece)
            if stood > STAND_US and not ranks[place].computes_at(end) and ranks[place].continues_after(end):
                total["late"] += stood
                total["late_count"] += 1
    table: dict[Any, Counter[str]] = defaultdict(Counter)
    for row in outcome_of(paths, "sharding"):
        total = table[row.group, row.kind]
        total["count"] += row.count
        total["bytes"] += row.bytes * row.count
        total["late_count"] += row.late_count
        for name in ("wait", "time", "late"):
            total[name] += getattr(row, f"{name}_ns") / 1000
    assert table.keys() == expected.keys()
    for name, total in expected.items():
        assert (table[name]["count"], table[name]["bytes"]) == (total["count"], total["bytes"])
        assert abs(table[name]["late_count"] - total["late_count"]) <= 1 + 0.02 * total["late_count"]
        for column in ("wait", "time", "late"):
            assert table[name][column] == pytest.approx(total[column], rel=0.01, abs=20), (name, column)
    if options.work < 1:
        # the simulator knows what each kernel waited for
        gaps = [gap for _, truth in made for gap in truth["causes"]["gaps"]]
        by_gather = sum("AllGather" in gap.get("waited_for", {}).get("name", "") for gap in gaps)
        late = sum(total["late_count"] for name, total in table.items() if name[1] == "AllGather")
        assert late == pytest.approx(by_gather, rel=0.1)


@pytest.mark.slow
def test_sharding_of_a_recorded_job(shared_traces: Path) -> None:
    paths = job_at(shared_traces / "h100_8rank_modded_nanogpt", "rank*.json.gz")[:8]
    table = [row for row in outcome_of(paths, "sharding") if row.group == "0" and row.phase]  # launched while recording
    ours = {kind: [row for row in table if row.kind == kind] for kind in ("AllGather", "ReduceScatter")}
    ranks = list(map(Plain, paths))
    for kind, of_kind in ours.items():
        count, time, least, most = 0, 0.0, 0.0, 0.0
        for rank in ranks:
            records = [each["args"] for each in rank.records]  # of the operators that record collectives
            named = {args["External id"] for args in records if args.get("Process Group Name") == "0"}
            for piece in rank.kernels:
                call = rank.calls.get(piece["args"].get("correlation"))
                external = None if call is None else call["args"].get("External id")
                if kind not in piece["name"] or external not in named:
                    continue
                count, time = count + 1, time + float(piece["dur"])
                stood, end = rank.exposed(piece), span(piece)[1]
                if stood > STAND_US and not rank.computes_at(end):
                    most += stood
                    least += stood if rank.continues_after(end) else 0.0
        assert 8 * sum(row.count for row in of_kind) == count
        assert sum(row.time_ns for row in of_kind) / 1000 == pytest.approx(time, rel=0.001)
        assert 0.98 * least <= sum(row.late_ns for row in of_kind) / 1000 <= 1.02 * most


@pytest.mark.slow
def test_expert_parallelism_of_a_simulated_job(tmp_path: Path) -> None:
    paths = [path for path, _ in simulate(JobOptions(ranks=8, ep=4, steps=2, layers=2, straggler=5, seed=2), tmp_path)]
    ranks = [Plain(path) for path in paths]
    waits: dict[int, float] = defaultdict(float)
    times: dict[int, float] = defaultdict(float)
    counts: Counter[int] = Counter()
    for first in (0, 4):

        def key(piece: dict[str, Any]) -> str | None:
            return "" if "deep_ep" in piece["name"] else None

        for _, pieces in together(ranks[first : first + 4], key):
            arrival = max(float(piece["ts"]) for _, piece in pieces)
            for place, piece in pieces:
                start, end = span(piece)
                waits[first + place] += min(arrival - start, end - start)
                times[first + place] += end - start
                counts[first + place] += 1
    rows = outcome_of(paths, "expert_parallel")
    assert {row.rank for row in rows} == set(range(8))
    for row in rows:
        assert (row.count, row.received_bytes, row.received_ratio) == (counts[row.rank], None, None)
        assert row.time_ns / 1000 == pytest.approx(times[row.rank], rel=0.001)
        assert row.wait_ns / 1000 == pytest.approx(waits[row.rank], rel=0.02, abs=20)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_bytes_of_all_to_alls(tmp_path: Path, seed: int) -> None:
    """Tokens are routed at random; what each rank receives is counted while the files are written."""
    chance, count, size = random.Random(seed), 6, 4
    got = [[chance.randrange(100, 5000) * (3 if rank == seed else 1) for _ in range(count)] for rank in range(size)]
    sent = [[chance.randrange(100, 5000) for _ in range(count)] for _ in range(size)]
    paths = []
    for rank in range(size):
        events = []
        for number in range(count):
            ts = 1000.0 * (number + 1)
            args = {"Collective name": "all_to_allv", "In msg nelems": sent[rank][number], "dtype": "BFloat16",
                    "Out msg nelems": got[rank][number], "Group size": size, "Process Group Name": "7", "Seq": number,
                    "Process Group Description": "EXPERT_MODEL_PARALLEL_GROUP",
                    "Process Group Ranks": str(list(range(size)))}  # fmt: skip
            piece = kernel("ncclDevKernel_SendRecv", ts + 10 * rank, 400 - 10 * rank, correlation=number + 1)
            piece["args"] |= args
            events += [launch(ts=ts - 50, correlation=number + 1), piece,
                       event("kernel", "gemm", ts + 500, 100, 0, 9, stream=9, correlation=100 + number)]  # fmt: skip
        paths.append(write_trace(tmp_path / f"rank{rank}.json.gz", *events, rank=rank))
    rows = {row.rank: row for row in outcome_of(paths, "expert_parallel")}
    mean = sum(map(sum, got)) / size
    worst = [max(got[rank][number] for rank in range(size)) for number in range(count)]
    excess = [worst[number] * size / sum(got[rank][number] for rank in range(size)) - 1 for number in range(count)]
    for rank, row in rows.items():
        assert (row.dimension, row.count) == ("ep", count)
        assert (row.sent_bytes, row.received_bytes) == (2 * sum(sent[rank]), 2 * sum(got[rank]))
        assert row.received_ratio == pytest.approx(sum(got[rank]) / mean)
        assert row.hot_count == sum(got[rank][number] == worst[number] for number in range(count))
        assert row.imbalance_ratio == pytest.approx(sum(excess) / count)
        assert row.wait_ns / 1000 == pytest.approx(count * 10 * (size - 1 - rank), abs=1)


@pytest.mark.slow
def test_all_to_alls_of_a_recorded_job(shared_traces: Path) -> None:
    """Clocks that differ too much: the shortest duration is what moving data takes."""
    paths = job_at(shared_traces / "dlrm_8rank_v100_param" / "kineto")
    ranks = [Plain(path) for path in paths]
    pieces = [[piece for piece in rank.kernels if "SendRecv" in piece["name"]] for rank in ranks]
    assert {len(of_rank) for of_rank in pieces} == {5}
    moving = sum(min(float(of_rank[number]["dur"]) for of_rank in pieces) for number in range(5))
    for row in outcome_of(paths, "expert_parallel"):
        of_rank = pieces[row.rank]
        assert row.count == 5
        assert row.time_ns / 1000 == pytest.approx(sum(float(piece["dur"]) for piece in of_rank))
        assert row.transfer_ns / 1000 == pytest.approx(moving)
        exposed = sum(ranks[row.rank].exposed(piece) for piece in of_rank)
        assert row.exposed_ns / 1000 == pytest.approx(exposed, abs=5)
        assert row.received_bytes is None


@pytest.mark.slow
def test_all_to_alls_of_a_job_with_bytes_untold(shared_traces: Path) -> None:
    """Each rank's times are those of kernels in its file; a rank that all wait for waits for nobody itself."""
    paths = job_at(shared_traces / "v100_4rank_pair_torchrec" / "sst_long_a2a_optimizer")
    durations = [
        sorted(float(piece["dur"]) for piece in Plain(path).kernels if "SendRecv" in piece["name"]) for path in paths
    ]
    rows = {row.rank: row for row in outcome_of(paths, "expert_parallel")}
    for rank, of_rank in enumerate(durations):
        row = rows[rank]
        least, most = sum(of_rank[: row.count]), sum(of_rank[-row.count :])
        assert least - 1 <= row.time_ns / 1000 <= most + 1
        assert row.wait_ns + row.transfer_ns == row.time_ns
    assert rows[2].wait_ns == 0
    others = [rows[rank].wait_ns for rank in (0, 1, 3)]
    assert min(others) / 1000 > sum(durations[0]) - sum(durations[2]) - 5_000


# Sharded data parallelism, all-to-alls of experts, and the heat map of steps.
EXAMPLES = Path(__file__).parents[2] / "examples" / "traces"
SHARED = Path(__file__).parents[3] / "shared" / "traces"


def job(folder: Path, **options: Any) -> Answer:
    paths = [path for path, _ in simulate(JobOptions(**options), folder)]
    return answer_to(summaries_at(paths))


def test_gathers_of_fast_computation_are_late(tmp_path: Path) -> None:
    """Each layer is gathered while the one before computes: too late if that takes a tenth of the time."""
    fast = rows(job(tmp_path / "fast", ranks=4, collectives="fsdp", steps=2, work=0.1), "sharding")
    slow = rows(job(tmp_path / "slow", ranks=4, collectives="fsdp", steps=2, work=3.0), "sharding")
    for table, most in ((fast, 1.0), (slow, 0.0)):
        gathers = [row for row in table if row.kind == "AllGather"]
        assert {(row.phase, row.unit) for row in gathers} == {
            (phase, f"#{layer}") for phase in ("forward", "backward") for layer in range(4)
        }
        middle = [row for row in gathers if row.unit in ("#2", "#3") and row.phase == "forward"]
        assert {row.late_count / (4 * row.count) for row in middle} == {most}
        assert all(row.count == 2 and row.wait_ns + row.transfer_ns == row.time_ns for row in gathers)
    assert [row.late_ns for row in fast] == sorted((row.late_ns for row in fast), reverse=True)
    last = next(row for row in slow if row.kind == "ReduceScatter" and row.late_count)
    assert last.unit == "#3"  # nothing is left to hide the last reduce-scatter behind


def test_what_gathers_were_waited_for_is_what_the_device_did_not_compute(tmp_path: Path) -> None:
    result = job(tmp_path, ranks=2, collectives="fsdp", steps=2, work=0.1)
    late = sum(row.late_ns for row in rows(result, "sharding"))
    idle = sum(row.exposed_communication_ns for row in rows(result, "step_heat"))
    assert 0.5 * idle < late <= idle  # the first gather of a step delays no computation that was under way


def test_units_are_the_modules_of_recorded_ranges() -> None:
    trace = read(str(EXAMPLES / "cpu_fsdp" / "rank0.pt.trace.json.gz"))
    assert set(unit_names(trace).values()) == {"", "0", "3", "5"}
    prefetched = {name for code, name in enumerate(trace.strings) if code in unit_names(trace) and " for " in name}
    assert prefetched >= {"FSDP::backward_prefetch for 3"}


def test_memory_and_volume_of_a_sharded_optimizer() -> None:
    content = answer_to(summaries_at(job_at(SHARED / "h100_8rank_modded_nanogpt", "rank*.json.gz")))
    (row,) = rows(content, "communication_by_dimension")
    assert row.memory_ratio == pytest.approx((4 + 12 / 8) / 16)
    assert {row.phase for row in rows(content, "sharding")} == {"", "backward", "optimizer"}  # "": before the recording


def received(counts: list[list[int]]) -> list[RankSummary]:
    """Ranks that receive these bytes in successive all-to-alls."""
    summaries = []
    for rank, part in enumerate(counts):
        parts = [("ep", "AllToAll", number, 1000 * number, 1000 * number + 500) for number in range(len(part))]
        summary = made(rank, parts, sizes={"ep": len(counts)}, bytes=[100] * len(part))
        summary.tables = {"collectives": {"received": np.array(part, np.int64).tobytes()}}
        summaries.append(summary)
    return summaries


def test_hot_ranks_receive_most() -> None:
    table = rows(answer_to(received([[100, 100, 100], [100, 100, 100], [250, 40, 220]])), "expert_parallel")
    assert [row.rank for row in table] == [2, 0, 1]
    assert (table[0].received_bytes, table[0].sent_bytes) == (510, 300)
    assert table[0].received_ratio == pytest.approx(510 / 370)
    assert [row.hot_count for row in table] == [2, 0, 0]  # in the second, two receive equally much
    mean = np.mean([250 / 150, 100 / 80, 220 / 140]) - 1
    assert all(row.imbalance_ratio == pytest.approx(mean) for row in table)


def test_unknown_sizes_are_not_guessed() -> None:
    (first, *_) = rows(answer_to(received([[100, -1], [100, 100]])), "expert_parallel")
    assert first.imbalance_ratio == 0.0
    assert {row.received_bytes for row in rows(answer_to(received([[-1], [-1]])), "expert_parallel")} == {None}


def test_kernels_of_expert_parallelism_show_their_dimension(tmp_path: Path) -> None:
    # a late rank makes the groups differ: of groups without names that always end together nobody can tell how many
    result = job(tmp_path, ranks=4, ep=2, steps=2, straggler=3, straggler_factor=1.6)
    table = {row.dimension: row for row in rows(result, "parallel_dimensions")}
    assert (table["ep"].group_size, table["ep"].group_count, table["ep"].confidence) == (2, 2, "medium")
    assert {row.dimension for row in rows(result, "expert_parallel")} == {"ep"}


def test_the_heat_of_a_stalled_host(tmp_path: Path) -> None:
    result = job(tmp_path, ranks=4, steps=4, host_stall_us=8000.0, host_stall_step=2, host_stall_rank=1)
    cells = {(row.step, row.rank): row for row in rows(result, "step_heat")}
    assert len(cells) == 16
    for row in cells.values():
        assert row.compute_ns + row.exposed_communication_ns + row.exposed_memory_ns + row.idle_ns == row.wall_ns
    assert max(cells.values(), key=lambda row: row.idle_ns) is cells[2, 1]
    assert all(cells[2, rank].wait_ns > 6_000_000 for rank in (0, 2, 3))
    assert cells[2, 1].wait_ns < 1_000_000


def test_the_heat_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "MOST_CELLS", 4)
    outcome = job(tmp_path, ranks=2, steps=5).outcomes["step_heat"]
    assert [(row.step, row.rank) for row in outcome.rows] == [(0, 0), (0, 1), (4, 0), (4, 1)]
    assert [(each.code, each.count) for each in outcome.diagnostics] == [("cells_beyond_limit", 6)]
