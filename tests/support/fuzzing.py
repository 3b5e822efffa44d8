"""Mutated traces against what must hold for any bytes; each failure is told with the seed that makes it again.

    python tests/support/fuzzing.py [--seed 1] [--count 200] [--seconds S]     # or: make fuzz SECONDS=600

Of JSON:

- it is read alike in one piece, in pieces of any size, and from memory that ends eight bytes behind it: touching the
  pages around ends the process;
- kernels give the same as machine code and as plain Python, where every index, load and store is checked;
- if every element is JSON, the result is that of ``oracles.py``, which reads them one by one;
- analysing and writing it raises nothing but what it may, by machine code and, of every eighth, by plain Python.

Of native traces: the same by kernels, by plain Python, and packet by packet without them.

Of tables of other recorders (--tables: these alone): the text made of them is JSON, the same twice; nothing is raised
but what may.

Of memory snapshots: the same by kernels and by plain Python, in pieces of any size, and nothing is raised but what may.

Of dumps of the flight recorder, logs of NCCL and records of its Inspector: nothing is raised but what may, in one line,
alone and beside a trace.
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import json
import mmap
import pickle
import pickletools
import random
import sys
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path[:0] = [str(Path(__file__).parents[2] / example) for example in (".", "tests/support", "examples")]

import numpy as np

from augment import AugmentError, Skipped, Trace, augment, read
from augment.core.attachment_kinds import kind_named
from augment.core.records import FlightDumps
from augment.job.verdict import report_on_dumps
from augment.kernels.tokens import PADDING
from augment.readers.attachments import attach
from augment.readers.attachments.snapshot_file import memory_snapshot
from augment.readers.containers import open_text
from augment.readers.event_scanner import EventScanner
from augment.readers.limits import NESTING
from augment.readers.raw import Broken
from augment.readers.recorders import converting
from augment.writers import write_all
from memory_snapshots import training
from oracles import elements_of, events_one_by_one, handed_on, packets_by_hand, plain_kernels
from recorder_tables import Made, common, kineto, nsys_tables, rocpd_tables, write_csv, write_parquet, write_sqlite
from simulator import JobOptions, simulate

NUMBERS = (
    b"0", b"-0", b"01", b"1.", b".5", b"1e3", b"1e400", b"1e", b"--1", b"+1", b"0x10", b"NaN", b"-Infinity", b"null",
    b"true", b"9223372036854775807", b"9223372036854775808", b"-9223372036854775809", b"18446744073709551616",
    b"9" * 400, b"0." + b"3" * 60, b"123456789012345678.9995", b"4294967296", b"-1", b'"12.5"', b'""', b"[]", b"{}",
)  # fmt: skip
TEXTS = (
    b'""', b'"kernel"', b'"[memory]"', b'"ProfilerStep#-1"', b'"nccl:all_reduce"', b'"\\u0061"', b'"\\ud800"',
    b'"\\u12"', b'"\\x"', b'"a\nb"', b'"\xff"', b'"\xed\xa0\x80"', b'"\\\\"', b'"\\""',
    b'"' + b"x" * 5000 + b'"', b'"C:\\', b"'a'",
)  # fmt: skip
KEYS = (b"ph", b"ts", b"dur", b"pid", b"tid", b"cat", b"name", b"id", b"args", b"correlation", b"device", b"stream",
        b"bytes", b"Input Dims", b"External id")  # fmt: skip
BITS = (
    b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b" " * 9, b"\r\n", b"\0", b"-", b"tru", b'"args": {', b"7" * 30,
)  # fmt: skip
FILLS = (0, ord(" "), ord("7"), ord('"'), ord("{"))  #: of the padding
PAGE = mmap.PAGESIZE
START_US, SNAPSHOTS = 1_700_000_000 * 10**6, ((1, 2), (1, 4), (3, 5))  #: steps and protocols


class Mutator:
    """Changes texts by chance; the same for the same seed."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def mutated(self, text: bytes) -> bytes:
        """``text`` with one to four changes."""
        ways = (
            self.bits, self.cut, self.value, self.value, self.member, self.member, self.piece, self.nested,
            self.layout, self.threads, self.threads,
        )  # fmt: skip
        for _ in range(self.chance.choice([1, 1, 1, 2, 4])):
            text = self.chance.choice(ways)(text) or b"["
        return text

    def place(self, text: bytes) -> int:
        return self.chance.randrange(len(text) + 1)

    def bits(self, text: bytes) -> bytes:
        made = bytearray(text)
        made[self.chance.randrange(len(made))] ^= 1 << self.chance.randrange(8)
        return bytes(made)

    def cut(self, text: bytes) -> bytes:
        return text[: self.place(text)]

    def value(self, text: bytes) -> bytes:
        at = text.find(b'":', self.place(text)) + 2
        end = at
        while end < len(text) and text[end] not in b",}]\n":
            end += 1
        return text[:at] + self.chance.choice(NUMBERS + TEXTS) + text[end:] if at > 1 else text

    def member(self, text: bytes) -> bytes:
        at = text.find(self.chance.choice([b"{", b'"args":{', b'"args": {']), self.place(text))
        at = text.find(b"{", at) + 1 if at >= 0 else 0
        key = self.chance.choice(KEYS)
        if self.chance.random() < 0.3:
            key = b"\\u%04x" % key[0] + key[1:]
        return text[:at] + b'"%s":%s,' % (key, self.chance.choice(NUMBERS + TEXTS)) + text[at:] if at else text

    def piece(self, text: bytes) -> bytes:
        at = self.place(text)
        stop = at + self.chance.choice([0, 0, 1, 7, 200])
        return text[:at] + self.chance.choice((*BITS, b"", text[at:stop] * 2)) + text[stop:]

    def nested(self, text: bytes) -> bytes:
        depth, at = self.chance.choice([13, 14, 15, 127, 129, 3000]), text.find(b'"args"', self.place(text))
        left, right = self.chance.choice([(b"[", b"]"), (b'{"a":', b"}")])
        return text[:at] + b'"deep":' + left * depth + b"1" + right * depth + b"," + text[at:] if at >= 0 else text

    def layout(self, text: bytes) -> bytes:
        return self.chance.choice([text.replace(b",", b" ,\r\n"), text.replace(b": ", b":"), text.replace(b"\n", b""),
                                   text + text, text + b"\0" * 50, b"\xef\xbb\xbf" + text])  # fmt: skip

    def threads(self, text: bytes) -> bytes:
        """A thread without its slices or arrows, from a moment on or at all; or events that lie 2**63 ns apart."""
        try:
            trace = json.loads(text)
            events = trace["traceEvents"] if isinstance(trace, dict) else trace
            threads = [event.get("tid") for event in events]
            thread, kept = self.chance.choice(threads), self.chance.choice(["X", "sf", "", "far"])
            begin = self.chance.choice([0.0, float(self.chance.choice(events).get("ts", 0))])
            if kept == "far":
                for event in events:
                    if event.get("tid") == thread and "ts" in event:
                        event["ts"] = -float(event["ts"]) - 1e15
            else:
                out = [
                    event
                    for event in events
                    if event.get("tid") != thread or event.get("ph") in kept or float(event.get("ts", 0)) < begin
                ]
                events[:] = out
        except (ValueError, RecursionError, TypeError, KeyError, AttributeError, IndexError):  # changed before
            return text
        return json.dumps(trace).encode()


