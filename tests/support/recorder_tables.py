"""A trace of Kineto as other recorders would have written it: Nsight Systems, and rocprofv3 in SQLite and in CSV.

The tables have the columns that those tools write, and only what the trace has. Names of kernels, NVTX's texts and
threads are the trace's; ``secret`` is planted into every other text.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import sqlite3
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

Row = tuple[Any, ...]
Made = dict[str, tuple[str, list[Row]]]  #: columns and rows by table
GUID = "0000abcd_0000_1111_2222_333344445555"
_COPIES = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "HtoH": 9, "PtoP": 10}
_MEMORY = ["Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown"]
_SYNCS = {"Event Sync": 1, "Stream Wait Event": 2, "Stream Sync": 3, "Context Sync": 4}
_GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")


def kineto(path: Path) -> dict[str, Any]:
    """The trace, its numbers exact."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        trace: dict[str, Any] = json.load(file, parse_float=Decimal)
    return trace


def common(trace: dict[str, Any]) -> dict[str, Any]:
    """The trace without what other recorders have not: only slices of the host and of devices, and names."""
    kept = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "cpu_op", "user_annotation")
    events = [
        each for each in trace["traceEvents"] if each["ph"] == "M" or (each["ph"] == "X" and each.get("cat") in kept)
    ]
    for each in events:
        names = {"device", "context", "stream", "correlation", "bytes", "grid", "block", "Input Dims"}
        names |= {"registers per thread", "shared memory", "Sequence number"}
        args = each.get("args", {})
        each["args"] = {name: value for name, value in args.items() if name in names or each["ph"] == "M"}
        if "grid" in args:  # as Kineto computes it
            x, y, z = args["grid"]
            each["args"]["blocks per SM"] = Decimal(f"{x * y * z / trace['deviceProperties'][0]['numSms']:.6f}")
    members = ("deviceProperties", "distributedInfo", "baseTimeNanoseconds")
    return {**{name: trace[name] for name in members if name in trace}, "traceEvents": events}


def write_kineto(trace: dict[str, Any], path: Path) -> Path:
    """The trace as a file."""
    path.write_text(json.dumps(trace, default=lambda number: _Exact(number)), encoding="utf-8")
    return path


class _Exact(float):
    """A number that keeps its digits."""

    def __new__(cls, number: Decimal) -> _Exact:
        made = super().__new__(cls, number)
        made.text = str(number)
        return made

    def __repr__(self) -> str:
        return str(self.text)


def slices(trace: dict[str, Any], *categories: str) -> Iterator[tuple[dict[str, Any], int, int]]:
    """Events with start and end, ns."""
    for each in trace["traceEvents"]:
        if each["ph"] == "X" and each["cat"] in categories:
            start = int(Decimal(each["ts"]) * 1000)
            yield each, start, start + int(Decimal(each["dur"]) * 1000)


class Strings:
    """Numbers of texts."""

    def __init__(self, start: int = 1) -> None:
        self.numbers: dict[str, int] = {}
        self._start = start

    def __call__(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers) + self._start)

    @property
    def rows(self) -> list[Row]:
        return [(number, text) for text, number in self.numbers.items()]


def global_id(pid: int, tid: int = 0) -> int:
    """A number of Nsight Systems for a process or a thread."""
    return (1 << 48) | (pid << 24) | tid


