"""The critical path where the host is ahead: simulated truth, real traces read by plain Python, what a cut moves."""

from __future__ import annotations

import gzip
import json
import re
from bisect import bisect_left
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from augment.analyses import critical_path
from augment.annotations import SliceTrack
from augment.findings import Findings
from augment.readers import read
from simulator import JobOptions, simulate
from tables import slices_of

LATENCY_NS = 30_000
WORK, CALLS = ("kernel", "gpu_memcpy", "gpu_memset"), ("cuda_runtime", "cuda_driver")
Document = dict[str, Any]
Piece = tuple[int, int, str, str]  #: start, end, bound by, source

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
JOBS = {
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


def load(path: Path) -> Document:
    """A trace as plain Python, times exact."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    found = json.loads(text.decode("utf-8", "replace"), parse_float=Decimal, strict=False)
    return found if isinstance(found, dict) else {"traceEvents": found}


def slices(document: Document, *categories: str) -> list[dict[str, Any]]:
    """Its slices of these categories, with ``start`` and ``stop`` in ns, in the order of time."""
    base, found = int(document.get("baseTimeNanoseconds") or 0), []
    for event in document["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in categories:
            start = int(event["ts"] * 1000) + base
            found.append({**event, "start": start, "stop": start + int(event["dur"] * 1000)})
    return sorted(found, key=lambda one: one["start"])


def drawn(path: Path) -> list[dict[str, Any]]:
    """The path's slices, as drawn."""
    found = critical_path.analyze(read(str(path)))
    assert isinstance(found, Findings)
    track = found.annotations[0]
    assert isinstance(track, SliceTrack)
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
    for one in slices(document, *WORK):
        args = one["args"]
        streams[one["pid"], args.get("stream", one["tid"])].append((one["start"], one["stop"]))
        of_launch[args.get("correlation")].append(one)
    begun: dict[int, int] = {}  # of a delay that steps cut
    for piece in pieces:
        if piece["name"] != "launch_delay":
            begun.clear()
            continue
        stop = piece["ts"] + piece["dur"]
        start = begun.setdefault(piece["correlation"], piece["ts"])
        for own in of_launch[piece["correlation"]]:
            if own["start"] == stop and stop - start > LATENCY_NS:
                mine = streams[own["pid"], own["args"].get("stream", own["tid"])]
                assert covered(mine[: bisect_left(mine, (stop, 0))], start, stop) <= LATENCY_NS, piece


@pytest.mark.parametrize("name", [*BACKLOGS, *OTHERS])
def test_no_launch_is_waited_for_while_its_stream_is_at_work(shared_traces: Path, name: str) -> None:
    pieces = drawn(shared_traces / name)
    check_launch_delays(shared_traces / name, pieces)
    assert all("source" in one for one in pieces if one["name"] == "outside_operators")


@pytest.mark.parametrize("name", BACKLOGS)
def test_a_busy_device_is_on_the_path_as_long_as_it_is_busy(shared_traces: Path, name: str) -> None:
    work = [(one["start"], one["stop"]) for one in slices(load(shared_traces / name), *WORK)]
    start, stop = work[0][0], max(end for _, end in work)
    busy = covered(work, start, stop) / (stop - start)
    assert busy > 0.95
    ran = [one for one in drawn(shared_traces / name) if one["name"].startswith("kernel_c") or "memory" in one["name"]]
    on_path = sum(one["dur"] for one in ran) / (stop - start)
    assert on_path == pytest.approx(busy, abs=0.05)


@pytest.mark.parametrize("job", JOBS)
def test_the_path_is_the_simulators(job: str, tmp_path: Path) -> None:
    options: Any = {"steps": 6, "layers": 2, "causes": True, **JOBS[job]}
    for path, truth in simulate(JobOptions(**options), tmp_path):
        shares = truth["causes"]["path_shares"]
        shares["wait"] = shares.pop("wake", 0) + shares.pop("event", 0)
        pieces = drawn(path)
        whole = sum(one["dur"] for one in pieces)
        for resource, kinds in RESOURCES.items():
            told = sum(one["dur"] for one in pieces if one["name"] in kinds) / whole
            assert told == pytest.approx(shares.get(resource, 0), abs=0.01), resource


def test_a_recording_of_which_all_launches_are_far_ahead(tmp_path: Path) -> None:
    """The copies, which alone found their stream idle, are left out; so no launch tells its latency."""
    options = JobOptions(ranks=1, steps=5, layers=2, sync_every=0, record_from=(1.5,), collectives="none", causes=True)
    ((path, _),) = simulate(options, tmp_path)
    document = load(path)
    document["traceEvents"] = [one for one in document["traceEvents"] if one.get("tid") != 20]
    path = write(document, tmp_path / "cut.json")
    pieces = drawn(path)
    whole = sum(one["dur"] for one in pieces)
    assert sum(one["dur"] for one in pieces if one["name"].startswith("kernel_c")) > 0.97 * whole
    assert {one["name"] for one in pieces} <= {"idle", "kernel_gap", "kernel_computation", "kernel_memory"}


def write(document: Document, path: Path) -> Path:
    """Write a trace, times with all their digits."""
    text = json.dumps(document, default=lambda number: f"<{number}>")
    path.write_text(re.sub(r'"<([0-9.]+)>"', r"\1", text))
    return path


def without_first_launches(document: Document, count: int) -> tuple[Document, int]:
    """The trace without its first launches of work, and when what they launched, and they themselves, are over."""
    work = defaultdict(list)
    for one in slices(document, *WORK):
        work[one["args"].get("correlation")].append(one["stop"])
    calls = [one for one in slices(document, *CALLS) if one.get("args", {}).get("correlation") in work][:count]
    gone = {one["args"]["correlation"] for one in calls}
    over = max([*(one["stop"] for one in calls), *(max(work[one]) for one in gone)])
    kept = [one for one in document["traceEvents"]
            if one.get("cat") not in CALLS or one.get("args", {}).get("correlation") not in gone]  # fmt: skip
    return {**document, "traceEvents": kept}, over


def pieces_from(path: Path, moment: int) -> list[Piece]:
    """The path's pieces that begin then or later."""
    return [(one["ts"], one["dur"], one["name"], one.get("source", "")) for one in drawn(path) if one["ts"] >= moment]


def check_cut(path: Path, scratch: Path) -> None:
    """Without its first launches, the rest of a recording's path is as it was."""
    document = load(path)
    calls = len(slices(document, *CALLS))
    for share in (100, 3):
        cut, over = without_first_launches(document, max(1, calls // share // 2))
        after = pieces_from(write(cut, scratch / "cut.json"), over)
        before = pieces_from(path, over)
        edge = min((one[0] for one in before), default=0), min((one[0] for one in after), default=0)
        rest = max(edge)  # the slice in which the cut's last moment lies is another: the launch was in it
        later = [one for one in before if one[0] > rest]
        assert [one for one in after if one[0] > rest] == later
        assert later or not before[1:]


@pytest.mark.parametrize("name", [*BACKLOGS[:2], BACKLOGS[4], *OTHERS])
def test_cutting_the_first_launches_moves_nothing_else(shared_traces: Path, tmp_path: Path, name: str) -> None:
    check_cut(shared_traces / name, tmp_path)


@pytest.mark.parametrize("job", ["runs ahead", "small kernels", "host bound"])
def test_so_of_simulated_jobs(job: str, tmp_path: Path) -> None:
    options: Any = {"ranks": 1, "steps": 4, "layers": 2, **JOBS[job]}
    ((path, _),) = simulate(JobOptions(**options), tmp_path)
    check_cut(path, tmp_path)


def test_times_are_written_with_all_their_digits(tmp_path: Path) -> None:
    document = {"traceEvents": [{"ph": "X", "ts": Decimal("1759300073000123.456"), "dur": 1}]}
    assert load(write(document, tmp_path / "one.json")) == document
