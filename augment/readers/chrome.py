"""Chrome JSON (Trace Event Format), Kineto's own format: an object with ``traceEvents``, or a bare array."""

from __future__ import annotations

import os
import re

from augment.core import Trace
from augment.core.text import short
from augment.errors import MalformedTrace, UnknownFormat
from augment.readers.assembly import LONGEST, Outline, assemble
from augment.readers.containers import CHUNK, Counted, OpenText, TextAgain
from augment.readers.event_scanner import EventScanner
from augment.readers.limits import Limits
from augment.readers.members import Ended, Members, TextWindow, TooDeep
from augment.readers.pairing import pair
from augment.readers.raw import Broken

NAME = "chrome_json"
SUFFIXES: tuple[str, ...] = (".json",)
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
CHUNK_BYTES = 4 << 20  #: bytes of text that are scanned at a time
TYPICAL_RATIO = 12  #: typical ratio of text bytes to compressed bytes of a Kineto file, for estimates
MAX_EVENT_BYTES = 256 << 20
KEPT_BYTES = 20 * CHUNK  #: from the end of the text
#: what an object without events is by one of its members
_HINTS = {
    "nodes": "an execution trace? --execution-trace names it beside its trace",
    **dict.fromkeys(("req_ids", "request_id"), "records of an engine's own hooks, which are not read; see --spans"),
    "rocprofiler-sdk-tool": "rocprofv3's own JSON, which is not read; record with --output-format pftrace",
}
#: lines of torchrun, [2024-09-22 09:16:36,990], and of mpirun, [1,0]<stdout>:, begin no array
_JSON = re.compile(rb"\s*(?!\[\d+,\d+\]<)(?:\{|\[\s*(?:[{\]\[\"]|$|-?\d[\d.eE+-]*\s*[,\]]))")
_OPENING = re.compile(rb'"traceEvents"\s*:\s*\[')
_OPENING_AT_MOST = 64  #: bytes, with blanks


def recognizes(head: bytes) -> bool:
    """Whether ``head``, the first bytes of a text, begin a JSON object or array, not a log (``[2024-09-22 09:16``)."""
    return _JSON.match(head.removeprefix(BYTE_ORDER_MARK)) is not None


def layout(head: bytes) -> str:
    """Whether the events are a bare array or the member of an object."""
    return "array" if head.removeprefix(BYTE_ORDER_MARK).lstrip()[:1] == b"[" else "object"


def read(path: str, text: OpenText, head: bytes) -> Trace:
    """The trace in ``text``. The bytes in ``head`` were already read from it.

    Raises:
        UnknownFormat: the text is JSON, but not a trace.
        MalformedTrace: the text is broken in such a way that nothing after the break can be trusted.
    """
    stream = Counted(head, text, KEPT_BYTES)
    scanner = EventScanner(text.limits.nesting, _likely_text_bytes(path))
    window = TextWindow(stream, CHUNK_BYTES, ahead=text.threads.count > 1)
    reading = _Reading(path, window, scanner, text.limits)
    outline, broken = reading.outline, None
    try:
        reading.all()
    except Broken as error:
        broken = error
    finally:
        window.close()
    while stream.read(CHUNK):
        pass
    if broken:
        if not text.damage or not outline.arrays_seen:
            raise MalformedTrace(path, broken.offset, broken.because) from broken
        # a changed byte shows in the text, and at the end of its compression: what is before it is as it was
        outline.partial = f"at byte {broken.offset}: {broken.because}"
    outline.text_bytes = stream.count
    if text.damage:
        outline.partial = "; ".join(filter(None, (text.damage, outline.partial)))
    sha256 = text.sha256()
    tail = stream.tail() if text.is_one_gzip_member else None
    raw = scanner.finish(text.threads)
    pair(raw, LONGEST)
    again = TextAgain(path, stream.count, tail, ahead=text.is_read_ahead)
    return assemble(path, NAME, sha256, again, raw, outline, threads=text.threads)


