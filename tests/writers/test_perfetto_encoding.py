"""The bytes of packets and args: as Perfetto's own classes read them, and equal by either way of making them."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augment.arrays.types import NO_INDEX, Int32s, Int64s
from augment.core.annotations import SliceTrack, Texts
from augment.core.trace import args_of_event
from augment.facts.source.event_args import PADDING, blocks, decoded
from augment.readers import read
from augment.readers.perfetto.state import PacketSequence, Strings
from augment.readers.perfetto.values import event_args
from augment.writers import perfetto as writer
from augment.writers.perfetto.flows import Points, TrackSlices, by_start, lanes_and_slices
from augment.writers.perfetto.packets import ArgsEncoder, Events, InternedTexts, blobs_of, encode, slice_args
from augment.writers.perfetto.source import ArgsScanner
from augment.writers.perfetto.wire import varint
from oracles import plain_kernels
from perfetto_schema import protos as schema
from plain_encoders import packets
from plain_encoders import slice_args as plain_args
from writer_traces import Text, augmented, ns

pytestmark = pytest.mark.slow

LOOKALIKES = ("null", "[]", "{}", "[1,2]", str(2**64))  #: texts that read like the JSON of another value
int64s = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), int64s, st.integers(0, 2**64), st.floats(), texts, st.sampled_from(LOOKALIKES)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
args_dicts = st.dictionaries(texts, values, max_size=6)


class Decoder:
    """Debug annotations back to values."""

    def __init__(self, interned: bytes) -> None:
        data = schema.InternedData.FromString(interned)
        self.keys = {name.iid: name.name for name in data.debug_annotation_names}
        self.strings = {value.iid: value.str.decode() for value in data.debug_annotation_string_values}

    def args(self, annotations: Any) -> dict[str, Any]:
        return {self.keys[annotation.name_iid]: self.value(annotation) for annotation in annotations}

    def value(self, value: Any) -> Any:
        kind = value.WhichOneof("value")
        return self.strings[value.string_value_iid] if kind == "string_value_iid" else getattr(value, kind)


def as_perfetto_has_it(value: Any) -> Any:
    """A value as Perfetto's own classes read it: what is nested as its JSON text."""
    whole = isinstance(value, (bool, float, str)) or (isinstance(value, int) and -(2**63) <= value < 2**64)
    return value if whole else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@given(args_dicts)
def test_args_survive(args: dict[str, Any]) -> None:
    interned = InternedTexts()
    event = ArgsEncoder(interned).args(args)
    output = interned.take_new()
    result = Decoder(output).args(schema.TrackEvent.FromString(event).debug_annotations)
    wanted = {key: as_perfetto_has_it(value) for key, value in args.items()}
    assert repr(result) == repr(wanted)  # NaN is not equal to itself
    sequence = PacketSequence()
    sequence.take_interned(output, 0, len(output), Strings())
    assert repr(event_args(event, 0, len(event), sequence.now)) == repr(args)


def test_a_text_is_not_taken_for_the_array_that_it_looks_like(tmp_path: Path) -> None:
    args = {"text": "[[2048,512],[512]]", "array": [[2048, 512], [512]], "again": "[[2048,512],[512]]", "none": None,
            "no": "null", "large": 2**64, "digits": str(2**64), "empty": {}, "braces": "{}"}  # fmt: skip
    events = [{"ph": "X", "name": "a", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1, "dur": 2, "args": args}]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    trace = read(str(tmp_path / "t.json"))
    writer.write(augmented(trace), tmp_path / "t.pftrace")
    assert read(str(tmp_path / "t.pftrace")).args_of(ns(0)) == [args] == trace.args_of(ns(0))


@given(int64s)
def test_varints_are_protobufs(value: int) -> None:
    assert schema.DebugAnnotation.FromString(b"\x20" + varint(value)).int_value == value


row = st.tuples(
    st.integers(1, 4), st.integers(0, 2**63 - 1), st.integers(1, 2**40), st.integers(0, 300), st.integers(0, 70000)
)
columns = st.lists(row, min_size=70, max_size=90)


@settings(max_examples=30)
@given(columns, st.integers(0, 400))
def test_packets_are_equal_by_either_way(rows: list[tuple[int, ...]], size: int) -> None:
    kind, ts, track, category, name = (np.array([row[k] for row in rows], np.int64) for k in range(5))
    blob = ArgsEncoder(InternedTexts()).arg("key", "x" * size)
    events = Events(kind, ts, track, category, name, blobs_of([blob * (k % 3) for k in range(len(rows))]))
    plain = packets(events)
    parsed = schema.Trace.FromString(plain).packet
    assert [p.timestamp for p in parsed] == ts.tolist()
    assert [(p.track_event.type, p.track_event.track_uuid, p.track_event.name_iid) for p in parsed] == list(
        zip(kind.tolist(), track.tolist(), name.tolist(), strict=True)
    )
    assert [list(p.track_event.category_iids) for p in parsed] == [[c] if c else [] for c in category.tolist()]
    assert b"".join(map(bytes, encode(events))) == plain
    with plain_kernels():
        assert b"".join(map(bytes, encode(events))) == plain


