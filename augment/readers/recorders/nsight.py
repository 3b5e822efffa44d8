"""Nsight Systems' exports, SQLite and Parquet, as Kineto's events.

Which tables and columns there are decides what is read, not the version: exports since 2021 are known. Processes count
correlations alone, so work and its launch are joined by process and correlation. The tables that hold the
environment are looked at only for the rank and the number of ranks.
"""

from __future__ import annotations

import json
import re
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any

from msgspec import Struct

from augment.readers.recorders.kineto_text import LAUNCHING, NSIGHT_SYSTEMS, KinetoText, Piece, Row, Slice, quoted
from augment.readers.recorders.open_tables import RecorderTables

_CUPTI = "CUPTI_ACTIVITY_KIND_"
_NVTX = ("NVTX_EVENTS", "NVTX_EVENTS_V2", "NVTX_EVENTS_V3")
#: one of these makes a database an export
SIGNS = frozenset((*_NVTX, *(_CUPTI + kind for kind in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "GRAPH_TRACE"))))
_DEVICE_TABLES = tuple(_CUPTI + kind for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "SYNCHRONIZATION"))

# NVTX's types of events
_CATEGORY, _MARK, _THREAD_NAME, _PUSH_POP, _START_END, _DOMAIN = 33, 34, 39, 59, 60, 75
_RANGES = {_PUSH_POP: "X", _START_END: "X", _MARK: "i", 70: "X", 71: "X"}
#: what emit_nvtx() of PyTorch makes of an operator: torch/csrc/profiler/util.cpp, getNvtxStr
_OPERATOR = re.compile(
    r"(.+?)(?:, seq = (-?\d{1,18}))?(?:, op_id = \d{1,18})?(?:, sizes = (\[[\[\]\d, -]*\]))?(?:, input_op_ids = .*)?",
    re.DOTALL,
)
_VERSION = re.compile(r"(?:_pt[ds]z)?_v\d{4,6}$|_pt[ds]z$")
_RANK_NAME = re.compile(r"MPI Rank (\d{1,7})")
_ENVIRONMENT = re.compile(
    r"(?:^|\n)(?:(RANK|OMPI_COMM_WORLD_RANK|PMI_RANK|SLURM_PROCID)"
    r"|(?:WORLD_SIZE|OMPI_COMM_WORLD_SIZE|PMI_SIZE|SLURM_NTASKS))=(\d{1,7})(?=\n|$)"
)
_COPIES = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH",
           10: "PtoP", 11: "Unified HtoD", 12: "Unified DtoH", 13: "Unified DtoD"}  # fmt: skip
_MEMORY = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")
#: as Kineto calls them, by CUPTI's number
_SYNCS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
_NO_ID = 0xFFFF_FFFF
_PLACE = ("deviceId", "contextId", "streamId", "correlationId", "globalPid")
_WORK = ("start", "end", *_PLACE)
_SHAPE = ("registersPerThread", "staticSharedMemory", "dynamicSharedMemory",
          "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")  # fmt: skip
_OTHERS = {"OSRT_API": "os_runtime", "PROFILER_OVERHEAD": "overhead", _CUPTI + "OVERHEAD": "overhead"}
_PROBLEMS = (2, 3)  #: severities of nsys: warning and error
_OF_CUDA = re.compile(r"CUDA|CUPTI")
_LONGEST, _MOST_REASONS = 160, 3
_REMEMBERED = 1 << 14  #: texts that occur again and again
_LANE = 1 << 24  #: above all tids
_ANNOTATION = re.compile(r"ProfilerStep#|Optimizer\.|enumerate\(DataLoader\)")  #: what Kineto counts as the user's
_COLLECTIVES = {
    "ncclAllReduce": "allreduce", "ncclAllGather": "allgather", "ncclReduceScatter": "reduce_scatter",
    "ncclBroadcast": "broadcast", "ncclBcast": "broadcast", "ncclReduce": "reduce", "ncclSend": "send",
    "ncclRecv": "recv", "ncclAlltoAll": "alltoall", "ncclGather": "gather", "ncclScatter": "scatter",
}  # fmt: skip
_FORMATS = {5: "<I", 6: "<q", 18: "<Q", 22: "<Q"}  #: NVTX's types of payload entries: uint32, int64, uint64, size_t
_PAYLOAD = struct.Struct("<IIIIQQ")  #: domain, -, schema, -, size, -
#: columns of TARGET_INFO_GPU, and Kineto's names of them
_PROPERTIES = {
    "name": "name", "totalMemory": "totalGlobalMem", "computeMajor": "computeMajor", "computeMinor": "computeMinor",
    "smCount": "numSms", "threadsPerWarp": "warpSize", "maxThreadsPerBlock": "maxThreadsPerBlock",
    "maxRegistersPerBlock": "regsPerBlock", "maxRegistersPerSm": "regsPerMultiprocessor",
    "maxShmemPerBlock": "sharedMemPerBlock", "maxShmemPerSm": "sharedMemPerMultiprocessor",
    "l2CacheSize": "l2CacheSize", "clockRate": "clockRate", "memoryBandwidth": "memoryBandwidth",
}  # fmt: skip


