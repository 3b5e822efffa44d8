"""What recorders beside a trace say of its collectives: joined by process, group, kind and bytes, and nothing else."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import augment
from augment.core import Findings, Skipped, SliceTrack, Trace
from augment.core.text import words_of
from augment.diagnosis.rule import Fine, NotApplicable
from augment.diagnosis.rules import network_setup
from said import problem_of
from traces import HOST, Event, event, kernel, launch, step, write_trace

JOINT = Path(__file__).parents[3] / "shared" / "evidence" / "joint_gloo_2rank"
ELEMENTS = {1: 1000, 2: 1000, 3: 50}  # of each collective of the trace, four bytes each


def trace_at(folder: Path) -> Trace:
    kernels = []
    for number, elements in ELEMENTS.items():
        collective = kernel("ncclDevKernel_AllReduce", 20 * number, 10, correlation=number, stream=20)
        collective["args"] |= {
            "Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements, "dtype": "Float",
            "Group size": 2, "Process Group Name": "7", "Process Group Description": "dp",
        }  # fmt: skip
        kernels += [collective, launch(ts=number, dur=0.5, correlation=number)]
    path = write_trace(folder / "rank0.json", step(0), *kernels, distributedInfo={"rank": 0, "world_size": 2})
    return augment.read(str(path))


def log_lines(pid: int, *more: str) -> str:
    head = f"n0:{pid}:{pid} [0] NCCL INFO"
    communicator = "ncclCommInitRank comm 0xaa rank 0 nranks 2 cudaDev 0 busId 1a000 commId 0xfe"
    lines = [f"{head} {communicator} - Init START", f"{head} Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"]
    lines += [f"{head} {each}" for each in more]
    lines.append(f"{head} {communicator} - Init COMPLETE")
    for count in (1000, 1000, 70):
        collective = f"AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x2 count {count} datatype 7 op 0 root 0 comm 0xaa"
        lines.append(f"{head} {collective} [nranks=2] stream 0x5")
        lines.append(f"{head} AllReduce: {4 * count} Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..3}}")
    return "\n".join(lines) + "\n"


def recorded(folder: Path, text: str, name: str = "nccl.log") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def outcome(trace: Trace) -> Findings | Skipped:
    return augment.augment(trace, only=["collective_records"]).outcomes["collective_records"]


def rows(trace: Trace) -> list[Any]:
    findings = outcome(trace)
    return [*findings.rows]


def test_a_log_is_joined_by_process_group_kind_and_bytes(tmp_path: Path) -> None:
    trace = augment.with_nccl_log(trace_at(tmp_path), recorded(tmp_path, log_lines(HOST) + log_lines(999)))
    large, small = sorted(rows(trace), key=lambda row: -row.bytes)
    assert (large.record_count, large.joined_count, large.algorithm, large.protocol) == (2, 2, "RING", "LL")
    assert (large.channel_count, large.transport, large.kernel_ns, large.agreeing_ratio) == (4, "P2P", 10_000, 1.0)
    assert (small.bytes, small.joined_count, small.kernel_ns) == (280, 0, None)
    findings = outcome(trace)
    (track,) = findings.annotations
    assert isinstance(track, SliceTrack)
    assert [track.names.values[code] for code in track.names.codes] == ["AllReduce RING LL"] * 2


def test_a_log_of_another_process_is_not_joined(tmp_path: Path) -> None:
    trace = augment.with_nccl_log(trace_at(tmp_path), recorded(tmp_path, log_lines(999)))
    assert isinstance(outcome(trace), Skipped)
    assert isinstance(network_setup.check(trace), NotApplicable)


def test_a_trace_without_records_is_skipped(tmp_path: Path) -> None:
    assert isinstance(outcome(trace_at(tmp_path)), Skipped)


def inspected_line(exec_us: int, source: str = "kernel_gpu") -> str:
    line = {
        "header": {"id": "0x9e", "rank": 0, "n_ranks": 2, "nnodes": 1},
        "metadata": {"inspector_output_format_version": "v4.2", "hostname": "n0", "pid": HOST},
        "coll_perf": {
            "coll": "AllReduce", "coll_sn": 1, "coll_msg_size_bytes": 4000, "coll_exec_time_us": exec_us,
            "coll_algo": "TREE", "coll_proto": "LL128", "coll_timing_source": source,
        },
    }  # fmt: skip
    return json.dumps(line) + "\n"


def test_the_inspector_and_the_flight_recorder(tmp_path: Path) -> None:
    trace = augment.with_nccl_inspector(trace_at(tmp_path), recorded(tmp_path, inspected_line(9), "i.log"))
    entry = {
        "process_group": ("7", "dp"), "collective_seq_id": 1, "profiling_name": "nccl:all_reduce", "state": "completed",
        "time_created_ns": 5, "input_sizes": [[1000]], "output_sizes": [[1000]], "input_dtypes": ["Float"],
    }  # fmt: skip
    for rank in (0, 1):
        config = {"7": {"name": "7", "desc": "dp", "ranks": "[0, 1]"}}
        document = {"version": "2.9", "pg_config": config, "entries": [entry]}
        (tmp_path / f"dump_{rank}").write_bytes(pickle.dumps(document, 2))
    trace = augment.with_flight_recorder(trace, str(tmp_path / "dump_*"))
    dumped, inspected = rows(trace)
    assert (dumped.recorder, dumped.group, dumped.record_count, dumped.joined_count) == ("flight_recorder", "dp", 1, 2)
    assert (inspected.recorder, inspected.algorithm, inspected.record_ns) == ("nccl_inspector", "TREE", 9000)
    assert (inspected.joined_count, inspected.timing_source) == (2, "kernel_gpu")


def diagnostics(trace: Trace) -> dict[str, tuple[int, str]]:
    findings = outcome(trace)
    assert isinstance(findings, Findings)
    return {each.code: (each.count, each.message) for each in findings.diagnostics}


def test_another_timing_is_told_with_its_source(tmp_path: Path) -> None:
    def timing_text(exec_us: int, source: str) -> str:
        text = inspected_line(exec_us, source) * 3
        trace = augment.with_nccl_inspector(trace_at(tmp_path), recorded(tmp_path, text, "i.log"))
        return diagnostics(trace).get("inspector_timing", (0, ""))[1]

    assert timing_text(10, "kernel_gpu") == ""
    assert timing_text(11, "kernel_gpu") == ""  # they are whole microseconds
    longer = "AllReduce of 4.0 kB: 16 µs by collective_cpu, 10 µs in the trace (60 % more)"
    assert longer in timing_text(16, "collective_cpu")
    assert "6.0 µs by kernel_gpu, 10 µs in the trace (40 % less)" in timing_text(6, "kernel_gpu")


def test_what_is_lost_is_counted(tmp_path: Path) -> None:
    lost = json.dumps({"dump_stats": {"coll_dropped_since_last_dump": 4, "p2p_dropped_since_last_dump": 1}})
    inspected = recorded(tmp_path, inspected_line(10) + lost + "\nno JSON\n", "i.log")
    text = log_lines(HOST) + f"n0:{HOST}:{HOST} [0] NCCL INFO {'x' * 70_000}\n" + "n0:1:1 [0] NCCL INFO a" * 2 + "\n"
    text += f"n0:{HOST}:{HOST} [0] NCCL INFO comm 0xaa rank {'9' * 30} nranks 2 cudaDev 0 busId 1 - Init START\n"
    trace = augment.with_nccl_log(trace_at(tmp_path), recorded(tmp_path, text))
    counts = {code: count for code, (count, _) in diagnostics(augment.with_nccl_inspector(trace, inspected)).items()}
    assert counts == {
        "nccl_log_unreadable": 1, "nccl_log_long": 1, "nccl_log_glued": 1, "inspector_unreadable": 1,
        "inspector_dropped": 5,
    }  # fmt: skip


def test_collectives_that_the_host_does_are_joined(tmp_path: Path) -> None:
    def gloo(name: str, ts: float, elements: int) -> Event:
        tensor = {"Input Dims": [[elements]], "Input type": ["float"]}
        return event("user_annotation", f"gloo:{name}", ts, 10, HOST, 9, **tensor)

    info = {"rank": 1, "world_size": 2, "backend": "gloo", "pg_count": 1,
            "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}]}  # fmt: skip
    events = [step(0), gloo("all_reduce", 10, 1000), gloo("all_reduce", 30, 1000), gloo("all_reduce", 50, 7)]
    trace = augment.read(str(write_trace(tmp_path / "rank1.json", *events, distributedInfo=info)))
    entry = {
        "process_group": ("0", "default_pg"), "collective_seq_id": 1, "profiling_name": "gloo:all_reduce",
        "state": "completed", "time_created_ns": 5, "input_sizes": [[1000]], "output_sizes": [[1000]],
        "input_dtypes": ["Float"],
    }  # fmt: skip
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    dump = {"version": "2.9", "pg_config": config, "entries": [entry, {**entry, "collective_seq_id": 2}]}
    (tmp_path / "dump_1").write_bytes(pickle.dumps(dump, 2))
    trace = augment.with_flight_recorder(trace, str(tmp_path / "dump_*"))
    (row,) = rows(trace)
    assert (row.record_count, row.joined_count, row.kernel_ns) == (2, 2, 10_000)
    findings = outcome(trace)
    (track,) = findings.annotations
    assert trace.tracks[track.under].tid == 9


@pytest.mark.skipif(not JOINT.exists(), reason="no recorded job here")
def test_a_recorded_job_of_gloo() -> None:
    """Each collective of the trace is in the dump, whose buffer begins before the trace."""
    trace = augment.read(str(JOINT / "rank0.pt.trace.json.gz"))
    every = rows(augment.with_flight_recorder(trace, str(JOINT / "fr_trace_*.pickle")))
    assert sum(row.joined_count for row in every) == 9
    assert all(row.joined_count <= row.record_count for row in every)


def test_records_of_another_rank_are_not_joined(tmp_path: Path) -> None:
    """Nor where it has the same rank in a communicator of its own."""
    swapped = inspected_line(10).replace(f'"pid": {HOST}', '"pid": 999')
    trace = augment.with_nccl_inspector(trace_at(tmp_path), recorded(tmp_path, swapped, "i.log"))
    assert isinstance(outcome(trace), Skipped)
    nameless = inspected_line(10).replace(f', "pid": {HOST}', "")
    trace = augment.with_nccl_inspector(trace_at(tmp_path), recorded(tmp_path, nameless, "i.log"))
    assert [row.joined_count for row in rows(trace)] == [2]


def test_alone_all_records_are_listed(tmp_path: Path) -> None:
    trace = augment.read(recorded(tmp_path, log_lines(10) + log_lines(11)))
    assert [(row.record_count, row.joined_count) for row in rows(trace)] == [(4, 0), (2, 0)]


def checked(folder: Path, *more: str) -> Any:
    text = log_lines(HOST, *more)
    return network_setup.check(augment.with_nccl_log(trace_at(folder), recorded(folder, text)))


def test_what_a_log_shows_of_the_network(tmp_path: Path) -> None:
    nodes = "comm 0xaa rank 0 nRanks 2 nNodes {} localRanks 1 localRank 0 MNNVL 0"
    disabled = "NCCL_IB_DISABLE set by environment to 1."
    sockets = problem_of(checked(tmp_path, nodes.format(2), "Using network Socket", disabled))
    assert isinstance(sockets.seen, network_setup.NetworkSetup)
    assert (sockets.seen.problems, sockets.seen.settings) == (["sockets"], {"NCCL_IB_DISABLE": "1"})
    assert isinstance(checked(tmp_path, nodes.format(1), "Using network Socket"), Fine)  # nobody sends by it
    assert isinstance(checked(tmp_path, nodes.format(2), "Using network IB"), Fine)
    pattern = "Pattern 4, crossNic 0, nChannels 2, bw 12.0/12.0, type {}/PIX, sameChannels 1"
    assert isinstance(checked(tmp_path, pattern.format("PHB")), Fine)  # the machine has no better path
    bridge = problem_of(checked(tmp_path, pattern.format("NVL"), pattern.format("SYS")))
    assert bridge.seen.figures["problems"] == ["host_bridge"]
    channels = "1 coll channels, 0 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer"
    for setting, advice in (
        ("NCCL_TOPO_FILE set by environment to /a/t.xml", "Unset or correct NCCL_TOPO_FILE (it is /a/t.xml)"),
        ("NCCL_DEBUG set by environment to INFO", "NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH shows what limits them"),
    ):
        few = problem_of(checked(tmp_path, nodes.format(1), pattern.format("NVL"), channels, setting))
        assert few.seen.figures["problems"] == ["few_channels"]
        assert few.seen.advice(words_of("nvidia")).startswith(advice)


def test_a_log_alone_says_how_ranks_are_joined(tmp_path: Path) -> None:
    """Also one in which a program's own output comes first."""
    nodes = "comm 0xaa rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0"
    text = log_lines(10, nodes, "Using network Socket") + log_lines(11).replace("n0:", "n1:")
    path = recorded(tmp_path, "step 1: loss 0.3\n" * 100_000 + text)
    (outcome,) = augment.augment(augment.read(path), only=["diagnosis"]).outcomes.values()
    assert isinstance(outcome, Skipped)
    assert "NCCL connects the 2 nodes over sockets (Socket)." in outcome.verdict.text
    assert "There are records of 6 collectives: AllReduce." in outcome.verdict.text