def scanned(events: list[bytes]) -> list[list[str]]:
    """Each event's args, by the kernel; and the same in Python."""
    offsets, lengths = places_of(events)
    interned = InternedTexts()
    scanner = ArgsScanner(ArgsEncoder(interned), ns(), blobs_of([]))
    made = []
    for block in blocks(Text(b",".join(events), 64), offsets, lengths):
        made += scanner.blobs(block, offsets, lengths).pieces()
    return with_texts(made, interned)


def plainly(events: list[bytes]) -> list[list[str]]:
    interned = InternedTexts()
    encoder = ArgsEncoder(interned)
    offsets, lengths = places_of(events)
    result = blocks(Text(b",".join(events), 64), offsets, lengths)
    made = [encoder.args(args_of_event(event)) for block in result for event in decoded(block, offsets, lengths)]
    return with_texts(made, interned)


def with_texts(made: list[bytes], interned: InternedTexts) -> list[list[str]]:
    """The args in blobs, with texts (marked, if they are JSON) for their numbers."""
    data = schema.InternedData.FromString(interned.take_new())
    text_of = {}
    for entry in (*data.debug_annotation_names, *data.debug_annotation_string_values):
        number = type(entry).__name__, entry.iid
        entry.ClearField("iid")
        text_of[number] = entry.SerializeToString()

    def text(annotation: Any) -> str:
        key = text_of["DebugAnnotationName", annotation.name_iid]
        if annotation.WhichOneof("value") == "string_value_iid":
            return f"{key!r} {text_of['InternedString', annotation.string_value_iid]!r}"
        annotation.ClearField("name_iid")
        return f"{key!r} {annotation.SerializeToString()!r}"

    return [[text(arg) for arg in schema.TrackEvent.FromString(args).debug_annotations] for args in made]


def places_of(events: list[bytes]) -> tuple[Int64s, Int32s]:
    lengths = np.array([len(event) for event in events], np.int32)
    return np.cumsum(lengths + 1, dtype=np.int64) - lengths - 1, lengths


ODD_EVENTS = [
    b'{"ph":"X"}',
    b'{"args":{}}',
    b'{"args": [1]}',
    b'{ "name": "lambda{x: {1}}", "args" : { "a" : 1 , "b":2 } }',
    b'{"name": "\\"args\\": {", "args":{"a":1}}',
    b'{"x\\"args": {"no": 1}, "args":{"a":1}}',
    b'{"other": {"args": {"no": 1}}, "args":{"a":1}}',
    b'{"args":{"no":1},"args":{"a":1}}',
    b'{"args":{"a":1},"name":"args"}',
    b'{"name":"args","args":{"a":1,"a":2}}',
    b'{"args":{"same":"x","\\u0073ame":"y"}}',
    b'{"args":{"sa\\\\":"x","sa\\u005c":"y","sa\\\\":7}}',
    b'{"args":{"a":NaN,"b":-Infinity,"c":1e400,"d":-0,"e":-0.0,"f":1.50}}',
    b'{"args":{"g":123456789012345.5,"h":0.1234567890123456,"i":0.0001,"j":99999999999999.9}}',
    b'{"args":{"a":1234567890123456789012,"b":18446744073709551615,"c":-9223372036854775808,"d":1E5}}',
    b'{"args":{"e":999999999999999999,"f":-999999999999999999,"g":1000000000000000000}}',
    b'{"args":{"\\u0061b":"\\u00e9","c":"caf\xc3\xa9","d":"\\ud800","e":"\\ud83d\\ude00"}}',
    b'{"args":{"bad":"\\x","control":"a\nb","utf8":"\xff"}}',
    b'{"args":{"n":null,"t":true,"f":false,"o":{"p":{"q":[1,[2,{"r":[]}]]}},"s":"}]"}}',
    b'{"args":{"broken":}}',
    b'{"args":{' + b",".join(b'"k%d":%d' % (k, k) for k in range(80)) + b"}}",
    b'{"args":{"long":"' + b"x" * 10000 + b'"}}',
]


def test_odd_events_have_the_same_args_by_either_way() -> None:
    assert scanned(ODD_EVENTS) == plainly(ODD_EVENTS)
    assert scanned(ODD_EVENTS[::-1]) == plainly(ODD_EVENTS[::-1])


@pytest.mark.usefixtures("kernels")
def test_an_arg_that_begins_as_the_one_that_came_there_before() -> None:
    values = [
        b"1.5e3", b"1.5e34", b"tru", b"true", b"trues", b"[1]", b"[1] ", b"[1]x", b'"a"', b'"a"b', b"1", b"12",
        b"-1.5",
    ]  # fmt: skip
    keys = [b'"k":', b'"k" : ', b'"ke":', b'"k\\"":', b'"k":"k":', b'"q":1,"k":']
    events = [b'{"args":{%s%s}}' % (key, value) for key in keys for value in values]
    events += [b'{"args":{"first":1,%s%s,"last":"z"}}' % (key, value) for value in values for key in keys]
    assert scanned(2 * events) == plainly(2 * events)
    assert scanned(events[::-1]) == plainly(events[::-1])


