"""The critical path where the host is ahead: simulated truth, real traces read by plain Python, what a cut moves."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from math import ceil, floor
from pathlib import Path
from typing import Any

import pytest

from augment.analyses import critical_path
from augment.readers import read
from metamorphic import CALLS, Document, load, save, without_first_launches, without_first_ns
from metamorphic import GPU_WORK as WORK
from simulator import JobOptions, simulate
from tables import slices_of

pytestmark = pytest.mark.slow

LATENCY_NS = 30_000

#: what the simulator's path consists of, in our words
RESOURCES = {
    "host": ("cpu_operator", "runtime_call", "data_loading", "outside_operators", "thread_handover"),
    "launch_latency": ("launch_delay",),
    "kernel": ("kernel_computation",),
    "collective": ("kernel_communication",),
    "copy": ("kernel_memory",),
    "pause": ("kernel_gap",),
    "wait": ("sync",),
}
JOBS: dict[str, dict[str, Any]] = {
    "waits": {},
    "runs ahead": {"run_ahead": 2},
    "never waits": {"sync_every": 0, "record_from": (1.5, 2.3)},
    "small kernels": {"sync_every": 0, "record_from": (1.5,), "work": 0.25},
    "sharded": {"run_ahead": 3, "collectives": "fsdp", "record_from": (2.4,), "step_jitter": 0.1},
    "side streams": {"run_ahead": 2, "side_streams": 2, "record_from": (2.5,)},
    "crossing slices": {"run_ahead": 2, "cross_ns": 1, "cross_every": 3, "record_from": (1.2,)},
    "host bound": {"work": 0.02, "sync_every": 0, "record_from": (1.5,)},
}
#: GPU busy for more than 95 % of its time, and no step that waits for it
BACKLOGS = (
    "h100_rank0_pair_modded_nanogpt/test_hook_rank0.json.gz",
    "h100_rank0_pair_modded_nanogpt/control_current_rank0.json.gz",
    "h100_8rank_modded_nanogpt/rank4.json.gz",
    "h100_8rank_modded_nanogpt/rank5.json.gz",
    "rtx3060_luatil/trace_04.json.gz",
    "mi300_tracelens/resnet_act_checkpoint_rank0of8.json.gz",
)
OTHERS = (
    "hta_nccl/nccl_data.json.gz",
    "hta_cuda_sync/alexnet.json.gz",
    "hta_ns_resolution/rank-0.ns_resolution.pt.trace.json.gz",
    "pairs_h100_vs_mi300_tracelens/bert_small_mi300.json.gz",
    "h100_8rank_modded_nanogpt/rank1.json.gz",
)


def slices(document: Document, *categories: str) -> list[dict[str, Any]]:
    """Its slices of these categories, with ``start`` and ``stop`` in ns, in the order of time."""
    base, result = int(document.get("baseTimeNanoseconds") or 0), []
    for event in document["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in categories:
            start = int(event["ts"] * 1000) + base
            result.append({**event, "start": start, "stop": start + int(event["dur"] * 1000)})
    return sorted(result, key=lambda item: item["start"])


def drawn(path: Path) -> list[dict[str, Any]]:
    """The path's slices, as drawn."""
    findings = critical_path.analyze(read(str(path)))
    track = findings.annotations[0]
    return slices_of(track)


def covered(intervals: list[tuple[int, int]], start: int, stop: int) -> int:
    """How long ascending intervals cover of a time."""
    ns, until = 0, start
    for first, last in intervals:
        begin, end = max(first, until), min(last, stop)
        ns += max(0, end - begin)
        until = max(until, end)
    return ns


def check_launch_delays(path: Path, pieces: list[dict[str, Any]]) -> None:
    """No launch is waited for while its stream is at work."""
    document = load(path)
    streams, of_launch = defaultdict(list), defaultdict(list)
    for slice_ in slices(document, *WORK):
        args = slice_["args"]
        streams[slice_["pid"], args.get("stream", slice_["tid"])].append((slice_["start"], slice_["stop"]))
        of_launch[args.get("correlation")].append(slice_)
    begun: dict[int, int] = {}  # of a delay that steps cut
    for piece in pieces:
        if piece["name"] != "launch_delay":
            begun.clear()
            continue
        stop = piece["ts"] + piece["dur"]
        start = begun.setdefault(piece["correlation"], piece["ts"])
        for part in of_launch[piece["correlation"]]:
            if part["start"] == stop and stop - start > LATENCY_NS:
                index = streams[part["pid"], part["args"].get("stream", part["tid"])]
                assert covered(index[: bisect_left(index, (stop, 0))], start, stop) <= LATENCY_NS, piece


@pytest.mark.parametrize("name", [*BACKLOGS, *OTHERS])
def test_no_launch_is_waited_for_while_its_stream_is_at_work(shared_traces: Path, name: str) -> None:
    pieces = drawn(shared_traces / name)
    check_launch_delays(shared_traces / name, pieces)
    assert all("source" in piece for piece in pieces if piece["name"] == "outside_operators")


