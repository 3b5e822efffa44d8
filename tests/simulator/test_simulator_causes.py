"""Simulated jobs as unkind as real ones: their files hold what was recorded, and the causes told of them are true."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections import defaultdict
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from test_simulator import oracle  # noqa: F401 # a fixture

import simulate as command
from simulator import JobOptions, simulate
from simulator.timing import LAUNCH_LATENCY_NS, WAIT_NS

pytestmark = pytest.mark.slow

SMALL = JobOptions(steps=6, layers=2, causes=True)
WORK = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")


def change(**options: Any) -> JobOptions:
    return dataclasses.replace(SMALL, **options)


JOBS = {
    "waits": SMALL,
    "runs ahead": change(run_ahead=2),
    "waits now and then": change(sync_every=3, collectives="fsdp", warmup=2.0),
    "cut": change(run_ahead=2, record_from=(2.4, 3.1), record_until=(5.5, 5.9), side_streams=2),
    "never waits": change(sync_every=0, record_from=(1.5,), record_until=(5.2,), stacks=True, memory=True, ranks=1),
    "crossing": change(cross_ns=1, cross_every=3),
    "crossing much": change(cross_ns=60_000, cross_every=5, record_from=(0.3,), layout="lines"),
    "whole µs": change(whole_us=True, run_ahead=1, record_from=(1.4, 2.2), cross_ns=1000),
    "graphs": change(graphs=True, run_ahead=1, record_from=(1.3, 1.6), memory=True, stacks=True),
    "lost kernels": change(lost_rank=1, lost_every=4, collective_args="none", ranks=3),
    "parallel": change(
        ranks=8, steps=2, tp=2, pp=2, ep=2, microbatches=2, straggler=5, run_ahead=1, record_from=(0.4,)
    ),
    "host bound": change(work=0.02, side_streams=1, straggler=1),
}


def nanoseconds(microseconds: str) -> int:
    whole, _, part = microseconds.partition(".")
    return int(whole) * 1000 + int(part.ljust(3, "0")[:3])


@lru_cache(maxsize=32)
def slices(path: Path, *categories: str) -> list[dict[str, Any]]:
    """The file's slices of these categories, with times in ns."""
    document = json.loads(gzip.decompress(path.read_bytes()), parse_float=str, parse_int=str)
    rows = [event for event in document["traceEvents"] if event["ph"] == "X" and event["cat"] in categories]
    for each in rows:
        each["start"] = nanoseconds(each["ts"])
        each["end"] = each["start"] + nanoseconds(each["dur"])
    return sorted(rows, key=lambda item: (item["start"], item["end"]))


@pytest.fixture(scope="module", params=JOBS)
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, Any]]:
    return simulate(JOBS[request.param], tmp_path_factory.mktemp("job"))


def test_figures_are_those_of_the_recorded_work(ranks: list[tuple[Path, Any]]) -> None:
    for path, truth in ranks:
        work = slices(path, *WORK)
        figures = truth["temporal_breakdown"][0]
        assert figures["span_ns"] == max(each["end"] for each in work) - work[0]["start"]
        assert sum(row["count"] for row in truth["kernel_breakdown"]) == len(work)
        busy = until = 0
        for each in work:
            busy += max(0, each["end"] - max(until, each["start"]))
            until = max(until, each["end"])
        assert figures["busy_ns"] == busy


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the oracle leaves its file open
def test_figures_are_what_a_slow_reading_of_the_file_finds(ranks: list[tuple[Path, Any]], oracle: Any) -> None:  # noqa: F811
    for path, truth in ranks[:2]:
        result = oracle.figures(oracle.load(path))
        assert {name: truth[name] for name in result if name in truth} == (
            {name: rows for name, rows in result.items() if name in truth}
        )


def test_work_launched_before_has_no_call_in_the_file(ranks: list[tuple[Path, Any]]) -> None:
    for path, truth in ranks:
        calls = {call["args"]["correlation"] for call in slices(path, *CALLS)}
        early = [slice_ for slice_ in slices(path, *WORK) if slice_["args"]["correlation"] not in calls]
        assert [slice_ for slice_ in slices(path, *WORK) if "External id" not in slice_["args"]] == early
        before = truth["causes"]["before_recording"]
        assert (before["count"], before["ns"]) == (len(early), sum(each["end"] - each["start"] for each in early))
        assert bool(early) == (bool(truth["file"]["options"]["record_from"]) and before["until"] is not None)