@given(st.lists(args_dicts, max_size=8), st.sampled_from([None, 1]))
def test_args_are_equal_by_either_way(args: list[dict[str, Any]], indent: int | None) -> None:
    events = [json.dumps({"name": "x", "args": arg}, indent=indent, ensure_ascii=False).encode() for arg in args]
    assert scanned(events) == plainly(events)


def test_blocks_have_room_before_and_after(tmp_path: Path) -> None:
    text = b"0123456789" * 10
    offsets, lengths = np.array([0, 10, 95], np.int64), np.array([10, 3, 5], np.int32)
    rows = [
        block.data[PADDING + offset - block.base :][:length].tobytes()
        for block in blocks(Text(text, 7), offsets, lengths)
        for offset, length in zip(offsets[block.start : block.stop], lengths[block.start : block.stop], strict=True)
    ]
    assert rows == [text[:10], text[10:13], text[95:]]


def long_track(count: int) -> SliceTrack:
    codes = np.arange(count, dtype=np.int32) % 3 - 1
    labels = Texts(codes, ["α" * 50, "b", "unused"])
    args = {"n": np.arange(count) - 1, "t": labels, "wide": np.arange(count) * -(10**15)}
    return SliceTrack("example", "Long", 0, 10 * np.arange(count), np.arange(count) % 3, Texts(codes, ["x", "y"]), args)


@pytest.mark.usefixtures("kernels")
def test_args_of_added_slices() -> None:
    track = long_track(200)
    assert slice_args(track, ArgsEncoder(InternedTexts())).pieces() == plain_args(track, ArgsEncoder(InternedTexts()))


# Lanes and the slices of points: what the rules are, and that compiled code keeps them.
Span = tuple[int, int, int]  #: place, ts, dur
spans = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 12)), max_size=30)
moments = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 25), st.integers(0, 3)), max_size=20)


def slices_of(spans: list[Span]) -> TrackSlices:
    ordered = sorted(spans, key=lambda span: span[1])
    place, ts, dur = (np.array([span[k] for span in ordered], np.int64) for k in range(3))
    rows = by_start(np.arange(len(ordered)), ts, ts + dur)
    return TrackSlices(rows, place.astype(np.int32), ts, ts + dur, np.arange(len(ordered)) % 4)


def points_of(moments: list[Span]) -> Points:
    ordered = sorted(moments, key=lambda moment: moment[1])
    place, ts, mark = (np.array([moment[k] for moment in ordered], np.int64) for k in range(3))
    return Points(place.astype(np.int32), ts, mark)


def walked(slices: TrackSlices, points: Points, compiled: bool) -> tuple[Int32s, Int64s]:
    with nullcontext() if compiled else plain_kernels():
        return lanes_and_slices(slices, points, 3)


@given(spans)
def test_no_slices_of_a_lane_overlap_in_part(spans: list[Span]) -> None:
    slices = slices_of(spans)
    lane, _ = walked(slices, points_of([]), compiled=False)
    for a in slices.rows.tolist():
        for b in slices.rows.tolist():
            if (slices.place[a], lane[a]) == (slices.place[b], lane[b]):
                starts, ends = sorted((slices.ts[a], slices.ts[b])), sorted((slices.end[a], slices.end[b]))
                within = (slices.ts[a] - slices.ts[b]) * (slices.end[a] - slices.end[b]) <= 0
                assert within or ends[0] <= starts[1]


@given(spans, moments)
def test_a_point_finds_the_slice_that_began_last_of_those_that_cover_it(spans: list[Span], moments: list[Span]) -> None:
    slices, points = slices_of(spans), points_of([(place, ts, 9) for place, ts, _ in moments])
    _, result = walked(slices, points, compiled=False)
    for index, row in enumerate(result.tolist()):
        at = points.ts[index]
        on_track = slices.place == points.place[index]
        covering = np.flatnonzero(on_track & (slices.ts <= at) & (slices.end >= at))
        if not len(covering):
            assert row == NO_INDEX
        elif slices.end[covering].min() > at:  # one that ends just then may give way to one that begins just then
            assert slices.ts[row] == slices.ts[covering].max()
        else:
            assert row in covering


@pytest.mark.parametrize("ends", [(9, 8), (9, 9)])
@pytest.mark.parametrize("compiled", [False, True])
def test_of_slices_that_begin_at_once_the_mark_tells(ends: tuple[int, int], compiled: bool) -> None:
    """Also of a kernel and an annotation around it that are equally long."""
    slices = TrackSlices(ns(0, 1), np.zeros(2, np.int32), ns(5, 5), ns(*ends), ns(11, 12))
    for mark, row in ((11, 0), (12, 1), (13, 1)):
        assert walked(slices, Points(np.zeros(1, np.int32), ns(5), ns(mark)), compiled)[1].tolist() == [row]


@given(spans, moments)
def test_compiled_and_plain_agree(spans: list[Span], moments: list[Span]) -> None:
    slices, points = slices_of(spans), points_of(moments)
    for plain, compiled in zip(walked(slices, points, False), walked(slices, points, True), strict=True):
        assert plain.tolist() == compiled.tolist()