class Guarded:
    """Memory between two pages that may not be touched."""

    def __init__(self, most: int) -> None:
        self.size = -(-(most + PADDING) // PAGE) * PAGE
        self._map = mmap.mmap(-1, self.size + 2 * PAGE)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for at in (self._base, self._base + PAGE + self.size):
            if protect(at, PAGE, 0):
                raise OSError(ctypes.get_errno(), "mprotect")

    def holding(self, text: bytes, fill: int, *, at_end: bool) -> Any:
        """``text`` and its padding: up to the page behind, or from the page before on."""
        size = len(text) + PADDING
        first = self._base + PAGE + (self.size - size if at_end else 0)
        held = np.frombuffer((ctypes.c_uint8 * size).from_address(first), np.uint8)
        held[: len(text)] = np.frombuffer(text, np.uint8)
        held[len(text) :] = fill
        return held


def scanned(text: bytes, start: int, chunk: int, holding: Any) -> Any:
    """What is taken of the array whose first element begins from ``start`` on; or where and why it is broken."""
    scanner = EventScanner(NESTING)
    at, end, closed = start, start, False
    try:
        while not closed and end < len(text):
            end = min(end + chunk, len(text))
            taken, closed = scanner.scan(holding(text[at:end]), 0, end - at, at)
            at += taken
    except Broken as error:
        return error.offset, error.because
    return handed_on(scanner)


def plainly_held(text: bytes) -> Any:
    return np.frombuffer(text + bytes(PADDING), np.uint8)


def check_json(text: bytes, chance: random.Random, memory: Guarded) -> str | None:
    """What does not hold; None if all does."""
    opening = text.find(b"[", max(text.find(b"traceEvents"), 0))
    if opening < 0:
        return None
    start, whole = opening + 1, len(text)
    expected = scanned(text, start, whole, plainly_held)
    if scanned(text, start, chance.choice([1, 7, 64, 300]), plainly_held) != expected:
        return "another result in pieces"
    fill, at_end = chance.choice(FILLS), chance.random() < 0.7
    if scanned(text, start, whole, lambda item: memory.holding(item, fill, at_end=at_end)) != expected:
        return f"another result with {fill} behind it"
    if whole < 6000:
        with plain_kernels():
            if scanned(text, start, whole, plainly_held) != expected:
                return "another result by plain Python"
    try:
        elements = elements_of(text[:start].replace(b"[", b" ")[:-1] + b"[" + text[start:])
        strictly = all(isinstance(json.loads(each), dict) for _, each in elements)
    except (ValueError, AssertionError, RecursionError):
        strictly = False
    if strictly and isinstance(expected, dict):
        one_by_one = events_one_by_one(elements, NESTING)
        missing = expected["tally"].counts.pop("missing_comma", 0)
        expected["tally"].first.pop("missing_comma", None)
        if expected != one_by_one:
            return f"not what its elements are, one by one ({missing} commas missing)"
    return None


def written(path: Path, folder: Path) -> list[bytes] | str:
    """All that is written of a trace, or the error that it may raise."""
    formats = ("chrome", "perfetto") if path.suffix == ".json" else ("perfetto",)
    try:
        augmented = augment(read(str(path)))
        for name, outcome in augmented.outcomes.items():
            if isinstance(outcome, Skipped) and outcome.traceback:
                raise AssertionError(f"{name}: {outcome.traceback}")
        return [each.read_bytes() for each in write_all(augmented, folder, formats)]
    except AugmentError as error:
        return str(error)


def check_run(data: bytes, name: str, folder: Path, *, plainly: bool) -> str | None:
    """Whether all of it can be done without an error of ours: by machine code, and ``plainly``, too."""
    path = folder / name
    path.write_bytes(data)
    try:
        by_machine = written(path, folder / "out")
        if plainly and len(data) < 10_000:
            with plain_kernels():
                if written(path, folder / "out") != by_machine:
                    return "another file by plain Python"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def native(data: bytes, folder: Path, way: AbstractContextManager[Any]) -> Any:
    path = folder / "t.pftrace"
    path.write_bytes(data)
    with way:
        try:
            trace = read(str(path))
        except AugmentError as error:
            return str(error)
    columns = [
        getattr(trace.events, each).tolist() for each in ("ts", "dur", "phase", "category", "name", "track", "offset")
    ]
    return columns, list(trace.strings), trace.tracks, trace.partial, trace.diagnostics


def check_native(data: bytes, folder: Path) -> str | None:
    """What does not hold; None if all does."""
    by_kernel = native(data, folder, nullcontext())
    if native(data, folder, packets_by_hand()) != by_kernel:
        return "another result packet by packet"
    if len(data) < 20_000 and native(data, folder, plain_kernels()) != by_kernel:
        return "another result by plain Python"
    return None


def mutated_pickle(data: bytes, chance: random.Random) -> bytes:
    """One to four changes: of bits, opcodes, lengths; what is cut, repeated or nested."""
    made = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 4])):
        at = chance.randrange(len(made))
        stop = at + chance.choice([1, 1, 4, 60])
        change = chance.randrange(6)
        if change == 0:
            made[at] ^= 1 << chance.randrange(8)
        elif change == 1:
            made[at] = chance.choice([opcode.code.encode("latin-1")[0] for opcode in pickletools.opcodes])
        elif change == 2:
            made[at:stop] = chance.randbytes(stop - at)
        elif change == 3:
            made[at:stop] = made[at:stop] * chance.choice([0, 2, 50])
        elif change == 4:
            made[at:at] = chance.choice([b"(", b"]", b"}", b")", b"\x85"]) * chance.choice([1, 63, 64, 3000])
        else:
            other = chance.randrange(len(made))
            made[at:stop] = made[other : other + stop - at]
        made = made or bytearray(b"\x80\x04")
    return bytes(made)


