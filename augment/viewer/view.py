"""What is worth seeing first in a trace: the tracks that were added, the devices, the first step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from augment.annotations import Annotation, CounterTrack, Flows
from augment.arrays.types import Int32s
from augment.trace import COMPLETE, GPU_WORK, LAUNCHES, Category, Trace, Track

_COUNTER = ord("C")
_ARROWS = [ord(phase) for phase in "stf"]
_INSIDE_NS = 1000  #: the UI drops a window that begins before the trace or ends after it, as it reads their times
_MOST = 9  #: tracks, of which the UI shows about so many at once above the others
_BUSIEST = 2  #: streams whose tracks are looked at first, where what was added cannot be asked for

#: what begins so is looked at first, in this order: of the whole, then the fullest of the streams, then copies
_FIRST = (
    "Diff vs",
    "Critical path",
    "Cross-rank critical path",
    "Idle",
    "Exposed communication",
    "Wait and transfer",
    "Idle stream",
    "Queue Length",
    "Memory allocated",
    "Memory timeline total",
    "Memory timeline Activation",
    "Memory timeline Gradient",
    "Memcpy",
)
_ALIKE = 2  #: tracks of one beginning, such as those of many streams; of the first there may be more

#: the tracks that augment adds to a device, and to a stream
_OF_DEVICE = (
    r"Idle|Exposed communication|Critical path.*|Cross-rank critical path|Diff vs .*|Memory allocated|"
    r"Memory timeline (total|Activation|Gradient)|(Memcpy|Memset).* bandwidth"
)
_OF_STREAM = r"(Wait and transfer|Idle|Queue Length) stream"


@dataclass(frozen=True, slots=True)
class Added:
    """An added track of so many ``rows``; ``tid`` is its thread's, if it is one, in the process called ``process``."""

    name: str
    counter: bool
    rows: int
    tid: int | None = None
    process: str = ""

    @property
    def of_stream(self) -> bool:
        """Whether it is one of many."""
        return " stream " in self.name


@dataclass(frozen=True, slots=True)
class View:
    """What to show first.

    ``work`` names tracks of the source to pin, above what was ``added``, by name or ``pattern``; ``groups``, by name or
    ``group_pattern``, are to be expanded, and ``window`` are the times to zoom to, as the file has them.
    """

    work: Sequence[str] = ()
    added: Sequence[Added] = ()
    pattern: str = ""
    groups: Sequence[str] = ()
    window: tuple[int, int] | None = None
    group_pattern: str = ""


#: of a file with several traces
UNKNOWN = View(pattern=f"^({_OF_DEVICE})$", groups=("GPU 0",))

#: of the ranks of a job, of which what is worth pinning is there as often as there are ranks; or of a comparison
TIMELINE = View(pattern="^Diff vs .*$", group_pattern=r"^(rank 0|control: .*|test: .*|GPU \d+)$")


def native_view(trace: Trace, annotations: Iterable[Annotation] | None) -> View:
    """The view of a trace in Perfetto's format, of which these are the ``annotations``, if they are known."""
    groups = [*_hosts(trace), *(f"GPU {track.device}" for track in trace.tracks if track.device is not None)]
    window = _window(trace, max(0, -int(trace.events.ts.min(initial=0))))
    busiest = _busiest(trace)
    work = [(one.thread_name or "").strip() or f"stream {one.stream}" for one in busiest[:1]]
    if annotations is None:
        return View(work, (), _pattern(busiest), groups, window)
    drawn = (one for one in annotations if not isinstance(one, Flows) and len(one.ts))
    added = (Added(one.name, isinstance(one, CounterTrack), len(one.ts)) for one in drawn)
    return View(work, _chosen(added), "", groups, window)


def chrome_view(trace: Trace) -> View:
    """The view of an augmented Chrome trace that was read again."""
    groups = [_process(trace, index) for index, track in enumerate(trace.tracks) if track.device is not None]
    return View((), _chosen(_added(trace)), "", groups, _window(trace, -trace.source.base_ns))


def _chosen(added: Iterable[Added]) -> list[Added]:
    """Those to pin: what explains most, the fullest of each kind; then any others; slices above counters."""
    kinds: dict[int, list[Added]] = {}
    for one in sorted(added, key=lambda one: -one.rows):
        kinds.setdefault(_kind(one.name), []).append(one)
    ranked = [one for kind, alike in sorted(kinds.items()) for one in alike[: _ALIKE if kind else _MOST]]
    return sorted(ranked[:_MOST], key=lambda one: (one.counter, one.of_stream, one.name))


def _kind(name: str) -> int:
    """The place of the longest beginning in :data:`_FIRST`; behind all if there is none."""
    fits = [(len(first), place) for place, first in enumerate(_FIRST) if name.startswith(first)]
    return max(fits)[1] if fits else len(_FIRST)


def _busiest(trace: Trace) -> list[Track]:
    """The streams that have the most work, the busiest first."""
    rows = trace.events.slices_of(*GPU_WORK)
    ranked = sorted(_counts(trace.events.track[rows]), key=lambda pair: -pair[1])
    return [trace.tracks[index] for index, _ in ranked[:_BUSIEST]]


def _pattern(busiest: Sequence[Track]) -> str:
    """Of the tracks of devices, and of these streams."""
    of_stream = f"|{_OF_STREAM} ({'|'.join(str(one.stream) for one in busiest)})" if busiest else ""
    return f"^({_OF_DEVICE}{of_stream})$"


def _added(trace: Trace) -> Iterator[Added]:
    """The tracks with events of our categories; arrows, which begin and end on tracks of the source, add none."""
    ours = [code for code, name in enumerate(trace.strings) if name.startswith("augment.")]
    rows = np.flatnonzero(np.isin(trace.events.category_name, ours) & ~np.isin(trace.events.phase, _ARROWS))
    counted = trace.events.phase[rows] == _COUNTER
    for code, count in _counts(trace.events.name[rows[counted]]):
        yield Added(trace.strings[code], True, count)
    for index, count in _counts(trace.events.track[rows[~counted]]):
        track = trace.tracks[index]
        tid = track.tid if isinstance(track.tid, int) else None
        yield Added(track.thread_name or "", False, count, tid, _process(trace, index))


def _counts(values: Int32s) -> list[tuple[int, int]]:
    return [(int(value), int(count)) for value, count in zip(*np.unique(values, return_counts=True), strict=True)]


def _hosts(trace: Trace) -> list[str]:
    """The names of the processes that launch work on devices."""
    rows = trace.events.slices_of(*LAUNCHES)
    return [_process(trace, index) for index, _ in _counts(trace.events.track[rows])]


def _process(trace: Trace, track: int) -> str:
    """What the UI calls the process of a track."""
    one = trace.tracks[track]
    return f"{one.process_name} {one.pid}" if one.process_name else f"Process {one.pid}"


def _window(trace: Trace, shift_ns: int) -> tuple[int, int] | None:
    """The first step, in the times of the file."""
    steps = [code for code, name in enumerate(trace.strings) if name.startswith("ProfilerStep")]
    events = trace.events
    rows = np.flatnonzero(np.isin(events.name, steps) & (events.phase == COMPLETE))
    host = rows[events.category[rows] != Category.GPU_USER_ANNOTATION]
    rows = host if len(host) else rows
    rows = rows[events.dur[rows] > 2 * _INSIDE_NS]
    if not len(rows):
        return None
    start = int(events.ts[rows[0]]) + shift_ns
    return start + _INSIDE_NS, start + int(events.dur[rows[0]]) - _INSIDE_NS
