"""Events as Kineto writes them, in JSON, from what other recorders keep in tables."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from msgspec import Struct

NSIGHT_SYSTEMS, ROCPROFV3 = "Nsight Systems", "rocprofv3"  #: the member ``recorder`` names one of them
NOTES = "recorderNotes"  #: the member behind the events that counts what was odd, by code
quoted = json.JSONEncoder(ensure_ascii=False).encode  #: a value as JSON
LAUNCHING = re.compile(r"Launch|Memcpy|Memset")  #: in names of calls that an arrow leads from
_ODD = (TypeError, ValueError, OverflowError, LookupError)  #: what writing a row raises whose cells are of other types
Row = tuple[Any, ...]
Piece = str  #: the text of one event
#: a process is a rank's if the recorder tells so; its correlations are moved so that those of no two are equal
PER_PROCESS = 1 << 32
GPU_PIDS = 1 << 24  #: above all pids of the system: the processes of devices whose number is a pid, too
NO_STREAM_TID = 0x7FFF_FFFF  #: the thread of what concerns no stream


class Slice(Struct):
    """Something that lasted from ``start`` to ``end``, ns. ``args``: members of a JSON object, each with a comma after
    it."""

    category: str
    name: str
    start: int
    end: int
    args: str = ""


class KinetoText:
    """Writes events. ``origin_ns`` is subtracted from all times; ``ranks``: by process, if there are several."""

    def __init__(self, origin_ns: int, ranks: dict[int, int], host_pids: Iterable[int]) -> None:
        self._origin, self._pids = origin_ns, set(host_pids)
        self._several = len(self._pids) > 1
        self._rank = {pid: f'"rank":{rank},' for pid, rank in ranks.items()}
        self._process: dict[int, int] = {}
        self._device: dict[tuple[int, int], tuple[int, int]] = {}
        self._stream: dict[tuple[int, int, int, int], tuple[int, str]] = {}
        self._streams_of: dict[tuple[int, int], set[int]] = {}
        self.notes = Counter[str]()  #: what was odd: counts by code

    def correlation(self, pid: int, number: int) -> int:
        """The number of a correlation of a process, which no other process has."""
        return int(number) + PER_PROCESS * self._process.setdefault(pid, len(self._process))

    def of_rows(self, rows: Iterable[Row], write: Callable[[Row], Iterable[Piece]]) -> Iterator[Piece]:
        """What ``write`` makes of each row. Rows whose cells are not what they should be are counted, and left out."""
        for row in rows:
            try:
                pieces = list(write(row))
            except _ODD:  # noqa: PERF203 - a row at a time
                self.notes["unread_rows"] += 1
            else:
                yield from pieces

    def on_host(self, pid: int, tid: int, of: Slice, phase: str = "X") -> Piece:
        """A slice of a thread; of another ``phase``, without a duration."""
        args = (self._rank.get(pid, "") + of.args)[:-1]
        dur = f'"dur":{_us(_length(of))},' if phase == "X" else ""
        return (
            f'{{"ph":"{phase}","cat":"{of.category}","name":{of.name},"pid":{pid},"tid":{tid},'
            f'"ts":{_us(of.start - self._origin)},{dur}"args":{{{args}}}}}'
        )

    def launching(self, pid: int, tid: int, start: int, correlation: int) -> Piece:
        """The beginning of the arrow to what a call launched."""
        return self._arrow("s", correlation, pid, tid, start, self._rank.get(pid, ""))

    def _arrow(self, phase: str, correlation: int, pid: int, tid: int, ts: int, rank: str) -> Piece:
        return (
            f'{{"ph":"{phase}","bp":"e","cat":"ac2g","name":"ac2g","id":{correlation},"pid":{pid},"tid":{tid},'
            f'"ts":{_us(ts - self._origin)},"args":{{{rank[:-1]}}}}}'
        )

    def on_device(
        self, pid: int, place: tuple[int, int, int], of: Slice, correlation: int, *, flow: bool = True
    ) -> Iterator[Piece]:
        """A slice of a stream. ``place``: device, context, stream, -1 for none; with the end of its arrow."""
        dur, key, rank = _us(_length(of)), (pid, *place), self._rank.get(pid, "")
        if key not in self._stream:
            yield from self._begin_stream(key)
        gpu_pid, device = self._device[pid, place[0]]
        tid, stream = self._stream[key]
        yield (
            f'{{"ph":"X","cat":"{of.category}","name":{of.name},"pid":{gpu_pid},"tid":{tid},'
            f'"ts":{_us(of.start - self._origin)},"dur":{dur},"args":{{{rank}{of.args}'
            f'"device":{device},"context":{place[1]},"stream":{stream},"correlation":{correlation}}}}}'
        )
        if flow and correlation >= 0:
            yield self._arrow("f", correlation, gpu_pid, tid, of.start, rank)

    def _begin_stream(self, key: tuple[int, int, int, int]) -> Iterator[Piece]:
        """Give a stream its thread, and its device its process: the numbers that Kineto uses, where nothing else has
        them."""
        pid, device, context, stream = key
        if not 0 <= device < GPU_PIDS:
            raise ValueError("no number of a device")
        if (pid, device) not in self._device:
            gpu_pid = device
            while gpu_pid in self._pids:
                gpu_pid += GPU_PIDS
            self._pids.add(gpu_pid)
            self._device[pid, device] = gpu_pid, device
            yield self.process(gpu_pid, f"GPU {device}" if not self._several else f"GPU {device} of {pid}")
        gpu_pid = self._device[pid, device][0]
        taken = self._streams_of.setdefault((pid, device), set())
        tid = stream if 0 <= stream < NO_STREAM_TID else NO_STREAM_TID
        is_other = tid in taken and stream >= 0
        while is_other and tid in taken:
            tid += 100_000
        taken.add(tid)
        name = f"{stream} of context {context}" if is_other else stream
        self._stream[key] = tid, quoted(name)
        yield self.thread(gpu_pid, tid, f"stream {name}" if stream >= 0 else "synchronization")

    def process(self, pid: int, name: str) -> Piece:
        """The name of a process."""
        return f'{{"ph":"M","name":"process_name","pid":{pid},"tid":0,"ts":0,"args":{{"name":{quoted(name)}}}}}'

    def thread(self, pid: int, tid: int, name: str) -> Piece:
        """The name of a thread."""
        return f'{{"ph":"M","name":"thread_name","pid":{pid},"tid":{tid},"ts":0,"args":{{"name":{quoted(name)}}}}}'


def _us(ns: int) -> str:
    """Microseconds. Raises ValueError or TypeError unless ``ns`` is an int."""
    return f"{ns // 1000:d}.{ns % 1000:03d}"


def _length(of: Slice) -> int:
    length = of.end - of.start
    if length < 0:
        raise ValueError("ends before it starts")
    return length


def document(members: dict[str, Any], events: Iterator[Piece], last: dict[str, Any]) -> Iterator[str]:
    """The whole text: ``members``, the events, and ``last``, which is complete only after them."""
    head = ",\n".join(f"{quoted(name)}: {quoted(value)}" for name, value in members.items())
    yield "{" + head + ',\n"traceEvents": [\n' + next(events, '{"ph":"M","name":"process_name","pid":0,"args":{}}')
    held = list(islice(events, 512))
    while held:
        yield "".join(f",\n{event}" for event in held)
        held = list(islice(events, 512))
    yield "\n]" + "".join(f",\n{quoted(name)}: {quoted(value)}" for name, value in last.items()) + "}\n"