def check_snapshot(data: bytes, folder: Path, chance: random.Random) -> str | None:
    """What does not hold; None if all does."""
    path = folder / "t.pickle"
    path.write_bytes(data)

    def content() -> Any:
        try:
            snapshot = memory_snapshot(str(path))
        except AugmentError as error:
            return type(error), "\n" in str(error)
        columns = [getattr(snapshot, name) for name in snapshot.__struct_fields__]
        return [column.tolist() if isinstance(column, np.ndarray) else str(column) for column in columns]

    expected = content()
    with patch("augment.readers.attachments.snapshot_file._PIECE", chance.choice([1, 7, 64, 300])):
        if content() != expected:
            return "another result in pieces"
    if len(data) < 6000:
        with plain_kernels():
            if content() != expected:
                return "another result by plain Python"
    return None


def recorded_files() -> dict[str, bytes]:
    """A small file of each kind that libraries, the compiler and tools that watch GPUs write, by its name."""
    sizes = {"input_sizes": [[1000]], "output_sizes": [[1000]], "input_dtypes": ["Float"], "output_dtypes": ["Float"]}
    entries = [
        {"process_group": ("0", "dp"), "pg_id": 0, "collective_seq_id": number, "p2p_seq_id": 0, "record_id": number,
         "profiling_name": name, "state": state, "time_created_ns": 1000 * START_US + number, "is_p2p": False,
         "frames": [{"name": "step", "filename": "train.py", "line": 7}], "timeout_ms": 600_000, **sizes}
        for number, (name, state) in enumerate([("nccl:all_reduce", "completed"), ("nccl:send 0->1", "scheduled")])
    ]  # fmt: skip
    config = {"0": {"name": "0", "desc": "dp", "ranks": "[0, 1]"}}
    status = {"0": {"last_enqueued_collective": 2, "last_completed_collective": 1}}
    dump = {"version": "2.9", "pg_config": config, "pg_status": status, "entries": entries}
    head = "n0:10:11 [0] NCCL INFO"
    of = "comm 0xaa rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1a000 commId 0xfe"
    lines = [
        "NCCL version 2.27.7+cuda13.0", f"{head} Using network IB", f"{head} ncclCommInitRank {of} - Init START",
        f"{head} comm 0xaa rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0",
        f"{head} Channel 00/24 : 0 1", f"{head} Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
        f"{head} Pattern 4, crossNic 0, nChannels 12, bw 20.0/20.0, type NVL/PIX, sameChannels 1",
        f"{head} === System : maxBw 40.0 totalBw 40.0 ===", f"{head} NCCL_ALGO set by environment to RING.",
        f"{head} 24 coll channels, 0 collnet channels, 0 nvls channels, 32 p2p channels, 32 p2p channels per peer",
        f"{head} ncclCommInitRank {of} - Init COMPLETE", "n0:10:11 [0] net.cc:12 NCCL WARN no", "step 1: loss 0.3",
        f"{head} AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x2 count 9 datatype 7 op 0 root 0 comm 0xaa [nranks=2]",
        f"{head} AllReduce: 36 Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..3}}",
    ]  # fmt: skip
    header = {"id": "0x9e", "rank": 0, "n_ranks": 2, "nnodes": 1}
    metadata = {"inspector_output_format_version": "v4.2", "dump_timestamp_us": START_US, "hostname": "n0", "pid": 10}
    channel = {"channel_id": 0, "kernel_start_ts": START_US, "kernel_stop_ts": START_US + 9}
    performance = {"coll": "AllReduce", "coll_sn": 7, "coll_msg_size_bytes": 36, "coll_exec_time_us": 61,
                   "coll_timing_source": "kernel_gpu", "coll_algo": "RING", "coll_busbw_gbs": 0.2,
                   "event_trace_ts": {"coll_start_ts": START_US, "kernel_events": [channel]}}  # fmt: skip
    record = {"header": header, "metadata": metadata, "coll_perf": performance}
    lost = {"dump_stats": {"coll_dropped_since_last_dump": 4}}
    inspected = "".join(json.dumps(line) + "\n" for line in (record, record, lost, {"coll_perf": performance}))
    who = {"frame_id": 0, "frame_compile_id": 0, "attempt": 0, "rank": 0}
    stack = '  File "/w/model.py", line 7, in forward\n    x = self.norm(x)\n'
    metrics = {
        "co_filename": "/w/model.py", "co_firstlineno": 3, "co_name": "f", "start_time": START_US / 1e6,
        "entire_frame_compile_time_s": 0.5, "fail_type": "E", "fail_reason": "no", "restart_reasons": ["x"],
    }  # fmt: skip
    began = {"stack": [{"filename": 0, "line": 3, "name": "f"}]}
    events = [{"name": "dynamo", "ts": START_US + at, "ph": phase, "tid": 0} for at, phase in ((0, "B"), (900, "E"))]
    broken = f"Graph break in user code at m.py:4\nA\n  Explanation: B\n{stack}"
    stacks_of = "inductor_provenance_tracking_kernel_stack_traces"
    logged: list[tuple[dict[str, Any], str]] = [
        ({"str": ["/w/model.py", 0]}, ""), ({"dynamo_start": began, **who}, ""),
        *(({"chromium_event": {}, **who}, json.dumps(event)) for event in events),
        ({"artifact": {"name": "dynamo_graph_break_reason"}, **who}, broken),
        ({"artifact": {"name": "recompile_reasons"}, **who}, f"0/0: n == 0  # x = x + n  # m.py:10 in f\n{stack}"),
        ({"artifact": {"name": stacks_of}, **who}, json.dumps({"k:1": [stack]})),
        ({"compilation_metrics": metrics, **who}, ""),
    ]  # fmt: skip
    prefix = "V1114 22:13:20.000000 42 torch/_dynamo/utils.py:2009] "
    records = [
        prefix + json.dumps(head) + "".join(f"\n\t{line}" for line in text.splitlines()) for head, text in logged
    ]
    metric = {
        "metric": {"__name__": "DCGM_FI_DEV_POWER_USAGE", "gpu": "0"},
        "values": [[START_US / 1e6, "9"], [START_US / 1e6 + 1, "NaN"]],
    }
    return {
        "trace.log": "\n".join(records).encode(),
        "origins.json": json.dumps(
            {"triton_poi_0:1": [stack], "extern_kernels.mm:2": {"stack_traces": [stack]}}
        ).encode(),
        "smi.csv": b"timestamp, index, power.draw [W], clocks.sm [MHz], clocks_event_reasons.sw_power_cap\n"
        b"2023/11/14 22:13:20.000, 0, 99.1 W, 1980 MHz, Active\n2023/11/14 22:13:21.000, 0, [N/A], 9 MHz, Not Active\n",
        "dmon.txt": b"text\n#Entity   GRACT   POWER\nID\nGPU 0   0.1  50\n#Entity  GRACT  POWER\nID\nGPU 1  0.1  N/A\n",
        "range.json": json.dumps(
            {"status": "success", "data": {"resultType": "matrix", "result": [metric] * 2}}
        ).encode(),
        "dump_0": pickle.dumps(dump, 2),
        "fr_0.json": json.dumps(dump).encode(),
        "nccl.log": "\n".join(lines).encode() * 2,
        "inspector.log": inspected.encode(),
    }