def nsys_tables(trace: dict[str, Any], secret: str = "hf_secretsecret") -> Made:
    """The tables of ``nsys export``."""
    strings, base = Strings(), int(trace.get("baseTimeNanoseconds") or 0)
    pid = next(each["pid"] for each, *_ in slices(trace, "cuda_runtime", "cpu_op"))
    gpu = "deviceId, contextId, greenContextId, streamId, correlationId, globalPid"
    shape = "gridX, gridY, gridZ, blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory"
    made: Made = {
        "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs, utcTime, localTime", [(base, secret, secret)]),
        "TARGET_INFO_SYSTEM_ENV": (
            "globalVid, devStateName, name, nameEnum, value",
            [
                (1, secret, "DeviceEnvironment", 610, f"PATH=/bin\nHF_TOKEN={secret}\nRANK=0"),
                (1, "", "Hostname", 619, secret),
            ],
        ),
        "META_DATA_CAPTURE": ("name, value", [("COMMAND", f"python train.py --token {secret}")]),
        "META_DATA_EXPORT": ("name, value", [("EXPORT_PRODUCT_VERSION", "2026.2.1.210"), ("EXPORT_USER", secret)]),
        "PROCESSES": ("globalPid, pid, name", [(global_id(pid), pid, f"/usr/bin/python train.py --key {secret}")]),
        "DIAGNOSTIC_EVENT": ("timestamp, text", [(1, secret)]),
        "TARGET_INFO_GPU": (
            "id, cuDevice, name, totalMemory, computeMajor, computeMinor, smCount, memoryBandwidth, clockRate, uuid",
            [
                (row["id"], row["id"], row["name"], row["totalGlobalMem"], row["computeMajor"], row["computeMinor"],
                 row["numSms"], 3352320000000, 1980000000, secret)
                for row in trace["deviceProperties"]
            ],
        ),
    }  # fmt: skip
    made["CUPTI_ACTIVITY_KIND_RUNTIME"] = "start, end, eventClass, globalTid, correlationId, nameId, returnValue", [
        (start, end, 0, global_id(each["pid"], each["tid"]), each["args"].get("correlation"),
         strings(each["name"] + "_v3020"), 0)
        for each, start, end in slices(trace, "cuda_runtime", "cuda_driver")
    ]  # fmt: skip
    place = {}
    for each, *_ in slices(trace, *_GPU_CATEGORIES, "cuda_sync"):
        args = each["args"]
        place[id(each)] = (
            args["device"], args.get("context", 1), None, args["stream"], args.get("correlation", 0), global_id(pid)
        )  # fmt: skip
    made["CUPTI_ACTIVITY_KIND_KERNEL"] = (
        f"start, end, {gpu}, demangledName, shortName, graphNodeId, registersPerThread, {shape}",
        [
            (start, end, *place[id(each)], strings(each["name"]), strings("kernel"), None,
             each["args"]["registers per thread"],
             *each["args"]["grid"], *each["args"]["block"], each["args"]["shared memory"], 0)
            for each, start, end in slices(trace, "kernel")
        ],
    )  # fmt: skip
    copies = []
    for each, start, end in slices(trace, "gpu_memcpy"):
        match = re.fullmatch(r"Memcpy (\w+) \((.+) -> (.+)\)", each["name"])
        assert match
        kinds = _COPIES[match[1]], _MEMORY.index(match[2]), _MEMORY.index(match[3])
        copies.append((start, end, *place[id(each)], each["args"]["bytes"], *kinds))
    made["CUPTI_ACTIVITY_KIND_MEMCPY"] = f"start, end, {gpu}, bytes, copyKind, srcKind, dstKind", copies
    made["CUPTI_ACTIVITY_KIND_MEMSET"] = (
        f"start, end, {gpu}, value, bytes, memKind",
        [
            (start, end, *place[id(each)], 0, each["args"]["bytes"], 2)
            for each, start, end in slices(trace, "gpu_memset")
        ],
    )
    made["CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"] = (
        f"start, end, {gpu}, syncType, eventId",
        [
            (start, end, *place[id(each)], _SYNCS[each["name"]], 0xFFFFFFFF)
            for each, start, end in slices(trace, "cuda_sync")
        ],
    )
    ranges = []
    for each, start, end in slices(trace, "cpu_op", "user_annotation"):
        text = each["name"]
        if each["cat"] == "cpu_op":
            text += f", seq = {each['args']['Sequence number']}" if "Sequence number" in each["args"] else ""
            text += f", op_id = {len(ranges) + 1}"
            if any(each["args"].get("Input Dims", ())):
                text += f", sizes = {each['args']['Input Dims']}"
        ranges.append((start, end, 59, None, strings(text), global_id(each["pid"], each["tid"]), 0, secret, None))
    made["NVTX_EVENTS"] = "start, end, eventType, text, textId, globalTid, domainId, jsonText, binaryData", ranges
    threads = [each for each in trace["traceEvents"] if each["ph"] == "M" and each["name"] == "thread_name"]
    made["ThreadNames"] = (
        "nameId, priority, globalTid",
        [
            (strings(each["args"]["name"]), 20, global_id(each["pid"], each["tid"]))
            for each in threads
            if each["pid"] == pid and isinstance(each["tid"], int)
        ],
    )
    strings(f"OPENAI_API_KEY={secret}")  # a text that no event has
    made["StringIds"] = "id, value", strings.rows
    return {table: columns for table, columns in made.items() if columns[1]}


