"""rocprofv3's tables, rocpd in SQLite and CSV files, as Kineto's events.

A kernel and its call share ``stack_id`` in rocpd, ``Correlation_Id`` in CSV. Times are those of the system's monotonic
clock. A process's environment is looked at only for its rank and the number of ranks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from msgspec import Struct, field

from augment.readers.recorders.kineto_text import LAUNCHING, ROCPROFV3, KinetoText, Piece, Row, Slice, quoted
from augment.readers.recorders.open_tables import RecorderTables

_METADATA = "rocpd_metadata_"
_GFX = re.compile(r"gfx(\d+)(\d)([0-9a-f])")
_KINDS = {"HOST": "Host", "CPU": "Host", "GPU": "Device"}
_RANKS, _WORLDS = (
    ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"),
    ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"),
)
KERNELS_CSV = "kernel_trace"
#: the CSV files of one run and their kinds, by how their names end
CSV_KINDS = (KERNELS_CSV, "hip_api_trace", "hsa_api_trace", "memory_copy_trace", "marker_api_trace", "rccl_api_trace")
_AGENT = re.compile(r"\d+")


def is_rocpd(names: frozenset[str]) -> bool:
    """Whether a database with these tables is of rocprofv3."""
    return any(name.startswith(_METADATA) for name in names)


def is_known(versions: set[str]) -> bool:
    """Whether tables of these versions of the schema can be read."""
    return bool(versions) and all(version.split(".")[0] == "3" for version in versions)


class _Set(Struct):
    """A set of tables whose names end with ``suffix``, and what their rows refer to by number."""

    suffix: str
    strings: dict[Any, Any]
    streams: set[Any] = field(default_factory=set)
    stack: dict[Any, tuple[str, int]] = field(default_factory=dict)  #: kind and correlation, by event
    messages: dict[Any, str] = field(default_factory=dict)  #: of markers, by event
    kernels: dict[Any, tuple[str, Any]] = field(default_factory=dict)  #: name and registers


class Rocpd:
    """A database being read: its :meth:`members`, then its :meth:`events`. After a merge it has several sets of
    tables, one a process."""

    def __init__(self, tables: RecorderTables) -> None:
        self._tables = tables
        self._suffixes = sorted(name[len(_METADATA) :] for name in tables.names if name.startswith(_METADATA))
        self.versions = {
            str(value)
            for suffix in self._suffixes
            for tag, value in tables.rows(_METADATA + suffix, ("tag", "value"))
            if tag == "schema_version"
        }
        self._devices: dict[tuple[str, Any], int] = {}  # number of the GPU, by set of tables and agent
        self._kind: dict[tuple[str, Any], str] = {}
        self._pids: dict[tuple[str, Any], int] = {}
        self._tids: dict[tuple[str, Any], int] = {}
        self._thread_names: dict[tuple[int, int], str] = {}
        self._properties: dict[int, dict[str, Any]] = {}
        self._ranks: dict[int, int] = {}
        self._world = 0
        starts = []
        for suffix in self._suffixes:
            # agents, processes and threads of a set of tables
            columns = ("id", "type", "type_index", "name", "product_name", "extdata")
            for agent, kind, index, name, product, extra in self._tables.rows(f"rocpd_info_agent_{suffix}", columns):
                self._kind[suffix, agent] = _KINDS.get(str(kind), "Unknown")
                if kind == "GPU" and isinstance(index, int):
                    self._devices[suffix, agent] = index
                    units = _object(extra).get("cu_count")
                    version = _GFX.match(str(name))
                    self._properties[index] = {
                        "id": index,
                        "name": str(product or name),
                        **({"computeMajor": int(version[1]), "computeMinor": int(version[2])} if version else {}),
                        **({"numSms": units} if isinstance(units, int) else {}),
                    }
            for row, pid, environment in self._tables.rows(
                f"rocpd_info_process_{suffix}", ("id", "pid", "environment")
            ):
                if isinstance(pid, int):
                    self._pids[suffix, row] = pid
                    known = _object(environment)
                    rank, world = (next((known[key] for key in keys if key in known), "") for keys in (_RANKS, _WORLDS))
                    if re.fullmatch(r"\d{1,7}", str(rank)):
                        self._ranks[pid] = int(rank)
                    if re.fullmatch(r"\d{1,7}", str(world)):
                        self._world = int(world)
            for row, tid, process, name in self._tables.rows(
                f"rocpd_info_thread_{suffix}", ("id", "tid", "pid", "name")
            ):
                if isinstance(tid, int):
                    self._tids[suffix, row] = tid
                    if isinstance(name, str) and (suffix, process) in self._pids:
                        self._thread_names[self._pids[suffix, process], tid] = name
            for table in ("kernel_dispatch", "memory_copy", "region"):
                rows = tables.rows(f"rocpd_{table}_{suffix}", ("start",))
                starts += [min((start for (start,) in rows if isinstance(start, int)), default=1 << 62)]
        first = min(starts, default=1 << 62)
        self._first = 0 if first == 1 << 62 else first
        several = len(set(self._ranks.values())) > 1
        self.text = KinetoText(self._first, self._ranks if several else {}, self._pids.values())

    def members(self) -> dict[str, Any]:
        """What Kineto writes before the events; and who recorded them."""
        members: dict[str, Any] = {"recorder": {"name": ROCPROFV3}, "baseTimeNanoseconds": self._first}
        if len(self._ranks) == 1 == len(set(self._pids.values())):
            world = {"world_size": self._world} if self._world else {}
            members["distributedInfo"] = {"rank": next(iter(self._ranks.values())), **world}
        if self._properties:
            members["deviceProperties"] = [self._properties[number] for number in sorted(self._properties)]
        return members

    def events(self) -> Iterator[Piece]:
        """All events."""
        for pid in dict.fromkeys(self._pids.values()):
            yield self.text.process(pid, "process")
        for (pid, tid), name in self._thread_names.items():
            yield self.text.thread(pid, tid, name)
        for suffix in self._suffixes:
            text, of = self.text, _Set(suffix, dict(self._rows("string", suffix, "id", "string")))
            of.streams = {stream for (stream,) in self._rows("info_stream", suffix, "id")}
            for event, category, number, extra in self._rows(
                "event", suffix, "id", "category_id", "stack_id", "extdata"
            ):
                kind = str(of.strings.get(category, ""))
                of.stack[event] = kind, number if isinstance(number, int) else 0
                if kind.startswith("MARKER") and isinstance(message := _object(extra).get("message"), str):
                    of.messages[event] = message
            for symbol, shown, name, registers in self._rows(
                "info_kernel_symbol", suffix, "id", "display_name", "kernel_name", "arch_vgpr_count"
            ):
                of.kernels[symbol] = quoted(str(shown or name)), registers
            rows = self._rows("region", suffix, "pid", "tid", "start", "end", "name_id", "event_id")
            yield from text.of_rows(rows, partial(self._call, of))
            rows = self._rows("kernel_dispatch", suffix, *_WORK, "agent_id", "kernel_id", "group_segment_size", *_SIZES)
            yield from text.of_rows(rows, partial(self._kernel, of))
            rows = self._rows("memory_copy", suffix, *_WORK, "src_agent_id", "dst_agent_id", "size")
            yield from text.of_rows(rows, partial(self._copy, of))

    def _rows(self, table: str, suffix: str, *columns: str) -> Iterator[Row]:
        return self._tables.rows(f"rocpd_{table}_{suffix}", columns)

    def _call(self, of: _Set, row: Row) -> Iterator[Piece]:
        process, thread, start, end, name, event = row
        pid, tid = self._pids[of.suffix, process], self._tids[of.suffix, thread]
        kind, number = of.stack.get(event, ("", 0))
        called = of.messages.get(event) or str(of.strings.get(name, "unknown"))
        return _call(self.text, pid, tid, kind, called, start, end, number)

    def _kernel(self, of: _Set, row: Row) -> Iterator[Piece]:
        *where, agent, kernel, shared = row[: -len(_SIZES)]
        name, registers = of.kernels[kernel]
        return self._work(of, where, agent, "kernel", name, _shape(registers, shared, row[-len(_SIZES) :]))

    def _copy(self, of: _Set, row: Row) -> Iterator[Piece]:
        *where, source, target, size = row
        kinds = [self._kind.get((of.suffix, agent), "Unknown") for agent in (source, target)]
        agent = target if kinds[1] == "Device" else source
        return self._work(of, where, agent, "gpu_memcpy", quoted(_copy(*kinds)), f'"bytes":{size:d},')

    def _work(self, of: _Set, where: Sequence[Any], agent: Any, category: str, name: str, args: str) -> Iterator[Piece]:
        process, start, end, queue, stream, event = where
        pid = self._pids[of.suffix, process]
        number = of.stack.get(event, ("", 0))[1]
        place = self._devices[of.suffix, agent], 0, int(stream if stream in of.streams else queue)
        correlation = self.text.correlation(pid, number) if number > 0 else -1
        return self.text.on_device(pid, place, Slice(category, name, start, end, args), correlation)


_WORK = ("pid", "start", "end", "queue_id", "stream_id", "event_id")
_SIZES = ("workgroup_size_x", "workgroup_size_y", "workgroup_size_z", "grid_size_x", "grid_size_y", "grid_size_z")


def _object(text: Any) -> dict[str, Any]:
    """The object in a JSON text; an empty one if it is none."""
    try:
        value = json.loads(text) if isinstance(text, str) and len(text) < 1 << 20 else None
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {}


def _shape(registers: Any, shared: Any, sizes: Sequence[Any]) -> str:
    """Kineto's args of a kernel's launch: the grid in blocks, where rocprofv3 counts threads."""
    numbers = [int(size) for size in sizes]
    block, threads = numbers[:3], numbers[3:]
    grid = [-(-count // size) if size > 0 else count for count, size in zip(threads, block, strict=True)]
    used = f'"registers per thread":{int(registers or 0)},"shared memory":{int(shared or 0)},'
    return f'{used}"grid":{grid},"block":{block},'


def _copy(source: str, target: str) -> str:
    letters = {"Host": "H", "Device": "D"}
    return f"Memcpy {letters.get(source, '?')}to{letters.get(target, '?')} ({source} -> {target})"


class RocprofCsv:
    """CSV files of one run being read: its :meth:`members`, then its :meth:`events`."""

    def __init__(self, tables: RecorderTables) -> None:
        self._tables = tables
        self.text = KinetoText(0, {}, ())

    def members(self) -> dict[str, Any]:
        """Who recorded the events."""
        return {"recorder": {"name": ROCPROFV3}}

    def events(self) -> Iterator[Piece]:
        """All events."""
        for table in CSV_KINDS:
            if table.endswith("api_trace"):
                yield from self.text.of_rows(self._tables.rows(table, _CALL_CSV), self._call)
        yield from self.text.of_rows(self._tables.rows(KERNELS_CSV, (*_KERNEL_CSV, *_SIZES_CSV)), self._kernel)
        yield from self.text.of_rows(self._tables.rows("memory_copy_trace", _COPY_CSV), self._copy)

    def _call(self, row: Row) -> Iterator[Piece]:
        domain, name, process, thread, number, start, end = row
        return _call(self.text, int(process), int(thread), domain, name, int(start), int(end), int(number))

    def _kernel(self, row: Row) -> Iterator[Piece]:
        agent, queue, stream, name, number, start, end, registers, shared, *sizes = row
        args = _shape(registers, shared, sizes) if None not in sizes else ""
        place = _number(agent), 0, int(queue if stream is None else stream)
        of = Slice("kernel", quoted(name), int(start), int(end), args)
        return self.text.on_device(0, place, of, int(number))

    def _copy(self, row: Row) -> Iterator[Piece]:
        direction, source, target, stream, number, start, end = row
        kinds = [each.capitalize() for each in re.findall("HOST|DEVICE", direction)]
        kinds = kinds if len(kinds) == 2 else ["Unknown", "Unknown"]
        place = _number(target if kinds[1] == "Device" else source), 0, int(stream or 0)
        of = Slice("gpu_memcpy", quoted(_copy(*kinds)), int(start), int(end))
        return self.text.on_device(0, place, of, int(number))


_CALL_CSV = ("Domain", "Function", "Process_Id", "Thread_Id", "Correlation_Id", "Start_Timestamp", "End_Timestamp")
_KERNEL_CSV = ("Agent_Id", "Queue_Id", "Stream_Id", "Kernel_Name", "Correlation_Id", "Start_Timestamp",
               "End_Timestamp", "VGPR_Count", "LDS_Block_Size")  # fmt: skip
_SIZES_CSV = tuple(f"{what}_Size_{axis}" for what in ("Workgroup", "Grid") for axis in "XYZ")
_COPY_CSV = ("Direction", "Source_Agent_Id", "Destination_Agent_Id", "Stream_Id", "Correlation_Id",
             "Start_Timestamp", "End_Timestamp")  # fmt: skip


def _call(
    text: KinetoText, pid: int, tid: int, domain: str, name: str, start: int, end: int, number: int
) -> Iterator[Piece]:
    """A call of the host; a ``number`` above 0 is the correlation of what it launches."""
    category = "cuda_driver" if domain.startswith("HSA") else "cuda_runtime"
    if domain.startswith(("MARKER", "ROCTX", "RCCL")):
        category = "user_annotation"
    if category == "user_annotation" or number <= 0:
        yield text.on_host(pid, tid, Slice(category, quoted(name), start, end))
        return
    correlation = text.correlation(pid, number)
    yield text.on_host(pid, tid, Slice(category, quoted(name), start, end, f'"correlation":{correlation},'))
    if LAUNCHING.search(name):
        yield text.launching(pid, tid, start, correlation)


def _number(agent: str) -> int:
    """The number in ``Agent 4``, or in a number alone."""
    match = _AGENT.search(agent)
    if match is None:
        raise ValueError("an agent without a number")
    return int(match[0])
