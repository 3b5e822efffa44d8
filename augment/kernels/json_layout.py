"""What the compiled event scanner and its Python side share: result codes, and records in memory."""

from __future__ import annotations

from augment.kernels.dictionary import InternedBytes
from augment.kernels.memory import record
from augment.kernels.wanted_args import Wanted

PHASES = frozenset(
    "XBEIiCbnestfSTpFPNODMvRc(){}VO="
)  #: of the Trace Event Format, those of its older versions included

MORE, END, GROW, BROKEN = 0, 1, 2, 3  #: why the scanner stopped
NOTE_ODD, NOTE_METADATA, NOTE_UNUSABLE = 0, 1, 2
CORRELATION, DEVICE, STREAM, SIZE = range(4)  #: fields of the wanted args, which any row may have
HAS_PHASE, HAS_TS, HAS_DUR, HAS_NAME, HAS_ID, HAS_CATEGORY, HAS_HEAD = (1 << k for k in range(7))
HEAD = HAS_PHASE | HAS_NAME | HAS_CATEGORY  #: what a line must contain to be kept, besides pid and tid
LONGEST_LINE = 2048
GIVE_UP_LINES = 256  #: after so many events without a line end nearby, the text counts as not laid out in lines
NUMBER, STRING, MISSING = 0, 1, 2  #: kinds of a pid or tid
SLICE, METADATA = ord("X"), ord("M")
ABSENT = -(1 << 63)  #: the place of a device or stream that the args lack


@record
class Text:
    """Where the body of a string begins and ends (addresses), and its hash."""

    start: int
    end: int
    hash: int


@record
class Identity:
    """A pid or tid: a number or a string."""

    kind: int
    number: int
    text: Text


@record
class Head:
    """What events with the same first line have in common; strings are numbers of ``Scan.strings``."""

    phase: int
    category: int
    name: int
    kinds: int  #: four times the kind of the pid, plus that of the tid
    pid: int
    tid: int


@record
class Place:
    """A key of ``Scan.place_keys``."""

    kinds: int
    pid: int
    tid: int
    device: int
    stream: int


@record
class Note:
    """An event that is left to Python."""

    kind: int
    row: int
    start: int
    end: int


@record
class Event:
    """The event at hand."""

    seen: int  #: bits ``HAS_…``
    line: int  #: the end of its first line, if that is a head; or -1
    phase: int
    ts: int
    dur: int
    id: int
    name: Text
    category: Text
    pid: Identity
    tid: Identity
    head: Head  #: made of the members above


@record
class Scan:
    """The progress of a scan, and its tables. Columns are addresses; int64, if no other type is given."""

    position: int  #: in the text
    rows: int
    places: int
    notes: int
    sizes: int
    flows: int
    events: int
    last_end: int  #: in all the text
    no_lines: int  #: events without a line end nearby
    undivided: int  #: whether no comma has been seen since the last element
    missing_commas: int
    first_missing: int
    ts_column: int
    dur_column: int
    phase_column: int  #: bytes
    category_column: int  #: int32
    name_column: int  #: int32
    place_column: int  #: int32
    correlation_column: int
    offset_column: int
    length_column: int  #: int32
    size_rows: int
    size_values: int
    flow_rows: int
    flow_values: int
    note_table: int  #: of :class:`Note`
    row_room: int
    note_room: int
    strings: InternedBytes
    lines: InternedBytes  #: first lines of events
    line_heads: int  #: of each line its :class:`Head`
    place_slots: int  #: int32, open addressing
    place_keys: int  #: of :class:`Place`
    place_room: int
    wanted: Wanted
    event: Event
