"""Calls that wait for a device or for a queue of tasks, and calls that free memory."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from augment.analyses import queue_length, user_annotation_breakdown
from augment.core.trace import LAUNCHES, Category, Trace
from augment.diagnosis.first_calls import waiting_calls
from augment.facts.critical.longest_path import BoundBy, critical_path
from augment.facts.critical.what_if import saved_ns, without_host_time, without_work
from augment.facts.gpu.gpu_time import annotations_of_work
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.gpu.launched_work import work_operators
from augment.facts.host.queued_tasks import operators_around, queued_tasks
from augment.facts.names import starting
from augment.facts.waits.dependencies import full_queues
from augment.facts.waits.sync_dependencies import sync_calls, synchronizations, task_queues
from augment.readers import read
from metamorphic import CALLS, GPU_WORK, Document, later_from, load, real_trace, save
from metamorphic import Event as Row
from tables import Event, call, kernel, launched_kernel, rows_of, sync, trace_of


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("hipStreamSynchronize", True), ("zeEventHostSynchronize", True), ("urQueueFinish", True),
        ("urEventWait", True), ("cnrtQueueSync", True), ("urEnqueueEventsWaitWithBarrier", False),
        ("cudaStreamWaitEvent", False),
    ],
)  # fmt: skip
def test_calls_that_wait_for_devices_of_all_vendors(name: str, waits: bool) -> None:
    trace = trace_of(call("cudaLaunchKernel", 0, 1), call(name, 12, 45))
    assert trace.names_of(sync_calls(trace).row) == [name] * waits


def test_a_slice_on_a_stream_speaks_of_that_alone() -> None:
    nowhere = 2**32 - 1  # -1, as Kineto once wrote it
    trace = trace_of(
        kernel("k", 0, 5),
        call("cudaDeviceSynchronize", 8, 30),
        sync("Context Sync", 9, 30, stream=nowhere),
        sync("Context Sync", 10, 31),
        sync("Stream Wait Event", 40, 50, stream=7),
    )
    result = sync_calls(trace)
    assert trace.names_of(result.row) == ["cudaDeviceSynchronize", "Context Sync", "Context Sync", "Stream Wait Event"]
    assert result.general.tolist() == [0, 1, 2]


US = 1_000
TRACES = ("mi300_tracelens/ddp_resnet18_no_pool.json.gz", "v100_4rank_pair_torchrec/test/pid45920.pt.trace.json.gz")
FREE = re.compile(r"(cuda|hip)Free")


@pytest.mark.parametrize(("begin", "end", "name", "waits"), [
    (20, 510, "cudaFree", True),
    (20, 700, "hipFree", True),
    (20, 700, "cudaFreeAsync", False),
    (20, 2000, "cudaFree", False),  # it ended long after the work: it took its own time
    (600, 900, "cudaFree", False),  # nothing was left to wait for
])  # fmt: skip
def test_a_call_that_frees_waits_for_the_work_before(begin: int, end: int, name: str, waits: bool) -> None:
    trace = trace_of(
        *[
            *launched_kernel("gemm", (0, 5 * US), (10 * US, 500 * US), correlation=1),
            call(name, begin * US, end * US),
            call("cudaLaunchKernel", (end + 5) * US, (end + 10) * US, correlation=2),
            kernel("gemm", (end + 12) * US, (end + 20) * US, correlation=2),
        ]
    )
    path = critical_path(trace)
    spent = np.bincount(path.bound_by, path.dur, len(BoundBy)) // US
    assert (spent[BoundBy.KERNEL_COMPUTATION] >= 490) == waits
    first = saved_ns(trace, without_work(trace, np.array([0]), np.array([400 * US]))) // US
    assert (first >= 400) == waits
    assert not len(waiting_calls(trace))  # another rule speaks of calls that free


def pending(document: Document) -> list[tuple[Row, Row]]:
    """The calls that free while work runs that had been launched before, each with the last of that work to end."""
    rows = [row for row in document["traceEvents"] if row.get("ph") == "X"]
    calls = {row["args"].get("correlation"): row for row in rows if row.get("cat") in CALLS}
    work = [
        (row["ts"] + row["dur"], calls[row["args"]["correlation"]]["ts"], row)
        for row in rows
        if row.get("cat") in GPU_WORK and row["args"].get("correlation") in calls
    ]
    pairs = []
    for free in (row for row in calls.values() if FREE.fullmatch(row["name"])):
        late = [(end, row) for end, launched, row in work if launched < free["ts"] < end]
        if late:
            pairs.append((free, max(late, key=lambda each: each[0])[1]))
    return pairs


@pytest.mark.parametrize("name", TRACES)
def test_no_call_that_frees_returns_before_the_work_is_done(name: str) -> None:
    """What the rule rests on."""
    pairs = pending(load(real_trace(name)))
    assert pairs
    assert all(work["ts"] + work["dur"] <= free["ts"] + free["dur"] + 2 for free, work in pairs)


@pytest.mark.parametrize("name", TRACES)
def test_work_that_is_made_longer_is_worth_as_much_more(tmp_path: Path, name: str) -> None:
    """Metamorphic: where a call waits to free, all that follows comes later by what the work takes longer."""
    document = load(real_trace(name))
    free, awaited = max(
        (pair for pair in pending(document)),
        key=lambda pair: (pair[1]["ts"] + pair[1]["dur"] - pair[0]["ts"]) / pair[0]["dur"],
    )
    more = Decimal(40_000)
    longer = later_from(document, awaited["ts"] + awaited["dur"], awaited, more)
    saved = []
    for place, each in enumerate((document, longer)):
        trace = read(str(save(each, tmp_path / f"{place}.json")))
        work = gpu_work(trace)
        chosen = np.flatnonzero(trace.events.correlation[work.row] == awaited["args"]["correlation"])
        saved.append(saved_ns(trace, without_work(trace, chosen, work.end[chosen] - work.ts[chosen])))
    assert free["dur"] > 0
    assert saved[1] - saved[0] == pytest.approx(int(more * 1000), rel=0.02)


MAIN, TAKER, DEVICE, PROGRAM, QUEUE_CALLS = 10, 20, 800, 10, 1002
PUT_NS, WAKE_NS, NEXT_NS, LATENCY_NS, RETURN_NS = 2_000, 3_000, 500, 4_000, 2_000
BASE_NS = 1_704_161_511_420_289_000
TRACE = Path(__file__).parents[3] / "shared" / "traces" / "ascend_trace_view" / "trace_view.json.gz"
RawEvent = dict[str, Any]


def us(ns: int) -> str:
    return f"{(BASE_NS + ns) // 1000}.{(BASE_NS + ns) % 1000:03}"


def piece(name: str, start: int, end: int, pid: int, tid: int, category: str = "", **args: Any) -> RawEvent:
    event = {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": us(start), "dur": (end - start) / 1000}
    return event | {"args": args} | ({"cat": category} if category else {})


def arrow(category: str, number: int, start: int, end: int, places: Sequence[tuple[int, int]]) -> list[RawEvent]:
    both = {"cat": category, "name": "enqueue_to_dequeue" if "queue" in category else category, "id": number, "bp": "e"}
    return [
        both | {"ph": phase, "ts": us(ts), "pid": pid, "tid": tid}
        for phase, ts, (pid, tid) in zip("sf", (start, end), places, strict=True)
    ]


class Job:
    """A host that puts tasks on a queue, a thread that takes them and launches their kernels, and a device.

    ``host``, ``task`` and ``kernel``: ns, of each task: the host's time before it, its own on the thread, its
    kernel's. After the tasks in ``waits``, the host waits for the device. ``end``: when the host is done.
    """

    def __init__(self, host: Sequence[int], task: Sequence[int], kernel: Sequence[int], waits: set[int]) -> None:
        self.events: list[RawEvent] = []
        now = free = idle = 0
        for number, (host_ns, task_ns, kernel_ns) in enumerate(zip(host, task, kernel, strict=True)):
            put = now + host_ns
            self._add(piece(f"aten::op{number}", now, put + PUT_NS, PROGRAM, MAIN, "cpu_op"))
            self._add(piece("Enqueue", put, put + PUT_NS, PROGRAM, MAIN, "enqueue", correlation_id=number))
            now = put + PUT_NS
            begin = max(now + WAKE_NS, free + NEXT_NS)
            self.events += arrow("async_task_queue", number, put, begin, [(PROGRAM, MAIN), (PROGRAM, TAKER)])
            free = begin + 300 + task_ns
            self._add(piece("Dequeue@op", begin, free, PROGRAM, TAKER, "dequeue", correlation_id=number))
            self._add(piece("AscendCL@op", begin + 200, free - 100, QUEUE_CALLS, TAKER))
            launched = begin + 200 + task_ns // 2
            start = max(idle + 1_000, launched + LATENCY_NS)
            idle = start + kernel_ns
            self._add(piece(f"kernel{number}", start, idle, DEVICE, 3))
            self.events += arrow("HostToDevice", number, launched, start, [(QUEUE_CALLS, TAKER), (DEVICE, 3)])
            if number in waits:
                called = max(now, free) + 5_000
                self._add(piece("aten::item", now, max(called, idle) + RETURN_NS, PROGRAM, MAIN, "cpu_op"))
                now = max(called, idle) + RETURN_NS
                self._add(piece("AscendCL@aclrtSynchronizeStream", called, now, QUEUE_CALLS, MAIN))
        self.end = now

    def _add(self, event: RawEvent) -> None:
        self.events.append(event)

    def write(self, folder: Path) -> Trace:
        names = ((DEVICE, "Ascend Hardware"), (PROGRAM, "Python"), (QUEUE_CALLS, "CANN"))
        named = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}} for pid, name in names]
        path = folder / "trace_view.json"
        path.write_text(json.dumps(named + self.events))
        return read(str(path))


def of_calls(trace: Trace, name: str, longest: int) -> int:
    """The time saved if the calls of a name, of at least ``longest`` ns, took none."""
    events = trace.events
    rows = events.slices_of(*LAUNCHES)
    rows = rows[starting(trace, name)[events.name[rows]] & (events.dur[rows] >= longest)]
    return saved_ns(trace, without_host_time(trace, events.track[rows], events.ts[rows], events.end[rows]))


@pytest.mark.parametrize("seed", range(12))
def test_without_long_tasks_a_job_is_as_much_shorter_as_predicted(seed: int, tmp_path: Path) -> None:
    """Whoever is the slowest: the host, the thread (some tasks compile), or the device."""
    chance = random.Random(seed)
    count = 60
    host = [chance.randint(5_000, chance.choice([20_000, 200_000])) for _ in range(count)]
    task = [chance.choice([8_000, 8_000, 8_000, 700_000]) + chance.randint(0, 9_000) for _ in range(count)]
    kernel = [chance.randint(2_000, chance.choice([9_000, 300_000])) for _ in range(count)]
    waits = {chance.randrange(count) for _ in range(chance.randint(0, 3))} | {count - 1}
    job = Job(host, task, kernel, waits)
    without = Job(host, [0 if ns >= 700_000 else ns for ns in task], kernel, waits)
    trace = job.write(tmp_path)
    assert len(queued_tasks(trace)) == count
    path = critical_path(trace)
    assert path.end - path.ts[0] == job.end
    assert abs(of_calls(trace, "AscendCL@op", 690_000) - (job.end - without.end)) < 0.02 * job.end


def test_numbers_of_tasks_may_come_again(tmp_path: Path) -> None:
    """In the process of another rank, at the same time, and in a later part of the same recording."""
    job, count = Job([5_000] * 9, [8_000] * 9, [2_000] * 9, {8}), 9
    other = [event | {"pid": event["pid"] + 5_000} for event in job.events]
    later = [event | {"ts": str(Decimal(event["ts"]) + 1_000_000)} for event in job.events]
    named = {"ph": "M", "name": "process_name", "pid": PROGRAM + 5_000, "args": {"name": "Python"}}
    job.events += [*other, *later, named]
    trace = job.write(tmp_path)
    tasks, events = queued_tasks(trace), trace.events
    assert len(tasks) == 3 * count
    for put, taken in zip(tasks.put.tolist(), tasks.taken.tolist(), strict=True):
        assert trace.tracks[events.track[put]].pid == trace.tracks[events.track[taken]].pid
        assert 0 < events.ts[taken] - events.ts[put] < 1_000_000
    assert len(set(tasks.put.tolist())) == 3 * count


def test_a_host_that_waits_for_the_queue_is_no_host_that_works(tmp_path: Path) -> None:
    """The host is done early, and waits for ten tasks: nearly all of the path is theirs."""
    time = critical_path(Job([5_000] * 10, [500_000] * 10, [2_000] * 10, {9}).write(tmp_path)).time[0]
    assert time[BoundBy.RUNTIME_CALL] > 0.98 * time.sum()
    assert time[BoundBy.CPU_OPERATOR] < 0.01 * time.sum()
    time = critical_path(Job([500_000] * 10, [5_000] * 10, [2_000] * 10, {9}).write(tmp_path)).time[0]
    assert time[BoundBy.CPU_OPERATOR] > 0.98 * time.sum()


def test_work_belongs_to_the_operator_that_put_it_on_the_queue(tmp_path: Path) -> None:
    """The kernels' order is that of the operators."""
    trace = Job([20_000] * 5, [30_000] * 5, [10_000] * 5, set()).write(tmp_path)
    assert trace.names_of(work_operators(trace)) == [f"aten::op{number}" for number in range(5)]