@pytest.mark.parametrize("name", BACKLOGS)
def test_a_busy_device_is_on_the_path_as_long_as_it_is_busy(shared_traces: Path, name: str) -> None:
    work = [(trace["start"], trace["stop"]) for trace in slices(load(shared_traces / name), *WORK)]
    start, stop = work[0][0], max(end for _, end in work)
    busy = covered(work, start, stop) / (stop - start)
    assert busy > 0.95
    ran = [row for row in drawn(shared_traces / name) if row["name"].startswith("kernel_c") or "memory" in row["name"]]
    on_path = sum(each["dur"] for each in ran) / (stop - start)
    assert on_path == pytest.approx(busy, abs=0.05)


@pytest.mark.parametrize("job", JOBS)
def test_the_path_is_the_simulators(job: str, tmp_path: Path) -> None:
    """Also by clocks of whole microseconds, by which work begins before the work that it follows has ended."""
    for path, truth in simulate(JobOptions(steps=6, layers=2, causes=True, **JOBS[job]), tmp_path):
        shares = truth["causes"]["path_shares"]
        shares["wait"] = shares.pop("wake", 0) + shares.pop("event", 0)
        whole_us = save(of_whole_us(load(path)), tmp_path / "whole.json")
        for file, within in ((path, 0.01), (whole_us, 0.03)):  # pauses of less than 1 µs are lost there
            pieces = drawn(file)
            whole = sum(piece["dur"] for piece in pieces)
            for resource, kinds in RESOURCES.items():
                rows = sum(piece["dur"] for piece in pieces if piece["name"] in kinds) / whole
                assert rows == pytest.approx(shares.get(resource, 0), abs=within), resource


def of_whole_us(document: Document) -> Document:
    """Starts and durations rounded down and up, as old recordings have them."""
    events = [event | {"ts": floor(event["ts"]), "dur": ceil(event["dur"])} if "dur" in event else event
              for event in document["traceEvents"]]  # fmt: skip
    return document | {"traceEvents": events}


def test_a_recording_of_which_all_launches_are_far_ahead(tmp_path: Path) -> None:
    """The copies, which alone found their stream idle, are left out; so no launch tells its latency."""
    options = JobOptions(ranks=1, steps=5, layers=2, sync_every=0, record_from=(1.5,), collectives="none")
    ((path, _),) = simulate(options, tmp_path)
    document = load(path)
    kept = [event for event in document["traceEvents"] if event.get("tid") != 20]
    pieces = drawn(save(document | {"traceEvents": kept}, tmp_path / "cut.json"))
    whole = sum(piece["dur"] for piece in pieces)
    assert sum(piece["dur"] for piece in pieces if piece["name"] == "kernel_computation") > 0.97 * whole
    assert {piece["name"] for piece in pieces} <= {"idle", "kernel_gap", "kernel_computation", "kernel_memory"}


def over_without(document: Document, cut: Document) -> int:
    """When all is over that the launches did which ``cut`` lacks: its calls and their work."""
    kept = {call["args"].get("correlation") for call in slices(cut, *CALLS)}
    calls = [call for call in slices(document, *CALLS) if call["args"].get("correlation") not in kept]
    gone = {call["args"]["correlation"] for call in calls}
    work = [slice_ for slice_ in slices(document, *WORK) if slice_["args"].get("correlation") in gone]
    over: int = max(call["stop"] for call in (*calls, *work))
    return over


def check_rest(path: Path, cut: Document, scratch: Path, kinds: str = "") -> None:
    """What begins after all that was cut is over is on the path as before, but for the slice of that moment itself."""
    over = over_without(load(path), cut)
    before, after = (
        [(row["ts"], row["dur"], row["name"], row.get("source", "")) for row in drawn(one_path) if row["ts"] >= over]
        for one_path in (path, save(cut, scratch / "cut.json"))
    )
    edge = max(min((ts for ts, *_ in pieces), default=over) for pieces in (before, after))
    rest, rows = ([row for row in pieces if row[0] > edge and row[2].startswith(kinds)] for pieces in (before, after))
    assert rows == rest
    assert rest or len(before) < 3


def check_cut_launches(path: Path, scratch: Path) -> None:
    """Some of the first launches, and many."""
    document = load(path)
    calls = len(slices(document, *CALLS))
    for share in (200, 6):
        check_rest(path, without_first_launches(document, max(1, calls // share)), scratch)


@pytest.mark.parametrize("name", [*BACKLOGS[:2], BACKLOGS[4], *OTHERS])
def test_cutting_the_first_launches_moves_nothing_else(shared_traces: Path, tmp_path: Path, name: str) -> None:
    check_cut_launches(shared_traces / name, tmp_path)


@pytest.mark.parametrize("name", [BACKLOGS[0], BACKLOGS[4], BACKLOGS[5]])
def test_nor_does_a_recording_that_begins_later(shared_traces: Path, tmp_path: Path, name: str) -> None:
    """What the host does is in other slices then, as those that had begun are not recorded."""
    path = shared_traces / name
    check_rest(path, without_first_ns(load(path), 20_000_000), tmp_path, "kernel_")


@pytest.mark.parametrize("job", ["runs ahead", "small kernels", "host bound"])
def test_so_of_simulated_jobs(job: str, tmp_path: Path) -> None:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=4, layers=2, **JOBS[job]), tmp_path)
    check_cut_launches(path, tmp_path)