KIND_OF = {
    "dump_0": "flight_recorder", "fr_0.json": "flight_recorder", "nccl.log": "nccl_log", "trace.log": "torch_trace",
    "inspector.log": "nccl_inspector", "origins.json": "inductor_provenance", "smi.csv": "telemetry",
    "dmon.txt": "telemetry", "range.json": "telemetry",
}  # fmt: skip
JUDGING = ("collective_records", "diagnosis", "compilations", "source_lines", "telemetry", "energy")


def check_recorded(data: bytes, name: str, folder: Path, trace: Trace) -> str | None:
    """What does not hold of a file of :func:`recorded_files`; None if all does."""
    path = folder / name
    path.write_bytes(data)
    for given in (lambda: read(str(path)), lambda: attach(trace, kind_named(KIND_OF[name]), path)):
        try:
            outcomes = augment(given(), only=JUDGING).outcomes.values()
            raised = [each.traceback for each in outcomes if isinstance(each, Skipped) and each.traceback]
            if name.endswith("_0") and given().context.attached(FlightDumps):
                report_on_dumps(given().context.attached(FlightDumps).dumps, "job")
        except AugmentError as error:
            raised = [f"two lines: {error}"] if "\n" in str(error) else []
        except Exception as error:
            raised = [f"{type(error).__name__}: {error}"]
        if raised:
            return raised[0]
    return None