def rocpd_tables(trace: dict[str, Any], secret: str = "hf_secretsecret") -> Made:
    """The tables of rocprofv3's database."""
    strings, events = Strings(), list[Row]()
    pid = next(each["pid"] for each, *_ in slices(trace, "cuda_runtime", "cpu_op"))
    threads = {tid: number for number, tid in enumerate(dict.fromkeys(
        each["tid"] for each, *_ in slices(trace, "cuda_runtime", "cuda_driver", "cpu_op", "user_annotation")
    ), 50)}  # fmt: skip

    names = {
        each["tid"]: each["args"]["name"]
        for each in trace["traceEvents"]
        if each["ph"] == "M" and each["name"] == "thread_name" and each["pid"] == pid
    }

    def event(kind: str, number: int, extra: str = "{}") -> int:
        events.append((len(events) + 1, GUID, strings(kind), number, 0, 0, secret, secret, extra))
        return len(events)

    agents = {row["id"]: 4 + row["id"] for row in trace["deviceProperties"]}
    kernels = Strings(10)
    shape = ", ".join(f"{what}_size_{axis}" for what in ("workgroup", "grid") for axis in "xyz")
    dispatches, copies, regions = [], [], []
    for each, start, end in slices(trace, "cuda_runtime", "cuda_driver"):
        number = event("HIP_RUNTIME_API_EXT", each["args"].get("correlation", 0))
        regions.append(
            (len(regions) + 1, GUID, 9, 77, threads[each["tid"]], start, end, strings(each["name"]), number, secret)
        )
    for each, start, end in slices(trace, "cpu_op", "user_annotation"):
        number = event("MARKER_CORE_RANGE_API", 0, json.dumps({"message": each["name"]}))
        span = threads[each["tid"]], start, end, strings("roctxThreadRangeA")
        regions.append((len(regions) + 1, GUID, 9, 77, *span, number, secret))
    for each, start, end in slices(trace, "kernel"):
        args = each["args"]
        number = event("KERNEL_DISPATCH", args.get("correlation", 0))
        sizes = [*args["block"], *(grid * block for grid, block in zip(args["grid"], args["block"], strict=True))]
        dispatches.append((GUID, 77, threads.get(pid, 50), agents[args["device"]], kernels(each["name"]),
                           16, args["stream"], start, end, args["shared memory"], *sizes, number, secret))  # fmt: skip
    for each, start, end in slices(trace, "gpu_memcpy", "gpu_memset"):
        args = each["args"]
        number = event("MEMORY_COPY", args.get("correlation", 0))
        gpu, host = agents[args["device"]], 1
        ends = (host, gpu) if "HtoD" in each["name"] else (gpu, host) if "DtoH" in each["name"] else (gpu, gpu)
        copies.append((GUID, 77, start, end, strings("MEMORY_COPY"), *ends, args["bytes"], 16, args["stream"], number))
    streams = sorted({row[6] for row in dispatches} | {row[9] for row in copies})
    environment = json.dumps({"PATH": "/bin", "HF_TOKEN": secret, "RANK": "0"})
    tables: Made = {
        "metadata": ("id, tag, value", [(1, "schema_version", "3"), (2, "guid", GUID), (3, "uuid", f"_{GUID}")]),
        "info_node": ("id, hostname", [(9, secret)]),
        "info_process": (
            "id, pid, command, environment, extdata", [(77, pid, f"python {secret}", environment, secret)]
        ),
        "info_thread": ("id, pid, tid, name", [(number, 77, tid, names.get(tid)) for tid, number in threads.items()]),
        "info_agent": ("id, type, type_index, name, product_name, extdata", [
            (1, "CPU", 0, "cpu", secret, "{}"),
            *((agents[row["id"]], "GPU", row["id"], "gfx942", row["name"], json.dumps({"cu_count": row["numSms"]}))
              for row in trace["deviceProperties"]),
        ]),
        "info_stream": ("id, name", [(stream, secret) for stream in streams]),
        "info_kernel_symbol": ("id, display_name, kernel_name, arch_vgpr_count",
                               [(number, text, secret, 32) for text, number in kernels.numbers.items()]),
        "string": ("id, string", strings.rows),
        "event": (
            "id, guid, category_id, stack_id, parent_stack_id, correlation_id, call_stack, line_info, extdata", events
        ),
        "region": ("id, guid, nid, pid, tid, start, end, name_id, event_id, extdata", regions),
        "kernel_dispatch": (
            f"guid, pid, tid, agent_id, kernel_id, queue_id, stream_id, start, end, group_segment_size, {shape},"
            " event_id, extdata".strip(),
            dispatches,
        ),
        "memory_copy": (
            "guid, pid, start, end, name_id, src_agent_id, dst_agent_id, size, queue_id, stream_id, event_id", copies
        ),
    }  # fmt: skip
    return {f"rocpd_{name}_{GUID}": table for name, table in tables.items()}


