"""Logs of NCCL and records of its Inspector, made as their writers write them, and the recorded ones at hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from augment.core.records import NcclLogs, RankConnection
from augment.errors import UnknownFormat
from augment.readers import read, recorded
from augment.readers.attachments import inspector, nccl_log
from augment.readers.attachments.inspector import read_inspector
from augment.readers.attachments.nccl_log import read_nccl_log

SHARED = Path(__file__).parents[3] / "shared" / "evidence" / "nccl"
COLLECTIVE = (
    "AllReduce: opCount 1f sendbuff 0x7f01 recvbuff 0x7f02{acc} count 2048 datatype 7 op 0 root 0 comm 0xaa01 "
    "[nranks=2] stream 0x55"
)
COMMUNICATOR = "ncclCommInitRank comm 0xaa01 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1a000 commId 0xfe"
LOG = [
    "# program text NCCL version 2.27.7+cuda13.0",
    "n0:10:11 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.",
    "n0:10:11 [0] NCCL INFO Using network Socket",
    f"n0:10:11 [0] NCCL INFO {COMMUNICATOR} - Init START",
    "n0:10:11 [0] NCCL INFO === System : maxBw 24.0 totalBw 48.0 ===",
    "n0:10:11 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 2, bw 12.000000/12.000000, type PHB/PIX, sameChannels 1",
    "n0:10:11 [0] NCCL INFO Channel 00/02 :    0   1",
    "n0:10:12 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
    "n0:10:12 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM",
    "n0:10:11 [0] NCCL INFO 2 coll channels, 0 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p",
    "n0:10:11 [0] NCCL INFO comm 0xaa01 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0",
    f"n0:10:11 [0] NCCL INFO {COMMUNICATOR} - Init COMPLETE",
    "n0:10:11 [0] NCCL INFO Init timings - ncclCommInitRank: rank 0 nranks 2 total 0.36 (kernels 0.2, alloc 0.1)",
    f"n0:10:10 [0] NCCL INFO {COLLECTIVE.format(acc='')}",
    "n0:10:10 [0] NCCL INFO AllReduce: 8192 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}",
    "",
    "n0:10:10 [0] socket.cc:12 NCCL WARN RankConnection closed by peer",
]


def written(path: Path, lines: list[str]) -> str:
    path.write_text("\n".join(lines) + "\n")
    return str(path)


PREFIXES = ["", "[1,0]<stdout>:", " 0: ", "(Worker pid=12, ip=10.0.0.1) ", "\x1b[1;32m"]


@pytest.mark.parametrize("prefix", PREFIXES, ids=["none", "mpirun", "srun", "ray", "colour"])
def test_a_log(tmp_path: Path, prefix: str) -> None:
    end = "\x1b[0m" if prefix == PREFIXES[-1] else ""
    log = read_nccl_log(
        written(
            tmp_path / "nccl.log", [(prefix + line + end).replace("NCCL INFO ", f"NCCL INFO {end}") for line in LOG]
        )
    )
    assert log.versions == ["NCCL 2.27.7"]
    assert log.environment == {"NCCL_IB_DISABLE": "1"}
    assert log.networks == {"Socket": 1}
    assert log.max_bandwidth == 24.0
    assert log.patterns == {("PHB", "PIX"): 1}
    (communicator,) = log.communicators
    assert (communicator.rank, communicator.size, communicator.identity, communicator.nodes) == (0, 2, "0xfe", 1)
    assert communicator.rings == {0: (0, 1)}
    assert communicator.edges == {RankConnection(0, 1, "P2P/CUMEM"): 2}
    assert (communicator.channels, communicator.init_seconds, communicator.is_complete) == (2, 0.36, True)
    (collective,) = log.collectives
    assert (collective.kind, collective.bytes, collective.communicator) == ("AllReduce", 8192, 0)
    assert (collective.algorithm, collective.protocol, collective.channels) == ("RING", "LL", 2)
    assert len(log.warnings) == 1


@pytest.mark.parametrize(
    "line", ["using world size: 6", "[2024-09-22 09:16:36,990] torch.distributed.run:", "[1,0]<stdout>:a", "[rank0]: a"]
)
def test_what_a_program_printed_before(tmp_path: Path, line: str) -> None:
    trace = read(written(tmp_path / "job.log", [line] * 999 + LOG))
    logs = trace.context.attached(NcclLogs)
    assert logs is not None
    assert logs.logs[0].versions == ["NCCL 2.27.7"]
    assert recorded.layout(line.encode()) == "a log of NCCL"


def test_lines_of_two_processes_in_one(tmp_path: Path) -> None:
    first, other = (line for line in LOG if "Init START" in line or "opCount" in line)
    log = read_nccl_log(
        written(tmp_path / "nccl.log", [first, f"0.0 1.5 {other}{other.replace(':10 [0]', ':13 [1]')}"])
    )
    assert log.glued_lines == 1
    assert [each.communicator for each in log.collectives] == [0, 0]


@pytest.mark.parametrize("acc", ["", " acc (nil)", " acc 0x7f03"])
def test_collectives_of_versions(tmp_path: Path, acc: str) -> None:
    line = f"n0:10:10 [0] 1234567890123 NCCL INFO {COLLECTIVE.format(acc=acc)} task 2 globalrank 5"
    (collective,) = read_nccl_log(written(tmp_path / "rccl.log", [line])).collectives
    assert (collective.bytes, collective.communicator) == (4 * 2048, -1)


def test_before_218_the_beginning_of_a_communicator_is_not_logged(tmp_path: Path) -> None:
    lines = [
        "n0:10:11 [0] NCCL INFO Channel 00/01 :    0   1",
        "n0:10:11 [0] NCCL INFO Channel 00 : 0[1a000] -> 1[1b000] [send] via NET/IB/0/GDRDMA",
        "n0:10:11 [0] NCCL INFO comm 0xaa01 rank 0 nranks 2 cudaDev 0 busId 1a000 - Init COMPLETE",
        "n0:10:11 [0] NCCL INFO Channel 00/01 :    1   0",
        "n0:10:11 [0] NCCL INFO comm 0xaa02 rank 1 nranks 2 cudaDev 0 busId 1a000 - Init COMPLETE",
    ]
    first, second = read_nccl_log(written(tmp_path / "nccl.log", lines)).communicators
    assert (first.rings, second.rings) == ({0: (0, 1)}, {0: (1, 0)})
    assert list(first.edges) == [RankConnection(0, 1, "NET/IB/0/GDRDMA")]


def test_a_line_without_its_beginning_is_of_no_communicator(tmp_path: Path) -> None:
    """As another process wrote into it; a tree tells its own rank."""
    line = "[3] NCCL INFO Trees [0] 4/-1/-1->7->6 [1] 6/-1/-1->7->3"
    log = read_nccl_log(written(tmp_path / "nccl.log", [*LOG, f"00 {line}"]))
    assert (log.cut_lines, log.unnamed, len(log.communicators)) == (1, [], 1)
    (unnamed,) = read_nccl_log(written(tmp_path / "alone.log", [line])).unnamed
    assert [unnamed.trees[0].rank, unnamed.trees[1].up] == [7, 3]


def test_numbers_of_algorithms_before_224(tmp_path: Path) -> None:
    line = "n0:10:10 [0] NCCL INFO 8192 Bytes -> Algo 1 proto 2 time 42.1"
    (tuned,) = read_nccl_log(written(tmp_path / "nccl.log", [line])).tuned
    assert (tuned.algorithm, tuned.protocol) == ("RING", "SIMPLE")


def test_a_line_without_end(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    with gzip.open(path, "wb", 1) as file:
        file.write(LOG[1].encode() + b"\n" + b"NCCL INFO " * 3_000_000 + b"\n" + LOG[2].encode() + b"\n")
    log = read_nccl_log(str(path))
    assert (log.lines, log.long_lines, log.networks) == (3, 1, {"Socket": 1})


@pytest.mark.parametrize("read", [read_nccl_log, read_inspector])
def test_other_files_are_refused(tmp_path: Path, read: Any) -> None:
    with pytest.raises(UnknownFormat, match=r"no (log|records) of NCCL"):
        read(written(tmp_path / "a.log", ["hello", '{"traceEvents": []}']))


def record(version: str, **performance: Any) -> dict[str, Any]:
    return {
        "header": {"id": "0x9e", "rank": 1, "n_ranks": 8, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": version,
            "dump_timestamp_us": 1_760_000_000_000_000,
            "hostname": "n0",
            "pid": 10,
        },
        "coll_perf": {
            "coll": "AllReduce",
            "coll_sn": 7,
            "coll_msg_size_bytes": 8192,
            "coll_exec_time_us": 61,
            "coll_timing_source": "kernel_gpu",
            "coll_algobw_gbs": 0.13,
            "coll_busbw_gbs": 0.23,
            **performance,
        },
    }


def test_records_of_the_inspector(tmp_path: Path) -> None:
    verbose = {
        "coll_start_ts": 1_760_000_000_000_000,
        "coll_stop_ts": 1_760_000_000_000_002,
        "kernel_events": [
            {"channel_id": 0, "kernel_start_ts": 1_760_000_000_000_010, "kernel_stop_ts": 1_760_000_000_000_060},
            {"channel_id": 1, "kernel_start_ts": 1_760_000_000_000_011, "kernel_stop_ts": 1_760_000_000_000_071},
        ],
    }
    message = {"p2p": "Send", "p2p_sn": 3, "p2p_msg_size_bytes": 64, "p2p_exec_time_us": 5.5, "p2p_peer": 2}
    stats = {"dump_stats": {"coll_records": 1, "coll_dropped_since_last_dump": 4}, **record("v4.3")}
    del stats["coll_perf"]
    late = record("v4.3", coll_algo="TREE", coll_proto="LL128")["coll_perf"]
    lines = [record("v4.0"), record("v4.2", coll_algo="RING", coll_proto="unknown", event_trace_ts=verbose)]
    lines += [{**record("v4.0"), "coll_perf": None, "p2p_perf": message}, stats, {"coll_perf": {**late, "coll_sn": 9}}]
    text = [json.dumps(line).replace('"coll_perf": null, ', "") for line in lines]
    log = read_inspector(written(tmp_path / "n0-pid10.log", [*text, "{broken"]))
    assert (log.hostname, log.pid, log.dropped, log.unreadable_lines) == ("n0", 10, 4, 1)
    plain, traced, sent, last = log.records
    assert (plain.communicator, plain.rank, plain.exec_ns) == ("0x9e", 1, 61_000)
    assert (traced.algorithm, traced.protocol, traced.skew_ns) == ("RING", "", 11_000)
    assert (sent.kind, sent.peer, sent.exec_ns) == ("Send", 2, 5500)
    assert (last.sequence, last.communicator, last.algorithm) == (9, "0x9e", "TREE")


def test_a_line_beyond_all_limits(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    with path.open("wb") as file:
        file.write(json.dumps(record("v4.0")).encode() + b"\n{" + b'"a":' * 8_000_000 + b"\n")
        file.write(json.dumps(record("v4.0")).encode())
    log = read_inspector(str(path))
    assert (len(log.records), log.unreadable_lines) == (2, 1)


@pytest.mark.parametrize(
    "nothing", [b"", b"\x00" * 5000, b"{}\n" * 1000, b'{"coll_perf": 5}\n', b'{"coll_perf": {}}\n']
)
def test_what_is_no_record(tmp_path: Path, nothing: bytes) -> None:
    (tmp_path / "a.log").write_bytes(nothing)
    with pytest.raises(UnknownFormat):
        read_inspector(str(tmp_path / "a.log"))


def test_the_recorded_logs() -> None:
    """Communicators are one a process and pointer; figures counted by hand."""
    if not SHARED.is_dir():
        pytest.skip(f"there is no {SHARED}")
    wanted = {
        "nccl_2.7.8_megatron_pp_tp_16nodes.out.gz": (400, 0),
        "nccl_2.27.7_2xa100_all_subsys.log.gz": (2, 990),
        "nccl_2.4.8_v100_slurm_coll.log.gz": (16, 18),
        "nccl_2.18.3_efa_p4d_16ranks.out.gz": (16, 0),
    }
    for name, (communicators, collectives) in wanted.items():
        log = read_nccl_log(str(SHARED / name))
        assert len(log.communicators) == sum(each.is_complete for each in log.communicators) == communicators
        assert len(log.collectives) == collectives
        assert all(each.communicator >= 0 for each in log.collectives)
    log = read_nccl_log(str(SHARED / "nccl_2.27.7_2xa100_all_subsys.log.gz"))
    assert sum(bool(each.algorithm) for each in log.collectives) == 495
    for path in SHARED.rglob("*.*"):
        assert read_nccl_log(str(path)).lines


@pytest.mark.parametrize("number", ["9" * 19, "9" * 5000, "9" * 60_000])
def test_numbers_of_many_digits_cost_their_line(tmp_path: Path, number: str) -> None:
    lines = [LOG[1], f"n0:10:10 [0] NCCL INFO {COLLECTIVE.format(acc='').replace('2048', number)}"]
    lines += [f"n0:{number}:1 [0] NCCL INFO x"]
    log = read_nccl_log(written(tmp_path / "nccl.log", [*lines, "n0:1:1 [0] NCCL INFO === System : maxBw 1.2.3 ==="]))
    assert (log.unreadable_lines, log.collectives, len(log.environment)) == (3, [], 1)


@pytest.mark.parametrize("wrong", [{"coll_exec_time_us": 1e308}, {"coll_sn": 1 << 63}, {"coll_msg_size_bytes": 1e300}])
def test_numbers_beyond_columns_cost_their_record(tmp_path: Path, wrong: dict[str, Any]) -> None:
    log = read_inspector(written(tmp_path / "a.log", [json.dumps(record("v4.0", **wrong)), json.dumps(record("v4.0"))]))
    assert (len(log.records), log.unreadable_lines) == (1, 1)


def test_a_failure_is_kept_after_equal_warnings_of_many_ranks(tmp_path: Path) -> None:
    ranks = range(1024)
    lines = [f"n{rank}:{rank}:1 [0] init.cc:9 NCCL WARN Missing iommu=pt" for rank in ranks]
    lines += [f"n0:1:1 [0] init.cc:9 NCCL WARN advice {rank}" for rank in ranks]
    lines += [f"n{rank}:{rank}:1 [0] socket.cc:4 NCCL WARN Connection closed by remote peer" for rank in ranks]
    log = read_nccl_log(written(tmp_path / "nccl.log", lines))
    failures = [warning for warning, is_failure in log.warnings.items() if is_failure]
    assert failures[0] == "n0:0 [0] socket.cc:4 Connection closed by remote peer"
    assert (len(failures), len(log.warnings), log.warnings_left_out, log.left_out) == (1000, 2000, 49, 0)
    assert next(iter(log.warnings)) == "n0:0 [0] init.cc:9 Missing iommu=pt"


def test_a_file_of_many_records_takes_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspector, "MOST_RECORDS", 3)
    monkeypatch.setattr(nccl_log, "MOST_KEPT", 3)
    line = json.dumps(record("v4.2", coll="AllReduce", coll_sn=1, coll_msg_size_bytes=9, coll_exec_time_us=1))
    inspected = read_inspector(written(tmp_path / "many.log", [line] * 5))
    assert (len(inspected.records), inspected.left_out) == (3, 2)
    of = "sendbuff 0x1 recvbuff 0x2 count 9 datatype 7 op 0 root 0 comm 0xaa [nranks=2] stream 0x5"
    log = read_nccl_log(written(tmp_path / "nccl.log", [f"n0:1:1 [0] NCCL INFO AllReduce: opCount 0 {of}"] * 5))
    assert (len(log.collectives), log.left_out) == (3, 2)
