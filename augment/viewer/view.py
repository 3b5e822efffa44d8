"""The first view of a trace (the rows that show problems, the devices, and a step in the middle), and the link that
opens it in the Perfetto UI.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from augment import facts
from augment.arrays import EventRows
from augment.core import COMPLETE, LAUNCHES, Category, Trace, text
from augment.core.annotations import CUT_OFF
from augment.diagnosis.wording import vendor
from augment.errors import UsageError
from augment.writers.perfetto.several import FirstView

_INSIDE_NS = 1000  #: the UI drops a window that begins before the trace or ends after it, as it reads their times
_MARGIN_NS = 20_000  #: shown before and after a moment
_MOST = 10  #: maximum number of pinned rows, besides those of a comparison and the mark of the last GPU events
_COMPARED = 2  #: number of busiest devices whose differences are pinned
_DEVICES = 3  #: number of busiest devices whose state is pinned
_EXPANDED = 3  #: number of processes that are expanded if none launches work
_SHARE = 0.01  #: a counter is pinned if its maximum is at least this share of the device's memory
_LEAST_BYTES = 100 * 2**20  #: or, if the device's memory is unknown, at least this amount
#: suffixes of a counter's name: its unit, if it was read from Chrome JSON, and the thread id that the UI adds
_UNIT = r"( operations| bytes| MB| GB)?( \(\d+\))?"

_DEVICE = r"(GPU|NPU|MTIA device) \d+"  #: a group of the tracks of a device
_VERDICT = r"(Job d|D)iagnosis( \(\d+\))?"
_CHANGES = "(slower|faster|cumulative)"  #: rows of a comparison
_STATE, _PATH = "GPU state", "(Cross-rank critical path|Critical path)"


class View(Struct, frozen=True):
    """What to show first.

    ``pins`` are patterns of the names of tracks to pin, in this order. A group is expanded if ``groups`` has its name
    or ``group_pattern`` matches it. ``window`` is the period to zoom to, and ``bounds`` the start of the first event
    and the last end, or None if unknown; both are in the file's time.
    """

    pins: Sequence[str] = ()
    groups: Sequence[str] = ()
    window: tuple[int, int] | None = None
    group_pattern: str = ""
    bounds: tuple[int, int] | None = None

    def since(self, ns: int) -> View:
        """The view of a part that begins ``ns`` after the whole trace; periods stay relative to the whole trace."""
        return replace(self, bounds=self.bounds and (self.bounds[0] - ns, self.bounds[1]))

    def at(self, start_ns: int, end_ns: int) -> View:
        """The view of a period, relative to the first event of the trace; it fills the middle half of the window.

        Raises:
            UsageError: the file has several traces, or the period is outside of it.
        """
        if self.bounds is None:
            raise UsageError("--at: this file does not contain the start of its trace; give the trace itself")
        first, last = self.bounds
        start, end = first + start_ns, first + end_ns
        if start >= last:
            raise UsageError(f"--at: the trace shown ends {(last - first) / 1e6:,.3f} ms after the first event")
        margin = max((end - start) // 2, _MARGIN_NS)
        window = max(start - margin, first + _INSIDE_NS), min(end + margin, last - _INSIDE_NS)
        return replace(self, window=window)


#: the view of a file with several traces: the ranks of a job, or a comparison. The UI pins the matches of a pattern in
#: the order of the tree, and older versions do not sort the ranks in the tree; so each rank has its own pattern
TIMELINE = View(
    pins=(
        *(f"Diagnosis rank {rank}" for rank in range(3)),
        "Steps rank 0",
        *(f"GPU state( device 0)? rank {rank}" for rank in range(6)),
    ),
    group_pattern=rf"(rank 0|control: .*|test: .*|{_DEVICE})",
)


def timeline_view(first: FirstView | None) -> View:
    """The view of a file with several traces: the one stored in the file, else the default for a job."""
    if first is None:
        return TIMELINE
    window = (first.window[0] + _INSIDE_NS, first.window[1] - _INSIDE_NS) if first.window else None
    pattern = _DEVICE if first.groups else TIMELINE.group_pattern
    return View(first.pins, first.groups, window, pattern)


#: the view of a file that cannot be read here
UNKNOWN = View(
    pins=(_VERDICT, f"Δ GPU .* {_CHANGES}", "Steps", _STATE, _PATH, "Idle", "Exposed communication"),
    groups=("GPU 0", "NPU 0"),
)


def view_of(trace: Trace) -> View:
    """The view of a trace in a native file; it pins only tracks that the file has. ``trace`` is without added ones."""
    shift_ns = max(0, -int(trace.events.ts.min(initial=0)))  # by which the writer moves times
    word = text.words_of(vendor(trace)).gpu
    devices, bounds = [f"{word} {device}" for device in facts.gpu.busiest_devices(trace)], None
    groups = _processes(trace) if _kernels(trace) else [*_processes(trace), *devices]
    if not len(trace.events):  # what was recorded beside a trace, alone
        groups = [name for track in trace.tracks for name in (track.process_name, track.thread_name) if name]
    else:
        ends = trace.events.ts + np.where(trace.events.phase == COMPLETE, trace.events.dur, 0)
        bounds = int(trace.events.ts[0]) + shift_ns, int(ends.max()) + shift_ns
    # rows that few files have: the mark of the last GPU events and, in a comparison, the differences
    differences = [f"Δ GPU {_escaped(device)} {_CHANGES}" for device in facts.gpu.busiest_devices(trace)[:_COMPARED]]
    rare = [rf"{CUT_OFF}( \(\d+\))?", *(differences or [r"Δ host( cumulative)?( \(\d+\))?"])]  # the UI adds thread ids
    return View(
        pins=[_VERDICT, *rare, *islice(_pins(trace), _MOST - 1)],
        groups=groups,
        window=_window(trace, shift_ns),
        bounds=bounds,
    )


def _pins(trace: Trace) -> Iterator[str]:
    """Patterns of the rows to pin below the diagnosis, in order; each matches at most one row."""
    devices = facts.gpu.busiest_devices(trace)
    ends = [f" device {_escaped(device)}" for device in devices] if len(devices) > 1 else [""]
    yield "Steps"
    if facts.steps.is_served(trace):
        yield "Inference steps"
    for end in ends[:_DEVICES]:
        yield _STATE + end
    if kernels := _kernels(trace):
        yield _escaped(kernels)
    yield _PATH
    yield "Idle" + ends[0] if ends else "Idle"
    yield "Exposed communication" + ends[0] if ends else "Exposed communication"
    busiest = facts.gpu.busiest_stream(trace)
    if busiest is not None:
        yield f"Queue Length stream {_escaped(busiest.stream)}({'|'.join(ends)}){_UNIT}"
    for memory in facts.memory.devices(trace):
        if _matters(trace, memory):
            end = f" device {_escaped(memory.device)}" if len(devices) > 1 and memory.on_stream else ""
            yield f"Memory allocated{_escaped(memory.label)}{end}{_UNIT}"
            return


def _kernels(trace: Trace) -> str:
    """The row with the kernels of the busiest stream: what is pinned need not be looked for below. Empty if rows of
    several devices have that name."""
    busiest = facts.gpu.busiest_stream(trace)
    if busiest is None:
        return ""
    names = {
        ((track.thread_name or "").strip() or f"stream {track.stream}", track.device): track
        for track in trace.tracks
        if track.device is not None
    }
    track = trace.tracks[busiest.track]
    name = (track.thread_name or "").strip() or f"stream {track.stream}"
    return name if sum(known == name for known, _ in names) == 1 else ""


def _matters(trace: Trace, memory: facts.memory.DeviceMemory) -> bool:
    """Whether the maximum is large enough to pin the counter: a share of the device's memory."""
    greatest = int(memory.allocated[memory.peak]) if len(memory.allocated) else 0
    for properties in trace.source.metadata.get("deviceProperties") or ():
        if isinstance(properties, dict) and properties.get("id") == memory.device and memory.on_stream:
            total = properties.get("totalGlobalMem")
            if isinstance(total, int) and total > 0:
                return greatest >= _SHARE * total
    return greatest >= _LEAST_BYTES


