"""The queue of PyTorch for Ascend: simulated jobs against what becomes of them, a recorded trace against its file."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from augment.core.trace import LAUNCHES, Trace
from augment.facts.critical.critical_path import BoundBy, critical_path
from augment.facts.critical.what_if import saved_ns, without_host_time
from augment.facts.gpu.launched_work import work_operators
from augment.facts.host.queued_tasks import operators_around, queued_tasks
from augment.facts.names.matching import starting
from augment.facts.waits.sync_dependencies import task_queues
from augment.readers import read

MAIN, TAKER, DEVICE, PROGRAM, CALLS = 10, 20, 800, 10, 1002
PUT_NS, WAKE_NS, NEXT_NS, LATENCY_NS, RETURN_NS = 2_000, 3_000, 500, 4_000, 2_000
BASE_NS = 1_704_161_511_420_289_000
TRACE = Path(__file__).parents[3] / "shared" / "traces" / "ascend_trace_view" / "trace_view.json.gz"
Event = dict[str, Any]


def us(ns: int) -> str:
    return f"{(BASE_NS + ns) // 1000}.{(BASE_NS + ns) % 1000:03}"


def piece(name: str, start: int, end: int, pid: int, tid: int, category: str = "", **args: Any) -> Event:
    event = {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": us(start), "dur": (end - start) / 1000}
    return event | {"args": args} | ({"cat": category} if category else {})


def arrow(category: str, number: int, start: int, end: int, places: Sequence[tuple[int, int]]) -> list[Event]:
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
        self.events: list[Event] = []
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
            self._add(piece("AscendCL@op", begin + 200, free - 100, CALLS, TAKER))
            launched = begin + 200 + task_ns // 2
            start = max(idle + 1_000, launched + LATENCY_NS)
            idle = start + kernel_ns
            self._add(piece(f"kernel{number}", start, idle, DEVICE, 3))
            self.events += arrow("HostToDevice", number, launched, start, [(CALLS, TAKER), (DEVICE, 3)])
            if number in waits:
                called = max(now, free) + 5_000
                self._add(piece("aten::item", now, max(called, idle) + RETURN_NS, PROGRAM, MAIN, "cpu_op"))
                now = max(called, idle) + RETURN_NS
                self._add(piece("AscendCL@aclrtSynchronizeStream", called, now, CALLS, MAIN))
        self.end = now

    def _add(self, event: Event) -> None:
        self.events.append(event)

    def write(self, folder: Path) -> Trace:
        names = ((DEVICE, "Ascend Hardware"), (PROGRAM, "Python"), (CALLS, "CANN"))
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
    predicted = of_calls(trace, "AscendCL@op", 690_000)
    assert abs(predicted - (job.end - without.end)) < 0.02 * job.end


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
    trace = Job([5_000] * 10, [500_000] * 10, [2_000] * 10, {9}).write(tmp_path)
    time = critical_path(trace).time[0]
    assert time[BoundBy.RUNTIME_CALL] > 0.98 * time.sum()
    assert time[BoundBy.CPU_OPERATOR] < 0.01 * time.sum()
    late = Job([500_000] * 10, [5_000] * 10, [2_000] * 10, {9}).write(tmp_path)
    time = critical_path(late).time[0]
    assert time[BoundBy.CPU_OPERATOR] > 0.98 * time.sum()


def test_work_belongs_to_the_operator_that_put_it_on_the_queue(tmp_path: Path) -> None:
    """The kernels' order is that of the operators."""
    job = Job([20_000] * 5, [30_000] * 5, [10_000] * 5, set())
    trace = job.write(tmp_path)
    assert trace.names_of(work_operators(trace)) == [f"aten::op{number}" for number in range(5)]


def test_recorded_work_belongs_to_the_operator_that_put_it(tmp_path: Path) -> None:
    """Plainly, from the file: the shortest slice around the Enqueue at the other end of the task's arrow."""
    events = recorded()
    slices = [each for each in events if each.get("ph") == "X" and each.get("cat") == "cpu_op"]
    ends: dict[str, dict[Any, Event]] = {"s": {}, "f": {}}
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


def recorded() -> list[Event]:
    if not TRACE.exists():
        pytest.skip("the recorded traces are not at hand")
    events: list[Event] = json.loads(gzip.decompress(TRACE.read_bytes()), parse_float=Decimal)
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