def test_recorded_work_belongs_to_the_operator_that_put_it(tmp_path: Path) -> None:
    """Plainly, from the file: the shortest slice around the Enqueue at the other end of the task's arrow."""
    events = recorded()
    slices = [each for each in events if each.get("ph") == "X" and each.get("cat") == "cpu_op"]
    ends: dict[str, dict[Any, RawEvent]] = {"s": {}, "f": {}}
    for each in events:
        if each.get("ph") in ends and each.get("cat") == "async_task_queue":
            ends[each["ph"]][each["id"]] = each
    expected = {}
    for number, taken in ends["f"].items():
        put = ends["s"][number]
        at = Decimal(str(put["ts"]))
        around = [
            each
            for each in slices
            if each["tid"] == put["tid"]
            and not each["name"].startswith("Enqueue")
            and Decimal(str(each["ts"])) <= at < Decimal(str(each["ts"])) + Decimal(str(each["dur"]))
        ]
        expected[str(taken["ts"])] = min(around, key=lambda each: Decimal(str(each["dur"])))["name"]
    trace = read(str(TRACE))
    taken = queued_tasks(trace).taken
    operators = trace.names_of(operators_around(trace, taken))
    assert len(operators) == len(expected) > 100
    order = [expected[key] for key in sorted(expected, key=Decimal)]
    assert operators == order
    assert not any(
        name.startswith("Dequeue") for name in trace.names_of(work_operators(trace)[work_operators(trace) >= 0])
    )


