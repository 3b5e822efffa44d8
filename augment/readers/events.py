"""Reads a single event in any form. Both scanners fall back to this code, and it defines what each field means."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

import msgspec

from augment.core.jsontext import clean, mended, mended_json
from augment.core.trace import COMPLETE, NO_CORRELATION, Identity, args_of_event
from augment.kernels.json_layout import PHASES
from augment.readers.members import nested_deeper
from augment.readers.raw import ABSENT, Absent, Tally, TrackNames, identity

INT64 = 1 << 63
_PLAIN_TIME = re.compile(rb'"?(-?[0-9]{1,17})(?:\.([0-9]{0,3}))?"?')
_LARGEST_EXPONENT = 15  #: decimal exponent of the most microseconds that fit int64 as ns


class Args(msgspec.Struct):
    """The args that are columns; absent ones are :data:`ABSENT`."""

    correlation: Any = None
    device: Any = ABSENT
    stream: Any = ABSENT
    bytes: Any = None


NO_OBJECT = Args()  #: for an event whose args are not an object


class ScannedEvent(msgspec.Struct):
    """The members of an event that are columns. Times are kept as the text of their numbers."""

    ph: Any = None
    ts: msgspec.Raw = msgspec.Raw(b"null")
    dur: msgspec.Raw = msgspec.Raw(b"null")
    name: Any = ""
    cat: Any = ""
    pid: Any = None
    tid: Any = None
    id: Any = None
    args: Args | None = None


class MendedEvent(ScannedEvent):
    """An event whose text was not JSON until it was repaired."""


decode_event = msgspec.json.Decoder(ScannedEvent).decode


class EventRow(NamedTuple):
    """One row of the table, in the notation of the file."""

    ts: int
    dur: int
    phase: int
    category: str
    name: str
    pid: Identity
    tid: Identity
    device: Identity | Absent
    stream: Identity | Absent
    correlation: int
    size: int | None
    flow_id: int | str | None


def parse_event(text: bytes) -> ScannedEvent | None:
    """One element of traceEvents; None if even lenient parsing finds no JSON object."""
    try:
        return decode_event(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _parse_leniently(text)


def _parse_leniently(data: bytes) -> ScannedEvent | None:
    text, made = data.decode("utf-8", "replace"), ScannedEvent
    try:
        loaded = _loaded(text)
    except ValueError:
        try:
            loaded, made = _loaded(mended(text)), MendedEvent
        except ValueError:
            return None
    if not isinstance(loaded, dict):
        return None
    args = args_of_event(loaded)
    taken = {k: _plain(args[k]) for k in Args.__struct_fields__ if k in args}
    event = made(**{k: _plain(loaded[k]) for k in ("ph", "name", "cat", "pid", "tid", "id") if k in loaded})
    event.args = Args(**taken) if loaded.get("args") is None or isinstance(loaded["args"], dict) else NO_OBJECT
    for k in ("ts", "dur"):
        time = loaded.get(k)
        text = str(time) if isinstance(time, (int, Decimal, str)) and not isinstance(time, bool) else "null"
        setattr(event, k, msgspec.Raw(text.encode("utf-8", "replace")))
    return event


def _loaded(text: str) -> Any:
    try:  # Decimal keeps all digits of a time, unlike a float
        return json.loads(text, parse_float=Decimal, strict=False)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else value


def ns_of(raw: bytes) -> int | None:
    """Decimal microseconds as text (quoted or not) to integer ns, a half to even; None if the text is no such number or
    exceeds int64.
    """
    if plain := _PLAIN_TIME.fullmatch(raw):
        value = int(plain[1] + (plain[2] or b"").ljust(3, b"0"))
    else:
        try:
            number = Decimal(raw.decode("ascii").strip('"'))
        except (InvalidOperation, UnicodeDecodeError):
            return None
        if number and (not number.is_finite() or number.adjusted() > _LARGEST_EXPONENT):
            return None  # checked before any arithmetic: expanding 1e999990 would take half a minute
        value = int(round(number, 3).scaleb(3)) if number else 0
    return value if -INT64 <= value < INT64 else None


def integer(value: Any) -> int | None:
    """A JSON number, quoted or not, as an integer wrapped to 64 bits; None for anything else."""
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return (value + INT64) % (2 * INT64) - INT64


def read_row(text: bytes, offset: int, names: TrackNames, tally: Tally, nesting: int) -> EventRow | None:
    """The row of the element ``text`` of traceEvents, if its nesting is within the limit; see :func:`row_of`."""
    if nested_deeper(text, nesting):
        tally.add("nested_too_deeply", offset)
        return None
    return row_of(parse_event(text), text, offset, names, tally)


def row_of(event: ScannedEvent | None, text: bytes, offset: int, names: TrackNames, tally: Tally) -> EventRow | None:
    """The row of an event. None if the event makes no row; it is then added to ``names`` or counted in ``tally``."""
    if event is None:
        tally.add("malformed_event", offset)
        return None
    if isinstance(event, MendedEvent):
        tally.add("mended_event", offset)
    if event.ph == "M":
        with suppress(ValueError):
            if isinstance(loaded := mended_json(text), dict):
                names.add(loaded)
        return None
    ts = ns_of(bytes(event.ts))
    if not isinstance(event.ph, str) or not event.ph or ts is None:
        tally.add("event_without_time" if isinstance(event.ph, str) else "event_without_phase", offset)
        return None
    if event.ph not in PHASES:
        tally.add("unknown_phase", offset)
        return None
    phase, dur = ord(event.ph), 0
    if phase == COMPLETE:
        known = ns_of(bytes(event.dur))
        if known is None:
            tally.add("slice_without_duration", offset)
            return None
        dur = known
    args = event.args or Args()
    if args is NO_OBJECT:
        tally.add("args_without_names", offset)
    correlation = integer(args.correlation)
    correlation = NO_CORRELATION if correlation is None else correlation
    device, stream = (each if each is ABSENT else identity(each) for each in (args.device, args.stream))
    flow: int | str | None = clean(event.id) if isinstance(event.id, str) else integer(event.id)
    if isinstance(flow, int) and flow < 0:  # a column of flow ids cannot hold it
        flow = str(event.id)
    texts, (pid, tid) = (_text(event.cat), _text(event.name)), map(identity, (event.pid, event.tid))
    return EventRow(ts, dur, phase, *texts, pid, tid, device, stream, correlation, integer(args.bytes), flow)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return clean(value)
    return "" if value is None else str(value)
