"""A job whose ranks all wait for calls of the runtime is told which: simulated, changed, and recorded by plain sums."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import truth
from test_first_launches import chosen, longer
from test_fixed_on_all_ranks import answered, simulated, written

from augment import augment, read
from augment.core.text import percent
from augment.diagnosis.judging import measure
from augment.facts.collectives.rank_progress import HostWaits, host_gaps
from augment.facts.critical.handovers import main_track
from augment.job.answer import Answer, answer
from augment.job.rank_answers import cures, rank_answer
from augment.job.ranks import summarize
from metamorphic import GPU_WORK, Document, load, real_trace, save
from simulator import JobOptions, simulate
from tables import call, kernel, op, trace_of

JOB = JobOptions(ranks=4, steps=4, layers=3, work=0.15, faults=("mallocs",))
MEMORY = ("cudaMalloc, cudaFree and the like", "memory")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[Document]:
    """The ranks of a job whose layers ask for memory."""
    return [load(path) for path, _ in simulate(JOB, tmp_path_factory.mktemp("job"))]


def said_of(documents: list[Document], folder: Path) -> Answer:
    paths = [save(each, folder / f"rank{number}.json") for number, each in enumerate(documents)]
    return answer([summarize(augment(read(str(path)), only=["diagnosis"])) for path in paths], [p.name for p in paths])


def renamed(document: Document, name: str) -> Document:
    rows = [each | {"name": name} if each["name"] == "cudaMalloc" else each for each in document["traceEvents"]]
    return document | {"traceEvents": [each for each in rows if each["name"]]}


def test_all_ranks_wait_for_memory(recorded: list[Document], tmp_path: Path) -> None:
    result = said_of(recorded, tmp_path)
    (row,) = result.verdict.rows
    shared = result.judgement.shared
    assert (row.cause, shared.reason.doing) == ("shared", MEMORY)
    assert row.gain_ns in {each.gain_ns for each in result.outcomes["job_what_if"].rows}
    assert "in calls of cudaMalloc, cudaFree and the like" in result.verdict.text[0]
    cured = read(str(simulate(replace(JOB, faults=(), write_ranks=(0,)), tmp_path / "cured")[0][0]))
    true = 1 - measure(cured).length_ns / measure(read(str(tmp_path / "rank0.json"))).length_ns
    assert (row.gain_ns or 0) / result.judgement.recorded_ns == pytest.approx(true, abs=0.05)
    (finding,) = (each for each in rank_answer(result, 1).rows if each["rule"] == "allocator_calls")
    assert finding["saved_ns"] == shared.gain_ns, "a rank promises what its job gains"


@pytest.mark.parametrize(("fault", "rule"), [("mallocs", "allocator_calls"), ("pauses", "host_gaps")])
@pytest.mark.parametrize("work", [0.3, 1.0])
def test_ranks_that_wait_for_a_late_one_promise_what_the_job_gains(
    fault: str, rule: str, work: float, tmp_path: Path
) -> None:
    """All have the fault, and rank 1 a slow device: what all wait for alike is promised by each, as re-simulated; what
    little the fault costs beside the slow device is promised by no rank that waits for that."""
    slow = replace(JOB, work=work, faults=(fault,), straggler=1, straggler_factor=2.0)
    result, cured = (
        said_of([load(path) for path, _ in simulate(options, tmp_path / "made")], tmp_path)
        for options in (slow, replace(slow, faults=()))
    )
    of_step = [each.judgement.recorded_ns / each.judgement.step_count for each in (result, cured)]
    for member in (0, 2, 3):
        (finding,) = (each for each in rank_answer(result, member).rows if each["rule"] == rule)
        promised = (finding["saved_ns"] or 0) / of_step[0]
        assert promised == pytest.approx(1 - of_step[1] / of_step[0], abs=0.03)


@pytest.mark.parametrize(("name", "doing"), [
    ("hipMalloc", ("hipMalloc, hipFree and the like", "memory")),
    ("cudaLaunchKernel", ("cudaLaunchKernel", "call")),
    ("cudaStreamSynchronize", ("aten::empty", "operator")),  # a wait is no long call
    ("", ("aten::empty", "operator")),  # the calls were not recorded
])  # fmt: skip
def test_other_calls_are_named_by_what_they_are(
    name: str, doing: tuple[str, str], recorded: list[Document], tmp_path: Path
) -> None:
    """Metamorphic: the same times by another name."""
    shared = said_of([renamed(each, name) for each in recorded], tmp_path).judgement.shared
    assert shared.reason.doing == doing


def test_memory_is_blamed_unless_it_takes_the_peers_longer(tmp_path: Path) -> None:
    """Metamorphic: a rank that alone asks for memory; then its peers do so for twice as long, hidden by their waits."""
    if not truth.GENERATOR.exists():
        pytest.skip(f"no generator at {truth.GENERATOR}")
    world = truth.drawn("ddp", 1301, {"ranks": 4}).world({"malloc": 3000}, [2])
    for rank in world.ranks:
        rank.write(str(tmp_path / f"{rank.r}.json"))
    documents = [load(tmp_path / f"{rank.r}.json") for rank in world.ranks]
    calls = [each for each in documents[2]["traceEvents"] if each.get("name") == "cudaMalloc"]
    more = [[{**each, "pid": 9, "tid": 9, "dur": 2 * each["dur"], "args": {}} for each in calls], []]
    asking = [each | {"traceEvents": each["traceEvents"] + more[rank == 2]} for rank, each in enumerate(documents)]
    for jobs, where in ((documents, "memory"), (asking, "")):
        (row,) = said_of(jobs, tmp_path).verdict.rows
        assert (row.rank, row.cause, row.figures["where"]) == (2, "host", where)


@pytest.mark.parametrize("seed", [2201, 2311])
def test_a_rank_whose_peers_load_as_slowly_is_not_late(seed: int) -> None:
    """Ranks that wait for another one hide how slow their own workers are; promises are beside a re-simulation."""
    if not truth.GENERATOR.exists():
        pytest.skip(f"no generator at {truth.GENERATOR}")
    said = truth.outcome("ddp: all loaders", seed)
    assert said.is_named
    assert not said.stray
    assert max(abs(promised - true) for _, promised, true in said.errors) < 0.02


@pytest.mark.parametrize("seed", [7002, 7404])
def test_a_late_loader_is_a_limit_where_its_peers_may_load_as_slowly(seed: int, tmp_path: Path) -> None:
    """Truth: the loaders of both ranks are slow, and one of them always waits for the other, so that nothing shows
    it. Metamorphic: peers without loaders have nothing to hide."""
    if not truth.GENERATOR.exists():
        pytest.skip(f"no generator at {truth.GENERATOR}")
    kind = truth.KINDS["ddp: all loaders"]
    work = truth.drawn("ddp", seed, kind.work)
    chance = np.random.default_rng([seed, *b"ddp: all loaders"])
    fault = kind.draw(chance, truth.length(work.world({}, None)))
    world = work.world(fault, None)
    documents = [load(path) for path in written(world, tmp_path)]
    result = said_of(documents, tmp_path)
    (row,) = result.verdict.rows
    true = 1 - truth.length(work.world(fault, [1 - row.rank])) / truth.length(world)
    promised = row.gain_ns / result.judgement.recorded_ns
    assert true < promised / 2
    assert result.verdict.text[0].endswith(f" (-{percent(promised)}), if data loaders keep up.")
    assert result.judgement.label == f"Rank {row.rank} is late (a fix saves up to {percent(promised)})"
    for member, rules in ((row.rank, ("straggling_rank", "data_loading")), (1 - row.rank, ("straggling_rank",))):
        rows = {each["rule"]: each for each in rank_answer(result, member).rows}
        assert all(rows[rule]["at_most"] and "would save up to " in rows[rule]["title"] for rule in rules)
    peer = documents[1 - row.rank]
    peer["traceEvents"] = [each for each in peer["traceEvents"] if "DataLoader" not in str(each.get("name"))]
    alone = said_of(documents, tmp_path)
    assert alone.verdict.text[0].endswith(f" (-{percent(promised)}).")
    assert alone.judgement.label == f"Rank {row.rank} is late (a fix saves {percent(promised)})"


def test_a_slow_device_hides_a_loader_of_its_peer(tmp_path: Path) -> None:
    """Truth: the loader of the rank that waits is the limit once the device is as fast as its own."""
    loads = {"loader": ("multi", 23_500.0)}
    worlds = [simulated("ddp", 63, {0: first, 1: loads}, ranks=2) for first in ({"throttle": 1.27}, {})]
    result = answered(written(worlds[0], tmp_path))
    (row,) = result.verdict.rows
    true = 1 - truth.length(worlds[1]) / truth.length(worlds[0])
    promised = row.gain_ns / result.judgement.recorded_ns
    assert (row.rank, row.cause) == (0, "compute")
    assert true < promised - 0.03
    assert result.verdict.text[0].endswith(f" (-{percent(promised)}), if data loaders keep up.")


def plainly(document: Document) -> list[tuple[int, int, int]]:
    """Each gap of the device until the launch of its next work: start, end, and how much of it is in calls for memory
    of the thread of that launch, ns."""
    rows = [each | {"from": int(each["ts"] * 1000), "to": int((each["ts"] + each["dur"]) * 1000)}
            for each in document["traceEvents"] if each.get("ph") == "X"]  # fmt: skip
    work = sorted((each for each in rows if each.get("cat") in GPU_WORK), key=lambda each: each["from"])
    calls = [each for each in rows if each.get("cat") == "cuda_runtime"]
    of_work: dict[Any, Document] = {each["args"].get("correlation"): each for each in calls}
    asking = [each for each in calls if each["name"] in ("cudaMalloc", "cudaFree")]
    gaps, free = [], work[0]["to"]
    for each in work:
        launch = of_work.get(each["args"].get("correlation"))
        if launch is not None and (end := min(launch["to"], each["from"])) > free:
            inside = [call for call in asking if call["tid"] == launch["tid"]]
            spent = sum(max(min(call["to"], end) - max(call["from"], free), 0) for call in inside)
            gaps.append((free, end, spent))
        free = max(free, each["to"])
    return gaps


@pytest.mark.parametrize("name", ["control/pid44239.pt.trace.json.gz", "test/pid45922.pt.trace.json.gz"])
def test_recorded_waits_for_memory(name: str) -> None:
    path = real_trace(f"v100_4rank_pair_torchrec/{name}")
    trace = read(str(path))
    waits: HostWaits = host_gaps(trace, main_track(trace))
    base = int(trace.events.ts.min()) - min(
        int(each["ts"] * 1000) for each in load(path)["traceEvents"] if "ts" in each
    )
    told_memory = {
        (start, end): code >= 0 and waits.doings[code] == MEMORY
        for start, end, code in zip(waits.start.tolist(), waits.end.tolist(), waits.doing.tolist(), strict=True)
    }
    compared = 0
    for start, end, in_memory in plainly(load(path)):
        if end - start >= 1_000_000 and (start + base, end + base) in told_memory:
            assert told_memory[start + base, end + base] == (2 * in_memory >= end - start)
            compared += 1
    assert compared >= 5
    assert sum(told_memory.values()) >= 3


@pytest.mark.parametrize(("share", "named"), [(0.6, "aten::add"), (0.3, "aten::split")])
def test_a_wait_is_in_what_holds_most_of_it(share: float, named: str) -> None:
    """By hand: the host is in a split of views, of which one kind has that share of the time."""
    first = [call("cudaLaunchKernel", 0, 10_000, correlation=1), kernel("gemm", 20_000, 30_000, correlation=1)]
    views, at = [], 50_000
    for number in range(40):
        name = "aten::add" if number < 40 * share else f"aten::view_{number % 3}"
        views.append(op(name, at, at + 900_000))
        at += 1_000_000
    launch = call("cudaLaunchKernel", at, at + 10_000, correlation=2)
    last = kernel("gemm", at + 20_000, at + 30_000, correlation=2)
    trace = trace_of(*first, op("aten::split", 40_000, at), *views, launch, last)
    waits = host_gaps(trace, main_track(trace))
    (longest,) = np.flatnonzero(waits.end - waits.start > 1_000_000)
    assert waits.doings[int(waits.doing[longest])] == (named, "operator")


@pytest.mark.parametrize(
    "name", ["control/pid44239.pt.trace.json.gz", "sst_long_a2a_optimizer/pid21149.pt.trace.json.gz"]
)
def test_recorded_waits_are_in_what_holds_most_of_them(name: str) -> None:
    """Plainly: slices of that name hold most of the wait, or none of any name does but what encloses all."""
    path = real_trace(f"v100_4rank_pair_torchrec/{name}")
    trace, document = read(str(path)), load(path)
    waits: HostWaits = host_gaps(trace, main_track(trace))
    timed = [each for each in document["traceEvents"] if "ts" in each]
    base = int(trace.events.ts.min()) - min(int(each["ts"] * 1000) for each in timed)
    slices = [each for each in timed if each.get("cat") in ("cpu_op", "user_annotation") and "dur" in each]
    compared = 0
    for start, end, code in zip(waits.start.tolist(), waits.end.tolist(), waits.doing.tolist(), strict=True):
        if end - start < 1_000_000 or code < 0 or waits.doings[code][1] not in ("operator", "annotation"):
            continue
        held: dict[str, int] = {}
        for thread in {each["tid"] for each in slices}:
            of_thread: dict[str, list[tuple[int, int]]] = {}
            for each in slices:
                begin, stop = int(each["ts"] * 1000) + base, int((each["ts"] + each["dur"]) * 1000) + base
                if each["tid"] == thread and begin < end and stop > start:
                    of_thread.setdefault(each["name"], []).append((max(begin, start), min(stop, end)))
            for what, parts in of_thread.items():
                reached, ns = start, 0
                for begin, stop in sorted(parts):
                    ns += max(stop - max(begin, reached), 0)
                    reached = max(reached, stop)
                held[what] = max(held.get(what, 0), ns)
        mostly = {what for what, ns in held.items() if 2.02 * ns >= end - start and not what.startswith("ProfilerStep")}
        assert not mostly or waits.doings[code][0] in mostly
        compared += 1
    assert compared


def test_first_launches_of_all_ranks_are_told_beside_the_late_one(tmp_path: Path) -> None:
    """Metamorphic: one first launch of each rank takes 60 ms longer. A rank says so as it does alone, the job for all,
    and who is late, and by how much, stays."""
    job = replace(JOB, faults=(), ranks=2, steps=2, work=0.05, host_stall_us=20_000.0, host_stall_rank=1)
    documents = [load(path) for path, _ in simulate(job, tmp_path)]
    slower = [longer(each, chosen(each, is_first=True), 60_000) for each in documents]
    before, after = said_of(documents, tmp_path), said_of(slower, tmp_path)
    assert [row.rank for row in before.verdict.rows] == [1]
    late_ns = [[row.charged_ns for row in each.verdict.rows if row.rank == 1] for each in (before, after)]
    assert late_ns[1] == pytest.approx(late_ns[0], rel=0.01)
    said = "The first launch of a kernel, which loads it, holds up the host"
    assert not any(said in each for each in cures(before))
    assert cures(after)[-1].startswith(f"Possible, by the own traces of 2 of 2 ranks: {said}")
    assert [sum(said in each for each in rank_answer(after, member).verdict) for member in range(2)] == [1, 1]
    alike = simulate(replace(JOB, faults=(), ranks=2, steps=2, work=0.05), tmp_path / "alike")
    documents = [longer(each, chosen(each, is_first=True), 60_000) for each in (load(path) for path, _ in alike)]
    (row,) = said_of(documents, tmp_path).verdict.rows  # all ranks wait for what may be mere loading: no promise
    assert (row.cause, row.gain_ns, row.confidence) == ("shared", None, "low")