def write_sqlite(tables: Made, path: Path, *more: str, keys: bool = True) -> Path:
    """A database of the tables; and what the statements ``more`` make. ``keys``: texts have a primary key."""
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path)
    for table, (columns, rows) in tables.items():
        names = [name.strip() for name in columns.split(",")]
        is_key = keys and table == "StringIds"
        declared = ", ".join(
            f'"{name}" INTEGER PRIMARY KEY' if is_key and name == "id" else f'"{name}"' for name in names
        )
        database.execute(f'CREATE TABLE "{table}" ({declared})')
        database.executemany(f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(names))})', rows)
    for statement in more:
        database.execute(statement)
    database.commit()
    database.close()
    return path


def write_parquet(tables: Made, folder: Path) -> Path:
    """A folder of Parquet files, their rows in another order."""
    import pyarrow
    from pyarrow import parquet

    folder.mkdir(exist_ok=True)
    for table, (columns, rows) in tables.items():
        names = [name.strip() for name in columns.split(",")]
        columns_of = zip(*rows[::-1], strict=True)
        parquet.write_table(
            pyarrow.table(dict(zip(names, map(list, columns_of), strict=True))), folder / f"{table}.parquet"
        )
    return folder


def write_csv(trace: dict[str, Any], folder: Path, run: str) -> Path:
    """rocprofv3's CSV files; the path of that of kernels."""
    calls: list[Iterable[Any]] = [
        ("Domain", "Function", "Process_Id", "Thread_Id", "Correlation_Id", "Start_Timestamp", "End_Timestamp")
    ]
    for each, start, end in slices(trace, "cuda_runtime", "cuda_driver"):
        calls.append(
            ("HIP_RUNTIME_API", each["name"], each["pid"], each["tid"], each["args"].get("correlation", 0), start, end)
        )
    marks = [calls[0]]
    for each, start, end in slices(trace, "cpu_op", "user_annotation"):
        marks.append(("MARKER_CORE_RANGE_API", each["name"], each["pid"], each["tid"], 0, start, end))
    sizes = [f"{what}_Size_{axis}" for what in ("Workgroup", "Grid") for axis in "XYZ"]
    kernels: list[Iterable[Any]] = [(
        "Kind", "Agent_Id", "Queue_Id", "Stream_Id", "Thread_Id", "Dispatch_Id", "Kernel_Id", "Kernel_Name",
        "Correlation_Id", "Start_Timestamp", "End_Timestamp", "LDS_Block_Size", "VGPR_Count", *sizes,
    )]  # fmt: skip
    for each, start, end in slices(trace, "kernel"):
        args = each["args"]
        of = [*args["block"], *(grid * block for grid, block in zip(args["grid"], args["block"], strict=True))]
        kernels.append(("KERNEL_DISPATCH", f"Agent {args['device']}", 1, args["stream"], 1, 1, 1, each["name"],
                        args.get("correlation", 0), start, end, args["shared memory"], 32, *of))  # fmt: skip
    for kind, rows in (("hip_api_trace", calls), ("marker_api_trace", marks), ("kernel_trace", kernels)):
        with open(folder / f"{run}_{kind}.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)
    return folder / f"{run}_kernel_trace.csv"


def joined_nsys(reports: Iterable[Made]) -> Made:
    """One report of the processes of several: their texts have new numbers, their tables all rows."""
    made: Made = {}
    strings = Strings()
    texts = {"nameId", "demangledName", "shortName", "textId"}
    for rank, tables in enumerate(reports):
        of = dict(tables["StringIds"][1])
        for table, (columns, rows) in tables.items():
            names = [name.strip() for name in columns.split(",")]
            known = made.setdefault(table, (columns, []))[1]
            if table == "TARGET_INFO_GPU" and known:
                continue
            for row in rows if table != "StringIds" else ():
                cells = zip(names, row, strict=True)
                known.append(tuple(strings(of[cell]) if name in texts and cell else cell for name, cell in cells))
        process = tables["PROCESSES"][1][0][0]
        made.setdefault("NVTX_EVENTS", ("", []))[1].append(
            (1, None, 39, None, strings(f"MPI Rank {rank}"), process, 0, None, None)
        )
    return {**made, "StringIds": ("id, value", strings.rows)}