def test_tasks_without_arrows_depend_on_nothing_known(tmp_path: Path) -> None:
    job = Job([5_000] * 4, [50_000] * 4, [2_000] * 4, {3})
    job.events = [event for event in job.events if event.get("cat") != "async_task_queue"]
    trace = job.write(tmp_path)
    assert not len(queued_tasks(trace))
    assert not len(task_queues(trace).dependencies)


def recorded() -> list[RawEvent]:
    if not TRACE.exists():
        pytest.skip("the recorded traces are not at hand")
    events: list[RawEvent] = json.loads(gzip.decompress(TRACE.read_bytes()), parse_float=Decimal)
    return events


def test_the_recorded_path_is_that_of_the_file() -> None:
    """By the file's JSON: before the host waits for the device, the thread was busy with tasks, each of which had been
    put before the one before it was done, back to one that it had to wait for. The path goes along these tasks."""
    events = recorded()

    def spans(name: str) -> dict[int, tuple[int, int]]:
        pieces = (event for event in events if event["ph"] == "X" and event["name"].startswith(name))
        return {
            int(piece["args"]["correlation_id"]): (int(Decimal(piece["ts"]) * 1000), int(Decimal(piece["dur"]) * 1000))
            for piece in pieces
        }

    put, taken = spans("Enqueue"), spans("Dequeue@")
    assert put.keys() == taken.keys()
    trace, path = read(str(TRACE)), critical_path(read(str(TRACE)))
    lane = trace.events.track[queued_tasks(trace).taken[0]]
    on_thread = np.array([row >= 0 and trace.events.track[row] == lane for row in path.row.tolist()])
    order = sorted(taken, key=lambda number: taken[number][0])
    for wait in ("AscendCL@aclrtSynchronizeStreamWithTimeout", "AscendCL@aclrtSynchronizeDevice"):
        called = next(int(Decimal(event["ts"]) * 1000) for event in events if event["name"] == wait)
        last = max(index for index, number in enumerate(order) if taken[number][0] < called)
        while wait.endswith("Timeout") and sum(taken[order[last]]) > path.ts[on_thread][-1]:
            last -= 1  # the end of the path is that of the device
        first = last
        while sum(put[order[first]]) <= sum(taken[order[first - 1]]):
            first -= 1
        until = sum(taken[order[last]]) - 50_000
        busy = sum(min(sum(taken[number]), until) - taken[number][0] for number in order[first : last + 1])
        assert busy > 2_000_000
        inside = (path.ts >= taken[order[first]][0]) & (path.ts < until)
        assert abs(int(path.dur[inside & on_thread].sum()) - busy) < 0.02 * busy, wait