def _processes(trace: Trace) -> list[str]:
    """The names of the process with most operators and of the processes that launch GPU work; if no process launches
    any, of those with most slices."""
    events = trace.events
    launching = _counted(trace, events.slices_of(*LAUNCHES))
    if not launching:
        return [name for name, _ in _counted(trace, events.where(events.dur > 0)).most_common(_EXPANDED)]
    operating = _counted(trace, events.slices_of(Category.CPU_OP)).most_common(1)
    names = [name for name, _ in (*operating, *launching.most_common(_EXPANDED))]
    return list(dict.fromkeys(names))


def _counted(trace: Trace, rows: EventRows) -> Counter[str]:
    """The number of ``rows`` of each process, without the profiler's rows."""
    counted: Counter[str] = Counter()
    tracks, counts = np.unique(trace.events.track[rows], return_counts=True)
    for track, count in zip(tracks.tolist(), counts.tolist(), strict=True):
        row = trace.tracks[track]
        if isinstance(row.pid, int):  # the UI's name is the part after the last slash
            name = row.process_name.rpartition("/")[2] if row.process_name else "Process"
            counted[f"{name} {row.pid}"] += count
    return counted


def _window(trace: Trace, shift_ns: int) -> tuple[int, int] | None:
    """The window of a middle step, from its start on the host to the end of its GPU work, in the file's time.

    Without steps, the window is the period with nine tenths of the slices, if it is shorter than three quarters of the
    recording.
    """
    windows = facts.steps.windows(trace)
    real = np.flatnonzero((windows.end - windows.begin > 2 * _INSIDE_NS) & (windows.number >= 0))
    if len(real):
        size = (windows.end - windows.start)[real]  # leaves out empty steps
        real = real[size >= np.median(size) / 2] if size.any() else real
        launching = np.isin(real, facts.steps.step_of_work(trace, windows))
        real = real[launching] if launching.any() else real
        middle = real[len(real) // 2]
        start, end = int(windows.begin[middle]), int(windows.end[middle])
        recorded = facts.steps.recorded_windows(trace)
        first = int(max(recorded.start[recorded.begin == start], default=start))
        if first - start > 3 * (end - first):  # of which nothing else is judged
            start = first - (end - first) // 4
    elif (crowded := _crowded(trace)) is None:
        return None
    else:
        start, end = crowded
    return start + shift_ns + _INSIDE_NS, end + shift_ns - _INSIDE_NS


def _crowded(trace: Trace) -> tuple[int, int] | None:
    """The period with nine tenths of all slices and a margin; None if it is three quarters of the recording or more."""
    rows = np.flatnonzero((trace.events.phase == COMPLETE) & (trace.events.dur > 0))
    if not len(rows):
        return None
    ends = np.sort(trace.events.ts[rows] + trace.events.dur[rows])
    first, last = int(trace.events.ts[0]), int(max(ends[-1], trace.events.ts[-1]))
    start, end = int(trace.events.ts[rows[len(rows) // 20]]), int(ends[-1 - len(rows) // 20])
    margin = max((end - start) // 10, 2 * _INSIDE_NS)
    start, end = max(start - margin, first), min(end + margin, last)
    return (start, end) if start < end < start + 3 * (last - first) // 4 else None


def _escaped(name: object) -> str:
    return exactly([str(name)])


def exactly(names: Iterable[str]) -> str:
    """A JavaScript regular expression, without anchors, for exactly these names."""
    return "|".join(re.sub(r"[\\^$.*+?()[\]{}|/]", r"\\\g<0>", name) for name in dict.fromkeys(names))


_PIN = "dev.perfetto.PinTracksByRegex"
_EXPAND = "dev.perfetto.ExpandTracksByRegex"


def ui_link(ui: str, trace_url: str | None, view: View) -> str:
    """The link to the UI at ``ui`` with the trace: added tracks pinned, devices expanded, zoomed in.

    Without ``trace_url`` the UI waits for a trace from the window that opened it.
    """
    arguments = {} if trace_url is None else {"url": trace_url}
    arguments["startupCommands"] = json.dumps(commands(view), separators=(",", ":"))
    if view.window:
        arguments["visStart"], arguments["visEnd"] = map(str, view.window)
    return f"{ui}/#!/?{urllib.parse.urlencode(arguments, quote_via=urllib.parse.quote)}"


def commands(view: View) -> list[dict[str, object]]:
    """The commands that the UI runs once the trace is loaded; links may use all of them.

    Each command pins in the order of the tree, so each pin is a command.
    """
    made: list[dict[str, object]] = [{"id": _PIN, "args": [f"^({pattern})$"]} for pattern in view.pins]
    patterns = [exactly(view.groups), view.group_pattern]
    return made + [{"id": _EXPAND, "args": [f"^({pattern})$"]} for pattern in patterns if pattern]