def test_each_gap_is_there_and_ends_when_what_it_waited_for_did(ranks: list[tuple[Path, Any]]) -> None:
    for path, truth in ranks:
        free: dict[str, int] = {}
        result = set()
        calls = {call["args"]["correlation"]: call for call in slices(path, *CALLS)}
        launches = {}
        for slice_ in slices(path, *WORK):
            stream = slice_["args"]["stream"]
            if stream in free and slice_["start"] > free[stream]:
                result.add((stream, free[stream], slice_["start"]))
                launches[stream, slice_["start"]] = calls.get(slice_["args"]["correlation"])
            free[stream] = slice_["end"]
        gaps = truth["causes"]["gaps"]
        assert {(row["stream"], row["start"], row["end"]) for row in gaps} == result
        blur = 1000 if truth["file"]["options"]["whole_us"] else 1
        for row in gaps:
            call = launches[row["stream"], row["end"]]
            assert row["launch_recorded"] == (call is not None)
            if row["why"] == "other_stream":
                assert abs(row["waited_for"]["end"] + WAIT_NS - row["end"]) < 2 * blur
            elif row["why"] == "host":
                assert sum(row["host_in"].values()) == row["host_ns"]
                assert abs(row["host_ns"] - (row["end"] - LAUNCH_LATENCY_NS - row["start"])) < 2 * blur
                assert call is None or call["start"] > row["start"] - blur
            elif call is not None and row["why"] == "launch_latency":
                assert row["start"] >= call["start"] - blur
                assert abs(call["start"] - (row["end"] - LAUNCH_LATENCY_NS)) < 2 * blur


def test_launches_are_in_the_slice_that_began_last(ranks: list[tuple[Path, Any]]) -> None:
    for path, truth in ranks:
        operators = defaultdict(list)
        for slice_ in slices(path, "cpu_op"):
            operators[slice_["tid"]].append(slice_)
        work = defaultdict(list)
        for slice_ in slices(path, *WORK):
            work[slice_["args"]["correlation"]].append(slice_["start"])
        starts, names = [], defaultdict(set)  # on clocks of whole µs several slices, and operations, begin at once
        for call in slices(path, *CALLS):
            inside = [each for each in operators[call["tid"]] if each["start"] <= call["start"] < each["end"]]
            newest = max((each["start"] for each in inside), default=0)
            for start in work[call["args"]["correlation"]]:
                starts.append(start)
                names[start] |= {each["name"] for each in inside if each["start"] == newest} or {""}
        output = truth["causes"]["launched_in"]
        assert sorted(row["start"] for row in output) == sorted(starts)
        assert all(row["operator"] in names[row["start"]] for row in output)


def test_slices_cross_as_asked(ranks: list[tuple[Path, Any]]) -> None:
    for path, truth in ranks:
        crossed = 0
        for tid in {slice_["tid"] for slice_ in slices(path, "cpu_op")}:
            open_until: list[int] = []
            for slice_ in slices(path, "cpu_op"):
                if slice_["tid"] == tid:
                    open_until = [end for end in open_until if end > slice_["start"]]
                    crossed += any(end < slice_["end"] for end in open_until)
                    open_until.append(slice_["end"])
        assert bool(crossed) == bool(truth["file"]["options"]["cross_ns"])


def test_steps_and_paths_add_up(ranks: list[tuple[Path, Any]]) -> None:
    for _, truth in ranks:
        causes, options = truth["causes"], truth["file"]["options"]
        steps = causes["steps"]
        last = max(steps[-1]["host_finish"], steps[-1]["device_end"])
        assert sum(step["ns"] for step in steps) == last - steps[0]["host_begin"]
        assert sum(causes["path_shares"].values()) == pytest.approx(1)
        path = causes["job"]["path"]
        assert all(each["end"] == other["start"] for each, other in pairwise(path))
        assert path[-1]["end"] - path[0]["start"] >= max(step["ns"] for step in steps)
        if options["straggler"] is not None:
            assert causes["job"]["straggler"] == options["straggler"]


def test_a_host_that_runs_ahead_leaves_a_backlog_and_the_device_is_what_counts(tmp_path: Path) -> None:
    (_, waits), *_ = simulate(SMALL, tmp_path / "waits")
    (_, ahead), *_ = simulate(JOBS["runs ahead"], tmp_path / "ahead")
    assert not any(step["backlog_ns"] for step in waits["causes"]["steps"])
    assert all(step["backlog_ns"] for step in ahead["causes"]["steps"][1:])
    assert ahead["causes"]["path_shares"]["kernel"] > 0.8
    assert "host" in {row["why"] for row in waits["causes"]["gaps"]}