def test_other_units_numbers_and_order_change_nothing(tmp_path: Path) -> None:
    """All times twice as long, other threads and processes, the file's events in another order."""
    events = recorded()
    first = min(Decimal(event["ts"]) for event in events if "ts" in event)
    others = {pid: 5_000 + place for place, pid in enumerate(sorted({event["pid"] for event in events}))}
    threads = {tid: 70_000 + place for place, tid in enumerate(sorted({e["tid"] for e in events if "tid" in e}))}
    changed = []
    for event in events:
        again = event | {"pid": others[event["pid"]]}
        if "tid" in event:
            again["tid"] = threads[event["tid"]]
        if "ts" in event:
            again["ts"] = str(first + 2 * (Decimal(event["ts"]) - first))
        if "dur" in event:
            again["dur"] = 2 * event["dur"]
        changed.append(again)
    random.Random(1).shuffle(changed)
    path = tmp_path / "trace_view.json"
    text = json.dumps([event | ({"dur": float(event["dur"])} if "dur" in event else {}) for event in changed])
    path.write_text(text)
    before, after = critical_path(read(str(TRACE))).time[0], critical_path(read(str(path))).time[0]
    for kind in (BoundBy.CPU_OPERATOR, BoundBy.RUNTIME_CALL, BoundBy.DATA_LOADING, BoundBy.THREAD_HANDOVER):
        assert abs(int(after[kind]) - 2 * int(before[kind])) <= 0.01 * after.sum(), kind