def _likely_text_bytes(path: str) -> int:
    """The size of the text, estimated without reading it."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        if recognizes(file.read(64)):
            return size
        file.seek(-min(size, 4), os.SEEK_END)
        text_bytes = int.from_bytes(file.read(), "little")  # gzip's last four bytes: the text's size, modulo 2**32
    return text_bytes if size < text_bytes < TYPICAL_RATIO * 8 * size else size * TYPICAL_RATIO


class _Reading:
    """One pass over a text."""

    def __init__(self, path: str, window: TextWindow, scanner: EventScanner, limits: Limits) -> None:
        self._path, self._window, self._scanner, self._limits = path, window, scanner, limits
        self._members = Members(window, limits.nesting)
        self.outline = Outline()

    def all(self) -> None:
        """Make the outline of the whole text. The scanner holds the events."""
        window, outline = self._window, self.outline
        window.fill()
        if window.data[:3].tobytes() == BYTE_ORDER_MARK:
            outline.byte_order_mark = True
            window.drop(3)
        first = self._members.blank()
        window.drop(1)
        if first == ord("["):
            outline.array = True
            if (element := self._members.blank()) not in (ord("{"), ord("]"), -1):
                hint = "; a memory timeline? --memory-timeline names it beside its trace" * (element == ord("["))
                raise UnknownFormat(self._path, f"a JSON array, but not of events{hint}")
            self._events()
        else:
            self._object()
        if not outline.partial and self._members.blank() != -1:
            outline.trailing = window.base
        outline.broken_members += self._members.mended

    def _object(self) -> None:
        """Read from after the opening brace to after the closing one. Damage outside of the events costs only the
        damaged member.
        """
        outline = self.outline
        while True:
            try:
                events_follow = self._members_up_to_events()
            except (Ended, Broken) as error:
                where = error.offset if isinstance(error, Broken) else self._window.base + self._window.size
                what = error.because if isinstance(error, Broken) else "the text ends"
                if outline.arrays_seen:
                    outline.partial = f"after traceEvents, at byte {where}: {what}"
                    return
                if isinstance(error, TooDeep) or not self._find_events():
                    if isinstance(error, Broken):
                        raise
                    end = self._window.base + self._window.size
                    raise MalformedTrace(
                        self._path, end, "the text ends before traceEvents; record or copy the file again"
                    ) from error
                outline.broken_members.append(where)
                events_follow = True
            if not events_follow:
                break
            self._events()
            if outline.partial:
                return
        if not outline.arrays_seen:
            known = ", ".join(short(member, 60) for member in list(outline.members)[:6]) or "none"
            hint = next((f"; {hint}" for member, hint in _HINTS.items() if member in outline.members), "")
            raise UnknownFormat(self._path, f"not a trace: JSON without traceEvents (its members: {known}){hint}")

    def _members_up_to_events(self) -> bool:
        """Take members until traceEvents is open, or until the object closes; False in the latter case."""
        members = self._members
        while True:
            following = members.blank()
            if following == ord("}"):
                self._window.drop(1)
                return False
            if following == ord(","):
                self._window.drop(1)
                continue
            name = members.key()
            if name == "traceEvents" and members.blank() == ord("["):
                self._window.drop(1)
                return True
            self.outline.members[name] = members.value()

    def _find_events(self) -> bool:
        """Skip from inside a broken member to after the bracket that opens traceEvents. Returns whether that was
        found.
        """
        window = self._window
        while not (opening := _OPENING.search(window.data[: window.size].data)):
            window.drop(max(window.size - _OPENING_AT_MOST, 0))
            if not window.fill():
                return False
        window.drop(opening.end())
        return True

    def _events(self) -> None:
        """Read from after the opening bracket to after the closing one, or to the end of a text without one.

        Raises:
            Broken: the text there is not an event, so that what follows could be anything.
        """
        outline, window, scanner = self.outline, self._window, self._scanner
        outline.arrays_seen += 1
        first = window.base
        scanned = 0  # the first bytes of the window, which are known to hold no end of an event
        try:
            while True:
                if scanned > MAX_EVENT_BYTES:
                    raise Broken(window.base, f"an event here is larger than {MAX_EVENT_BYTES >> 20} MiB")
                at, closed = 0, False
                if window.size > scanned:
                    at, closed = scanner.scan(window.data, 0, window.size, window.base)
                self._limits.expect_events(self._path, scanner.event_count)
                window.drop(at)
                if closed:
                    window.drop(1)
                    break
                scanned = window.size
                if not window.fill():
                    inside = "inside the event that begins " * bool(window.size)
                    outline.partial = f"the text ends {inside}at byte {window.base}, before traceEvents is closed"
                    break
        finally:
            last = scanner.last_end
            outline.insert_comma = last is not None and last > first
            outline.insert_at = last if outline.insert_comma else first