ODD_CELLS: tuple[Any, ...] = (
    None, 0, -1, 1 << 31, (1 << 63) - 1, -(1 << 63), 0.5, 1e400, "", "x", '"\\\n\x00', "\ud7ff\U0001f600", b"\xff\x00",
    "a" * 70_000, '{"message": {"a": [1]}}', "[[1, 2], [3]]", "aten::mm, seq = 1, op_id = 2, sizes = [[1,,2]]", 60, 75,
)  # fmt: skip


def check_tables(chance: random.Random, folder: Path, tables: list[Made]) -> str | None:
    """What does not hold of tables with odd cells, or of a file with odd bytes; None if all does."""
    made = {table: (columns, list(rows)) for table, (columns, rows) in chance.choice(tables).items()}
    if chance.random() < 0.6:
        for _ in range(chance.choice([1, 3, 30])):
            rows = made[chance.choice([*made])][1]
            if rows:
                at = chance.randrange(len(rows))
                row = list(rows[at])
                row[chance.randrange(len(row))] = chance.choice(ODD_CELLS)
                rows[at] = tuple(row)
    path = write_sqlite(made, folder / "t_results.db", keys=False)
    kind = chance.random()
    if kind < 0.4:
        path.write_bytes(mutated_pickle(path.read_bytes(), chance))
    elif kind < 0.6:
        path = folder / "t_kernel_trace.csv"
        path.write_bytes(mutated_pickle((folder / "whole_kernel_trace.csv").read_bytes(), chance))
    elif kind < 0.8:
        path = chance.choice(sorted((folder / "parquet").glob("*.parquet")))
        whole = path.read_bytes()
        path.write_bytes(mutated_pickle(whole, chance))
    try:
        texts = []
        for _ in range(2):
            converting._MADE.clear()
            with open_text(str(path)) as text:
                pieces = []
                while piece := text.read(1 << 20):
                    pieces.append(piece)
                texts.append(b"".join(pieces))
        if texts[0] != texts[1]:
            return "another text at the second reading"
        if texts[0].startswith(b'{"recorder"'):
            try:
                json.loads(texts[0])
            except ValueError as error:
                at = getattr(error, "pos", 0)
                return f"no JSON at {texts[0].decode('utf-8', 'replace')[max(at - 90, 0) : at + 30]!r}"
        written(path, folder / "out")
    except AugmentError as error:
        return "an error of several lines" if "\n" in str(error) else None
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        if kind >= 0.6 and path.suffix == ".parquet":
            path.write_bytes(whole)
    return None