class _NcclCall(Struct):
    """A call of NCCL, with what its payload tells."""

    start: int
    end: int
    name: str
    values: dict[str, int]


def nothing_traced(tables: RecorderTables) -> str:
    """That CUDA was traced, and what nsys says of why nothing came of it; empty where CUDA was not traced."""
    settings = tables.rows("META_DATA_CAPTURE", ("name", "value"))
    if not any(str(name).endswith("COLLECT_CUDA_TRACE") and str(value) == "true" for name, value in settings):
        return ""
    events: list[tuple[int, str]] = []
    for severity, text in tables.rows("DIAGNOSTIC_EVENT", ("severity", "text")):
        if severity in _PROBLEMS and isinstance(text, str) and _OF_CUDA.search(text):
            events.append((-severity, " ".join(text.split())[:_LONGEST]))
    reasons = [f'"{text}"' for _, text in sorted(dict.fromkeys(events), key=lambda each: each[0])]
    said = f"; nsys says: {', '.join(reasons[:_MOST_REASONS])}" if reasons else ""
    return f"CUDA was traced, but no GPU work was recorded{said}: see that the program uses the GPU while nsys records"


class Nsight:
    """An export being read: its :meth:`members`, then its :meth:`events`."""

    def __init__(self, tables: RecorderTables) -> None:
        self.tables = tables
        #: texts that events name by number; some columns have the texts themselves
        self._strings = {key: str(text) for key, text in tables.rows("StringIds", ("id", "value"))}
        self._quoted: dict[Any, str] = {}
        self._sms: dict[int, int] = {}  # by device
        self._ranks: dict[int, int] = {}  # by pid
        self._world = 0
        self._group_sizes: dict[int, int] = {}  # by communicator
        self._calls: dict[tuple[int, int], list[_NcclCall]] = {}  # of NCCL, by pid and tid, ascending
        self._args_of: dict[tuple[int, int], str] = {}  # of its kernels, by pid and correlation
        self._shapes: dict[Row, str] = {}
        self._recorded: dict[Row, tuple[int, int]] = {}
        self._device_of: dict[tuple[int, Any], int] = {}  # by pid and context, as work tells it
        self._domains: dict[tuple[int, Any], str] = {}
        self._ranges: list[tuple[int, int, Slice]] = []
        # look at all events: when the first begins, the processes and the host's threads
        self._first, self._threads = 1 << 62, dict[int, None]()
        self._pids: dict[int, None] = {}  # that have events
        for table in (_CUPTI + "RUNTIME", *_NVTX):
            for start, thread in self.tables.rows(table, ("start", "globalTid")):
                if _are_numbers(start, thread):
                    self._first = min(self._first, start)
                    self._threads[thread] = None
        for table in _DEVICE_TABLES:
            for start, process in self.tables.rows(table, ("start", "globalPid")):
                if _are_numbers(start, process):
                    self._first = min(self._first, start)
                    self._pids[_pid(process)] = None
        self._note = "" if self._pids else nothing_traced(tables)
        # processes that use no GPU are others: a launcher, workers that load data
        self._pids = self._pids or dict.fromkeys(map(_pid, self._threads))
        self._first = 0 if self._first == 1 << 62 else self._first
        gpus = tables.rows("TARGET_INFO_CUDA_DEVICE", ("gpuId", "cudaId", "pid"))
        self._gpu = {(pid, cuda): gpu for gpu, cuda, pid in gpus if _are_numbers(gpu, cuda, pid)}
        # what NVTX tells of its domains, and of ranks, communicators and collectives
        entries: dict[tuple[int, int], list[tuple[str, str, int]]] = {}
        parts = self.tables.rows("NVTX_PAYLOAD_SCHEMA_ENTRIES", ("domainId", "schemaId", "type", "name", "offset"))
        for domain, schema, kind, name, offset in parts:
            if kind in _FORMATS and isinstance(name, str):
                entry = _FORMATS[kind], name, offset if _are_numbers(offset) else 0
                entries.setdefault((domain, schema), []).append(entry)
        largest: dict[int, int] = {}
        columns = ("start", "end", "eventType", "text", "textId", "globalTid", "binaryData", "domainId")
        for table in _NVTX:
            for start, end, kind, text, text_id, thread, data, domain in self.tables.rows(table, columns):
                name = self._strings.get(text_id, "") if text is None else str(text)
                if kind == _DOMAIN and _are_numbers(thread):
                    self._domains[_pid(thread), domain] = f'"domain":{quoted(name)},'
                if kind == _THREAD_NAME and (match := _RANK_NAME.fullmatch(name)) and _are_numbers(thread):
                    self._ranks[_pid(thread)] = int(match[1])
                if not name.startswith("nccl") or not _are_numbers(start, end, thread):
                    continue
                values = _payload(data, entries)
                ranks, group = values.get("No. of ranks"), values.get("NCCL communicator ID")
                if ranks is not None:  # of ncclCommInit…; the largest communicator has all ranks
                    if group is not None:
                        self._group_sizes[group] = ranks
                    if "Rank" in values and ranks > largest.get(_pid(thread), 0):
                        largest[_pid(thread)] = ranks
                        self._ranks[_pid(thread)], self._world = values["Rank"], max(self._world, ranks)
                self._calls.setdefault(_thread(thread), []).append(_NcclCall(start, end, name, values))
        for calls in self._calls.values():
            calls.sort(key=attrgetter("start"))
        if len(self._pids) == 1 and not self._ranks:
            (pid,) = self._pids  # the rank in the environment of the only process; nothing else is taken from there
            for name, value in tables.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value")):
                is_environment = name == "DeviceEnvironment" and isinstance(value, str)
                for is_rank, number in _ENVIRONMENT.findall(value) if is_environment else ():
                    if is_rank:
                        self._ranks.setdefault(pid, int(number))
                    else:
                        self._world = self._world or int(number)
        self._ranks = {pid: rank for pid, rank in self._ranks.items() if pid in self._pids}
        several = len(set(self._ranks.values())) > 1
        self.text = KinetoText(self._first, self._ranks if several else {}, self._pids)

    def members(self) -> dict[str, Any]:
        """What Kineto writes before the events; and who recorded them."""
        tables = self.tables
        version = [
            {"version": value}
            for table in ("META_DATA_EXPORT", "EXPORT_META_DATA")
            for name, value in tables.rows(table, ("name", "value"))
            if name == "EXPORT_PRODUCT_VERSION" and re.fullmatch(r"[\d.a-z-]{1,40}", str(value))
        ]
        began = [utc for (utc,) in tables.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",)) if _are_numbers(utc)]
        members: dict[str, Any] = {
            "recorder": {"name": NSIGHT_SYSTEMS, **(version[0] if version else {})},
            "baseTimeNanoseconds": sum(began[:1]) + self._first,
        }
        if self._note:
            members["recorder"]["note"] = self._note
        if len(self._ranks) == 1 == len(self._pids):
            world = {"world_size": self._world} if self._world else {}
            members["distributedInfo"] = {"rank": next(iter(self._ranks.values())), **world}
        # the GPUs, as Kineto describes them
        columns = ("id", "cuDevice", *_PROPERTIES)
        properties: dict[int, dict[str, Any]] = {}
        for gpu, cuda, *values in self.tables.rows("TARGET_INFO_GPU", columns):
            named = zip(_PROPERTIES.values(), values, strict=True)
            entry: dict[str, Any] = {name: value for name, value in named if isinstance(value, (int, str))}
            number = gpu if self._gpu else cuda if _are_numbers(cuda) else gpu
            if _are_numbers(number, entry.get("numSms")) and entry["numSms"] > 0:  # Windows lists what cannot compute
                properties[number] = {"id": number, **entry}
                self._sms[number] = entry["numSms"]
        devices = [properties[number] for number in sorted(properties)]
        return {**members, "deviceProperties": devices} if devices else members

    def events(self) -> Iterator[Piece]:
        """All events."""
        names: dict[int, str] = {}
        for process, name in self.tables.rows("PROCESSES", ("globalPid", "name")):
            if _are_numbers(process) and isinstance(name, str) and name.strip():
                names[_pid(process)] = re.split(r"[/\\]", name.split()[0])[-1]  # without a command's arguments
        for pid in {_pid(thread): None for thread in self._threads}:
            yield self.text.process(pid, names.get(pid, "process"))
        for name, thread in self.tables.rows("ThreadNames", ("nameId", "globalTid")):
            if thread in self._threads and name in self._strings:
                yield self.text.thread(*_thread(thread), self._strings[name])
        yield from self._of("RUNTIME", self._call, "start", "end", "globalTid", "correlationId", "nameId")
        yield from self._of("KERNEL", self._kernel, *_WORK, "demangledName", "shortName", "graphNodeId", *_SHAPE)
        yield from self._of("MEMCPY", self._copy, *_WORK, "bytes", "copyKind", "srcKind", "dstKind")
        yield from self._of("MEMSET", self._set, *_WORK, "bytes", "memKind")
        yield from self._of("GRAPH_TRACE", self._graph, *_WORK, "graphId")
        columns = "contextId", "eventId", "eventSyncId", "streamId", "correlationId"
        yield from self._of("CUDA_EVENT", self._event, "globalPid", *columns)
        yield from self._of("SYNCHRONIZATION", self._synchronization, *_WORK, "syncType", "eventId", "eventSyncId")
        columns = "eventType", "text", "textId", "domainId", "globalTid"
        for table in _NVTX:
            rows = self.tables.rows(table, ("start", "end", *columns))
            yield from self.text.of_rows(rows, self._annotation)
        # ranges that may overlap: on their thread where they nest, else on threads of their own beside it
        lanes: dict[tuple[int, int], list[int]] = {}
        for pid, tid, of in sorted(self._ranges, key=lambda each: (*each[:2], each[2].start, -each[2].end)):
            lane = 0
            while any(of.start < end < of.end for end in lanes.get((pid, tid + lane * _LANE), ())):
                lane += 1
            place = pid, tid + lane * _LANE
            if place not in lanes and lane:
                yield self.text.thread(*place, f"ranges of thread {tid}")
            lanes[place] = [*(end for end in lanes.get(place, ()) if end > of.start), of.end]
            yield self.text.on_host(*place, of)
        for table, category in _OTHERS.items():
            rows = self.tables.rows(table, ("start", "end", "globalTid", "nameId"))
            yield from self.text.of_rows(rows, partial(self._other_call, category))

    def _of(self, kind: str, write: Callable[[Row], Iterator[Piece]], *columns: str) -> Iterator[Piece]:
        return self.text.of_rows(self.tables.rows(_CUPTI + kind, columns), write)

    def _call(self, row: Row) -> Iterator[Piece]:
        """A call of CUDA. Remembers the args of the kernel that a call of NCCL launches with it."""
        start, end, thread, number, name = row
        pid, tid = _thread(thread)
        plain = _VERSION.sub("", self._string(name))
        category = "cuda_runtime" if plain.startswith("cuda") else "cuda_driver"
        if number is None:
            yield self.text.on_host(pid, tid, Slice(category, self._as_json(plain), start, end))
            return
        correlation = self.text.correlation(pid, number)
        yield self.text.on_host(
            pid, tid, Slice(category, self._as_json(plain), start, end, f'"correlation":{correlation},')
        )
        if LAUNCHING.search(plain):
            yield self.text.launching(pid, tid, start, correlation)
            if (pid, tid) in self._calls and (args := self._collective(self._calls[pid, tid], start)):
                self._args_of[pid, number] = args

    def _collective(self, calls: list[_NcclCall], launch: int) -> str:
        """Kineto's args of the collective whose kernel is launched then, empty unless there is one: it is launched by
        its own call, or at the end of the group of calls that has no other."""
        at = bisect_right(calls, launch, key=attrgetter("start")) - 1
        if at < 0 or calls[at].end < launch:
            return ""
        some = [calls[at]]
        if some[0].name == "ncclGroupEnd":
            first = next((at for at in range(at - 1, -1, -1) if calls[at].name == "ncclGroupStart"), at)
            some = [call for call in calls[first:at] if call.name in _COLLECTIVES]
        if len(some) != 1 or some[0].name not in _COLLECTIVES:
            return ""
        kind, values = _COLLECTIVES[some[0].name], some[0].values
        group, size, peer = (values.get(name) for name in ("NCCL communicator ID", "Message size [bytes]", "Peer rank"))
        ranks = self._group_sizes.get(group, 0) if group is not None else 0
        args = f'"Collective name":"{kind}",'
        args += f'"Process Group Name":"{group:x}",' if group is not None else ""
        args += f'"Group size":{ranks},' if ranks else ""
        if peer is not None:
            args += f'"{"Src" if kind == "recv" else "Dst"} Rank":{peer},'
        if size is not None:  # NCCL tells the bytes, not the type: what each rank of a gather gives, of a scatter gets
            sent = size * ranks if kind in ("reduce_scatter", "scatter") else size
            received = size * ranks if kind in ("allgather", "gather") else size
            args += '"dtype":"Byte",'
            args += f'"In msg nelems":{sent},' if sent and kind != "recv" else ""
            args += f'"Out msg nelems":{received},' if received and kind != "send" else ""
        return args

    def _kernel(self, row: Row) -> Iterator[Piece]:
        start, end, *rest = row
        of, (name, short, node), shape = rest[:5], rest[5:8], rest[8:]
        pid, place, number, correlation = self._place(of)
        key = place[0], *shape
        if (args := self._shapes.get(key)) is None:
            if len(self._shapes) > _REMEMBERED:
                self._shapes.clear()
            args = self._shapes[key] = self._shape(place[0], shape)
        text = self._string(short if name is None else name)
        if "nccl" in text:
            args = self._args_of.get((pid, number), "") + args
        if _are_numbers(node):
            args = f'"graph node id":{node},{args}'
        return self.text.on_device(pid, place, Slice("kernel", self._as_json(text), start, end, args), correlation)

    def _shape(self, device: int, shape: list[Any]) -> str:
        """Kineto's args of a kernel's launch."""
        registers, fixed, dynamic, *sizes = shape
        if not _are_numbers(registers, fixed, dynamic, *sizes):
            return ""
        blocks, threads = sizes[0] * sizes[1] * sizes[2], sizes[3] * sizes[4] * sizes[5]
        args = f'"registers per thread":{registers},"shared memory":{fixed + dynamic},'
        if sms := self._sms.get(device):
            args += f'"blocks per SM":{blocks / sms:.6f},"warps per SM":{blocks * -(-threads // 32) / sms:.6f},'
        return args + f'"grid":{sizes[:3]},"block":{sizes[3:]},'

    def _copy(self, row: Row) -> Iterator[Piece]:
        start, end, *of, size, kind, source, target = row
        pid, place, _, correlation = self._place(of)
        name = f"Memcpy {_COPIES.get(kind, 'Unknown')} ({_memory(source)} -> {_memory(target)})"
        copy = Slice("gpu_memcpy", self._as_json(name), start, end, f'"bytes":{size:d},')
        return self.text.on_device(pid, place, copy, correlation)

    def _set(self, row: Row) -> Iterator[Piece]:
        start, end, *of, size, memory = row
        pid, place, _, correlation = self._place(of)
        name = self._as_json(f"Memset ({_memory(2 if memory is None else memory)})")
        return self.text.on_device(pid, place, Slice("gpu_memset", name, start, end, f'"bytes":{size:d},'), correlation)

    def _graph(self, row: Row) -> Iterator[Piece]:
        """A launch of a graph as a whole: a piece of work, as its kernels were not recorded."""
        start, end, *of, graph = row
        pid, place, _, correlation = self._place(of)
        yield from self.text.on_device(pid, place, Slice("kernel", f'"CUDA graph {graph:d}"', start, end), correlation)
        self.text.notes["whole_graphs"] += 1

    def _event(self, row: Row) -> Iterator[Piece]:
        """Remembers where an event was recorded."""
        process, context, event, number, stream, call = row
        if _are_numbers(process, event, number, stream, call):
            self._recorded[process, context, event, number] = stream, self.text.correlation(_pid(process), call)
        return iter(())

    def _synchronization(self, row: Row) -> Iterator[Piece]:
        """What the host or a stream waited for: where known, the stream and the call that recorded the event."""
        start, end, *of, kind, event, number = row
        if kind not in _SYNCS:
            return
        pid, place, _, correlation = self._place(of)
        place = self._device_of[pid, of[1]], *place[1:]  # of synchronization, reports tell the context, but device 0
        args = f'"cuda_sync_kind":"{_SYNCS[kind]}",'
        if (recorded := self._recorded.get((of[4], of[1], event, number))) is not None:
            args += f'"wait_on_stream":{recorded[0]},"wait_on_cuda_event_record_corr_id":{recorded[1]},'
        wait = Slice("cuda_sync", self._as_json(_SYNCS[kind]), start, end, args)
        yield from self.text.on_device(pid, place, wait, correlation, flow=False)

    def _annotation(self, row: Row) -> Iterator[Piece]:
        """A range or mark of NVTX. Ranges that may overlap others are kept for :meth:`_overlapping`."""
        start, end, kind, name, name_id, domain, thread = row
        if kind not in _RANGES:
            return
        pid, tid = _thread(thread)
        of = _annotation_of(self._string(name_id if name is None else name), start, start if end is None else end)
        of.args += self._domains.get((pid, domain), "")
        if end is None:  # a mark, or a range that was open at the end
            yield self.text.on_host(pid, tid, of, "i" if kind == _MARK else "B")
        elif kind == _START_END:
            _ = end - start  # raises for other cells
            self._ranges.append((pid, tid, of))
        else:
            yield self.text.on_host(pid, tid, of)

    def _other_call(self, category: str, row: Row) -> Iterator[Piece]:
        """A call of a thread that calls CUDA or has ranges."""
        start, end, thread, name = row
        if thread in self._threads:
            yield self.text.on_host(*_thread(thread), Slice(category, self._as_json(self._string(name)), start, end))

    def _place(self, of: list[Any]) -> tuple[int, tuple[int, int, int], int, int]:
        """Process, place, correlation as recorded, and as written, of a row's columns :data:`_PLACE`."""
        device, context, stream, number, process = of
        pid = _pid(process)
        stream = -1 if stream == _NO_ID else int(stream)
        device = self._gpu.get((pid, device), int(device))
        self._device_of.setdefault((pid, context), device)
        return pid, (device, int(context or 0), stream), number, self.text.correlation(pid, number)

    def _string(self, name: Any) -> str:
        return name if isinstance(name, str) else self._strings.get(name, "unknown")

    def _as_json(self, text: str) -> str:
        """The text as JSON; the same few occur again and again."""
        if (known := self._quoted.get(text)) is None:
            if len(self._quoted) > _REMEMBERED:
                self._quoted.clear()
            known = self._quoted[text] = quoted(text)
        return known


def _annotation_of(text: str, start: int, end: int) -> Slice:
    """A range of NVTX; an operator, if it has the form that PyTorch gives its operators."""
    if text.startswith("aten::") or ", op_id = " in text or ", seq = " in text:
        match = _OPERATOR.fullmatch(text)
        if match and not _ANNOTATION.match(match[1]):
            args = f'"Sequence number":{match[2]},' if match[2] and int(match[2]) >= 0 else ""
            if match[3]:
                args += f'"Input Dims":{json.dumps(json.loads(match[3]))},'
            return Slice("cpu_op", quoted(match[1]), start, end, args)
        text = match[1] if match else text
    return Slice("user_annotation", quoted(text), start, end)


def _payload(data: Any, entries: dict[tuple[int, int], list[tuple[str, str, int]]]) -> dict[str, int]:
    """The values in an event's payload by their names; none if it has no payload, or of an unknown form."""
    if not isinstance(data, bytes) or len(data) < _PAYLOAD.size:
        return {}
    domain, _, schema, *_ = _PAYLOAD.unpack_from(data)
    values = {}
    for form, name, offset in entries.get((domain, schema), ()):
        if _PAYLOAD.size + offset + struct.calcsize(form) <= len(data) and offset >= 0:
            (values[name],) = struct.unpack_from(form, data, _PAYLOAD.size + offset)
    return values


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, int) for value in values)


def _memory(kind: Any) -> str:
    return _MEMORY[kind] if isinstance(kind, int) and 0 <= kind < len(_MEMORY) else "Unknown"


def _pid(number: int) -> int:
    """The pid in a global number of a process or thread."""
    return number >> 24 & 0xFF_FFFF


def _thread(number: int) -> tuple[int, int]:
    """The pid and the tid in a global number of a thread."""
    return number >> 24 & 0xFF_FFFF, number & 0xFF_FFFF