COUNT = 200


class Counted(str):
    """The name of a stream or device that counts how often it is compared with another."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other) is True

    __hash__ = str.__hash__


def many_streams() -> Trace:
    """Work, an annotation and a call that waits for it, of each of many streams."""
    events: list[Event] = [call("cudaLaunchKernel", 0, 1, correlation=1)]
    for i in range(COUNT):
        stream, ts = Counted(f"s{i}"), 10 * i
        work = kernel("k", ts, ts + 5, stream=stream, correlation=2 * i + 1)
        note = replace(work, category=Category.GPU_USER_ANNOTATION, name="note", correlation=-1)
        output = replace(sync("Stream Sync", ts + 5, ts + 7, correlation=2 * i + 2), track=work.track)
        events += [work, note, call("cudaStreamSynchronize", ts + 5, ts + 8, correlation=2 * i + 2), output]
    return trace_of(*events)


def many_devices() -> Trace:
    """An annotation of each of many devices."""
    work = [kernel("k", 10 * i, 10 * i + 5, device=Counted(f"d{i}")) for i in range(COUNT)]
    return trace_of(*(replace(each, category=Category.GPU_USER_ANNOTATION, name="note") for each in work))


def waits(trace: Trace) -> int:
    return len(synchronizations(trace).dependencies)


@pytest.mark.parametrize(("make", "ask"), [
    (many_streams, waits),
    (many_streams, lambda trace: (annotations_of_work(trace, include_steps=False) >= 0).sum()),
    (many_devices, lambda trace: len(user_annotation_breakdown.analyze(trace).rows)),
])  # fmt: skip
def test_not_compared_with_each_other(make: Callable[[], Trace], ask: Callable[[Trace], int]) -> None:
    trace = make()
    Counted.compared = 0
    assert ask(trace) == COUNT
    assert Counted.compared < 20 * COUNT  # pairs would be COUNT / 2 times COUNT


DEPTH = 1022  #: pieces of work that wait, of a queue of CUDA


def queued_run(kernels: int, kernel_us: int, others: int) -> list[Event]:
    """Launches of 5 µs onto a queue with room for ``DEPTH - others`` kernels, which run one after the other."""
    events, starts, ready = [], list[int](), 0
    for number in range(kernels):
        returned = ready + 5 * US
        if number >= DEPTH - others:
            returned = max(returned, starts[number - (DEPTH - others)] + 4 * US)
        starts.append(max(returned, starts[-1] + kernel_us * US if starts else 0))
        events.append(call("cudaLaunchKernel", ready, returned, correlation=number + 1))
        events.append(kernel("gemm", starts[-1], starts[-1] + kernel_us * US, correlation=number + 1))
        ready = returned + 5 * US
    return events


@pytest.mark.parametrize("others", [0, 400])  # event records and the like, which are in no trace
def test_a_launch_onto_a_full_queue_waits_for_room(others: int) -> None:
    kernels = 2500
    slow, fast = (queued_run(kernels, kernel_us, others) for kernel_us in (100, 50))
    trace = trace_of(*slow)
    waiting = sum(event.end - event.ts >= 50 * US for event in slow[::2])
    assert waiting > 1000
    assert len(full_queues(trace).dependencies) == pytest.approx(waiting, abs=2)
    ((full_ns, room_wait_ns),) = rows_of(queue_length.analyze(trace), "full_queue_ns", "room_wait_ns")
    assert full_ns == 0
    lasting = [event.end - event.ts for event in slow[::2] if event.end - event.ts >= 50 * US]
    assert room_wait_ns == pytest.approx(sum(lasting), rel=0.01)
    faster = without_work(trace, np.arange(kernels), np.full(kernels, 50 * US))
    saved = max(event.end for event in slow) - max(event.end for event in fast)
    assert saved_ns(trace, faster) == pytest.approx(saved, rel=0.01)


def test_a_long_launch_onto_a_short_queue_is_the_hosts() -> None:
    events = queued_run(400, 100, 0)
    last = max(event.end for event in events[::2])
    trace = trace_of(*events, call("cudaLaunchKernel", last, last + 500 * US, correlation=9000),
                     kernel("gemm", 60_000 * US, 60_100 * US, correlation=9000))  # fmt: skip
    assert not len(full_queues(trace).dependencies)


FULL = (
    "hta_ns_resolution/rank-0.ns_resolution.pt.trace.json.gz",
    "h100_rank0_pair_modded_nanogpt/control_current_rank0.json.gz",
)


@pytest.mark.parametrize("name", FULL)
def test_recorded_launches_onto_a_full_queue(name: str) -> None:
    """Plain counting: nearly all long launches with over a thousand pieces of work before them are such waits."""
    rows = [row for row in load(real_trace(Path(name)))["traceEvents"] if row.get("ph") == "X"]
    calls = {row["args"].get("correlation"): row for row in rows if row.get("cat") in CALLS}
    by_stream: dict[object, list[tuple[float, float, float]]] = {}
    for row in rows:
        if row.get("cat") in GPU_WORK and (launch := calls.get(row["args"].get("correlation"))):
            launched = float(launch["ts"]), float(launch["dur"]), float(row["ts"])
            by_stream.setdefault(row["args"]["stream"], []).append(launched)
    long = 0
    for work in by_stream.values():
        starts = np.sort([start for _, _, start in work])
        for number, (begun, dur, _) in enumerate(sorted(work)):
            long += dur > 100 and number - np.searchsorted(starts, begun) > 1000
    waits = full_queues(read(str(real_trace(Path(name)))))
    lasting = int((waits.end - waits.start > 100 * US).sum())
    assert long > 20
    assert lasting >= 0.95 * long