def tables_of_recorders(folder: Path) -> list[Made]:
    """Small tables of other recorders; and, in ``folder``, their files of other kinds."""
    ((path, _),) = simulate(JobOptions(ranks=1, steps=1, layers=1), folder)
    trace = common(kineto(path))
    write_parquet(
        {name: (columns, rows[:40]) for name, (columns, rows) in nsys_tables(trace).items()}, folder / "parquet"
    )
    kept, counts = [], dict.fromkeys(("kernel", "gpu_memcpy", "gpu_memset"), 4)
    for each in trace["traceEvents"]:
        counts.setdefault(each.get("cat"), 4)
        counts[each.get("cat")] -= 1
        kept += [each] if counts[each.get("cat")] >= 0 else []
    trace["traceEvents"] = kept
    write_csv(trace, folder, "whole")
    return [nsys_tables(trace), rocpd_tables(trace)]


def sources(folder: Path) -> tuple[list[bytes], list[bytes]]:
    """Small texts of several layouts, and small native traces."""
    ((path, _),) = simulate(JobOptions(ranks=1, steps=1, layers=1, memory=True), folder)
    whole = json.loads(gzip.decompress(path.read_bytes()))
    for event in whole["traceEvents"][:3]:
        event["other"] = {"nested": [1, {"a": "]"}]}
    made, files = [], []
    for first in (0, 20, 60):
        trace = {**whole, "traceEvents": whole["traceEvents"][first : first + 12]}
        made += [json.dumps(trace, indent=first // 20 or None).encode(), json.dumps(trace["traceEvents"]).encode()]
        small = folder / f"small{first}.json"
        small.write_bytes(made[-2])
        files.append(write_all(augment(read(str(small)), only=["steps"]), folder, ["perfetto"])[0].read_bytes())
    return made, files


def run(seed: int, count: int, seconds: float, *, only_tables: bool = False) -> list[str]:
    """Try ``count`` texts, or as many as the time allows; what failed."""
    failures: list[str] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts, files = sources(folder)
        recorded, beside = recorded_files(), read(str(folder / "small0.json"))
        pickles = [pickle.dumps(training(START_US, steps).snapshot(), protocol) for steps, protocol in SNAPSHOTS]
        tables = tables_of_recorders(folder)
        memory = Guarded(4 << 20)
        number = 0
        while time.monotonic() - began < seconds if seconds else number < count:
            number += 1
            chance = random.Random(f"{seed} {number}")
            ended = check_tables(chance, folder, tables)
            failures += [f"seed {seed}, tables {number}: {ended}"] if ended else []
            if only_tables:
                continue
            mutator = Mutator(chance)
            text, data = mutator.mutated(chance.choice(texts))[: 1 << 20], mutator.mutated(chance.choice(files))
            print(f"\r{number}", end="", file=sys.stderr, flush=True)
            plainly = number % 8 == 0
            ended = check_json(text, chance, memory) or check_run(text, "t.json", folder, plainly=plainly)
            failures += [f"seed {seed}, text {number}: {ended}"] if ended else []
            dumped = mutated_pickle(chance.choice(pickles), chance)
            ended = check_snapshot(dumped, folder, chance) or check_run(dumped, "t.pickle", folder, plainly=False)
            failures += [f"seed {seed}, memory snapshot {number}: {ended}"] if ended else []
            name = chance.choice(list(recorded))
            mutated = mutated_pickle(recorded[name], chance) if name == "dump_0" else mutator.mutated(recorded[name])
            ended = check_recorded(mutated, name, folder, beside)
            failures += [f"seed {seed}, {name} {number}: {ended}"] if ended else []
            ended = check_native(data, folder) or check_run(data, "t.pftrace", folder, plainly=plainly)
            failures += [f"seed {seed}, native trace {number}: {ended}"] if ended else []
    print(
        f"{number} tables, texts, native traces, memory snapshots and records of collectives, {len(failures)} failures"
    )
    return failures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=0, help="instead of --count")
    parser.add_argument("--tables", action="store_true", help="only tables of other recorders")
    chosen = parser.parse_args()
    failures = run(chosen.seed, chosen.count, chosen.seconds, only_tables=chosen.tables)
    print(*failures, sep="\n")
    sys.exit(bool(failures))
