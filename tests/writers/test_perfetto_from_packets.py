"""Args of packets written as packets again: by compiled code and by Python, against each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augment import Trace, read
from augment.writers import perfetto as writer
from oracles import plain_kernels, with_unknown_decoder
from writer_traces import augmented

pytest.importorskip("perfetto")
from perfetto_messages import BEGIN, END, Messages, annotate, operators

pytestmark = pytest.mark.slow

NAMES = st.sampled_from(["External id", "Input Dims", "stream", "a", "b"])
VALUES = st.one_of(
    st.integers(-(2**63), 2**64 - 1), st.integers(-3, 300), st.booleans(), st.floats(), st.sampled_from("abc"),
    st.lists(st.integers(0, 3), max_size=3), st.dictionaries(st.sampled_from("ab"), st.integers(0, 9), max_size=2),
)  # fmt: skip
TRACK = 5


def written(trace: Trace, folder: Path) -> bytes:
    path = folder / "out.pftrace"
    writer.write(augmented(trace), path)
    return path.read_bytes()


def same_by_either_way(trace: Trace, folder: Path) -> bytes:
    compiled = written(trace, folder)
    assert compiled == written(with_unknown_decoder(trace), folder)
    return compiled


PACKETS = operators(20, st.lists(NAMES, max_size=4, unique=True), VALUES)


@given(PACKETS)
def test_both_ways_agree(tmp_path_factory: pytest.TempPathFactory, made: Messages) -> None:
    folder = tmp_path_factory.mktemp("made")
    same_by_either_way(made.read(folder), folder)


@given(PACKETS)
@settings(max_examples=10)
def test_plain_kernels_agree(tmp_path_factory: pytest.TempPathFactory, made: Messages) -> None:
    folder = tmp_path_factory.mktemp("made")
    trace = made.read(folder)
    compiled = written(trace, folder)
    with plain_kernels():
        assert written(trace, folder) == compiled


KEY = b"\x52\x01k"  #: a key that stands there
ODD = {
    "no value": KEY,
    "no key": b"\x20\x05",
    "key behind": b"\x20\x05" + KEY,
    "two keys": KEY + b"\x52\x01l\x20\x05",
    "two values": KEY + b"\x20\x05\x20\x06",
    "value and text": KEY + b"\x20\x05\x32\x01x",
    "number unfinished": KEY + b"\x20\x85",
    "key unfinished": b"\x52\x05k",
    "double cut": KEY + b"\x29\x00\x00",
    "double and more": KEY + b"\x29" + bytes(8) + b"\x20\x01",
    "not a number": KEY + b"\x29\x01\x00\x00\x00\x00\x00\xf0\x7f",
    "key of no name": b"\x08\x63\x20\x05",
    "unknown number": KEY + b"\xf8\x07\x05\x20\x07",
    "text of no name": KEY + b"\x88\x01\x63",
    "wide number": KEY + b"\x18" + b"\xff" * 9 + b"\x01",
    "long tag": KEY + b"\xa0\x00\x05",
    "group": KEY + b"\x0b\x0c",
    "nothing": b"",
}


def field(tag: int, content: bytes) -> bytes:
    assert len(content) < 128
    return bytes([tag, len(content)]) + content


@pytest.mark.parametrize("what", list(ODD))
def test_odd_annotations(tmp_path: Path, what: str) -> None:
    """Alone, twice, and beside others."""
    other = field(0x22, b"\x52\x01z\x20\x07")
    odd = field(0x22, ODD[what])
    made = b""
    for number, args in enumerate([odd, odd + odd, other + odd + other, odd + b"\x48\x01\x78", odd + other]):
        event = bytes([0x48, BEGIN, 0x58, TRACK]) + args
        made += field(0x0A, bytes([0x50, 1, 0x40, 2 * number]) + field(0x5A, event))
        made += field(0x0A, bytes([0x50, 1, 0x40, 2 * number + 1]) + field(0x5A, bytes([0x48, END, 0x58, TRACK])))
    path = tmp_path / "t.pftrace"
    path.write_bytes(made)
    same_by_either_way(read(str(path)), tmp_path)


def test_long_args_and_many(tmp_path: Path) -> None:
    made = Messages()
    made.thread(TRACK, 42, 43, "main")
    many: dict[str, Any] = {f"k{k}": k for k in range(80)}
    for number, args in enumerate([{"text": "x" * 5_000_000}, many, {"text": "y", "n": 1}]):
        made.slice(10 * number, 5, TRACK, f"op {number}", **args)
    trace = made.read(tmp_path)
    same_by_either_way(trace, tmp_path)
    again = read(str(tmp_path / "out.pftrace"))
    assert again.args_of(again.events.slices_of(*set(trace.events.category.tolist())))[1] == many


def test_a_key_that_stands_twice(tmp_path: Path) -> None:
    """The last value stands, by either way. Strings are numbered as they occur: those ways may number them otherwise,
    so what is read again is compared.
    """
    made = Messages()
    made.thread(TRACK, 42, 43, "main")
    for number, values in enumerate([("x", "y", None), ("y", "z", "x"), (1, "z", "y")]):
        packet = made.packet(1, timestamp=10 * number)
        packet.track_event.type, packet.track_event.track_uuid = BEGIN, TRACK
        packet.track_event.name = f"op {number}"
        for key, value in zip(("twice", "once", "twice"), values, strict=True):
            annotate(packet.track_event.debug_annotations.add(name=key), value)
        end = made.packet(1, timestamp=10 * number + 5)
        end.track_event.type, end.track_event.track_uuid = END, TRACK
    trace = made.read(tmp_path)
    expected = [{"once": "y", "twice": None}, {"once": "z", "twice": "x"}, {"once": "z", "twice": "y"}]
    for each in (trace, with_unknown_decoder(trace)):
        written(each, tmp_path)
        again = read(str(tmp_path / "out.pftrace"))
        assert again.args_of(again.events.slices_of(*set(trace.events.category.tolist()))) == expected