def test_two_runs_have_the_jitter_of_steps_in_common(tmp_path: Path) -> None:
    def lengths(name: str, **options: Any) -> list[int]:
        asked = change(steps=8, step_jitter=0.3, step_seed=5, warmup=2.0, jitter=0.02, ranks=1, **options)
        return [step["ns"] for step in simulate(asked, tmp_path / name)[0][1]["causes"]["steps"]]

    control, slower = lengths("a", seed=1), lengths("b", seed=2, work=1.1)
    ratios = [each / other for each, other in zip(slower, control, strict=True)]
    assert max(control) > 1.5 * min(control)
    assert 1.05 < min(ratios) <= max(ratios) < 1.12
    assert lengths("c", seed=1, stretch=3.0) == [3 * ns for ns in control]


def test_what_old_and_damaged_recordings_lack(tmp_path: Path) -> None:
    def collectives(name: str, **options: Any) -> list[list[dict[str, Any]]]:
        written = simulate(change(steps=3, **options), tmp_path / name)
        return [[each["args"] for each in slices(path, "kernel") if "nccl" in each["name"]] for path, _ in written]

    whole = collectives("full")
    assert {"Seq", "Process Group Name"} <= whole[0][0].keys()
    no_seq = collectives("no seq", collective_args="no_seq")[0][0]
    assert "Seq" not in no_seq
    assert "Process Group Name" in no_seq
    assert "Process Group Name" not in collectives("no group", collective_args="no_group")[0][0]
    assert "Collective name" not in collectives("none", collective_args="none")[0][0]
    lost = collectives("lost", lost_rank=1, lost_every=3)
    assert [[len(rank) for rank in ranks] for ranks in (whole, lost)] == [[6, 6], [6, 4]]
    (path, _), *_ = simulate(change(whole_us=True), tmp_path / "whole")
    assert not any("." in slice_["ts"] + slice_["dur"] for slice_ in slices(path, "kernel", "cpu_op"))


def test_a_graph_is_one_launch_of_many_kernels(tmp_path: Path) -> None:
    (path, _), *_ = simulate(change(graphs=True), tmp_path)
    calls = {each["args"]["correlation"] for each in slices(path, "cuda_runtime") if each["name"] == "cudaGraphLaunch"}
    nodes = [slice_["args"] for slice_ in slices(path, "kernel") if slice_["args"]["correlation"] in calls]
    assert len(calls) == 6 * 2 * 2
    assert len(nodes) > 8 * len(calls)
    assert all("graph node id" in node for node in nodes)


def test_groups_meet_and_messages_arrive(tmp_path: Path) -> None:
    options = change(ranks=8, layers=4, steps=2, tp=2, pp=2, ep=2, microbatches=3)
    ends: dict[Any, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    groups = {}
    for rank, (path, _) in enumerate(simulate(options, tmp_path)):
        known = json.loads(gzip.decompress(path.read_bytes()))["distributedInfo"]
        assert known["pg_count"] == len(known["pg_config"]) == 5
        for each in known["pg_config"]:
            assert groups.setdefault(each["pg_name"], each["ranks"]) == each["ranks"]
            assert rank in each["ranks"]
        for kernel in slices(path, "kernel"):
            args = kernel["args"]
            if "deep_ep" in kernel["name"]:
                assert "Collective name" not in args
                (members,) = (tuple(row["ranks"]) for row in known["pg_config"] if row["pg_desc"].startswith("EXPERT"))
                ends["experts", members][rank].append(kernel["end"])
            elif "SendRecv" in kernel["name"]:
                peer = int(args["Dst Rank"] if args["Collective name"] == "send" else args["Src Rank"])
                link = (rank, peer) if args["Collective name"] == "send" else (peer, rank)
                ends[link][rank].append(kernel["end"])
            elif "nccl" in kernel["name"]:
                assert json.loads(args["Process Group Ranks"]) == groups[args["Process Group Name"]]
                ends[args["Process Group Name"]][rank].append(kernel["end"])
    assert sorted(groups["0"]) == list(range(8))
    for where, ranks in ends.items():
        assert len(ranks) == (2 if isinstance(where, tuple) else len(groups[where]))
        first, *others = ranks.values()
        assert all(other == first for other in others), "a collective ends at once on all its ranks"
    assert len([where for where in ends if isinstance(where, tuple) and where[0] != "experts"]) == 2 * 4


def test_command(tmp_path: Path) -> None:
    arguments = ["-o", str(tmp_path), "--run-ahead", "1", "--record-from", "0.5,1.2", "--side-streams", "1"]
    assert command.main([*arguments, "--layers", "1", "--cross-ns", "1", "--warmup", "1.5"]) == 0
    assert json.loads((tmp_path / "rank1.truth.json").read_text())["causes"]["before_recording"]["count"]
