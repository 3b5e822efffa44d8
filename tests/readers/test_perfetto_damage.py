"""Files that are cut, damaged, or no Perfetto files at all."""

from __future__ import annotations

import random
import zipfile
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from augment import InputError, MalformedTrace, Trace, UnknownFormat, read
from augment.readers import perfetto
from oracles import packets_by_hand
from perfetto_messages import CLEARED, NEEDED, Messages, diagnostic_counts, rows

pytestmark = pytest.mark.slow


def whole() -> Messages:
    """A bit of everything."""
    made = Messages()
    made.packet(sequence_flags=CLEARED).interned_data.event_names.add(iid=1, name="named once")
    made.track(1).process.pid = 42
    made.thread(7, 42, 43, "main")
    made.track(9, parent_uuid=1, name="GPU 0")
    made.track(10, parent_uuid=9, name="stream 7")
    for ts in range(100, 500, 100):
        made.slice(ts, 50, 7, "launch", "cuda_runtime", correlation=ts).flow_ids.append(ts)
        made.slice(ts + 10, 60, 10, "gemm", "kernel", correlation=ts, device=0, stream=7, dims=[[1, 2], ["a"]])
        packet = made.packet(timestamp=ts + 1, sequence_flags=NEEDED)
        packet.track_event.type, packet.track_event.name_iid, packet.track_event.track_uuid = 3, 1, 7
    stage = made.packet(timestamp=900).gpu_render_stage_event
    stage.duration, stage.name = 5, "stage"
    return made


WHOLE = whole().bytes()


def read_bytes(folder: Path, data: bytes) -> Trace:
    path = folder / "t.pftrace"
    path.write_bytes(data)
    return read(str(path))


def test_a_file_that_was_cut_gives_what_is_whole(tmp_path: Path, scanner: str) -> None:
    for size in range(60, len(WHOLE), 7):
        trace = read_bytes(tmp_path, WHOLE[:size])
        assert trace.partial is None or "the text ends inside the packet that begins at byte" in trace.partial
    assert read_bytes(tmp_path, WHOLE).partial is None
    trace = read_bytes(tmp_path, WHOLE[:-1])
    assert trace.partial is not None
    assert diagnostic_counts(trace)["truncated_text"] == 1


def test_what_comes_after_the_packets_is_told(tmp_path: Path, scanner: str) -> None:
    trace = read_bytes(tmp_path, WHOLE + b"\xff" * 100)
    assert trace.partial == f"byte {len(WHOLE)}: no packet begins here; what follows is not read"
    assert rows(trace) == rows(read_bytes(tmp_path, WHOLE))


def test_files_one_after_the_other_are_one(tmp_path: Path) -> None:
    once, twice = (read_bytes(tmp_path, data) for data in (WHOLE, WHOLE + WHOLE))
    assert sorted(row for row in rows(twice) if row[0] not in "sf") == sorted(2 * rows(once))


def test_in_containers(tmp_path: Path) -> None:
    expected = rows(read_bytes(tmp_path, WHOLE))
    assert rows(read(str(whole().write(tmp_path, "t.pftrace.gz")))) == expected
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("t.pftrace", WHOLE)
    assert rows(read(str(tmp_path / "t.zip"))) == expected


def test_the_first_packet_may_be_large(tmp_path: Path) -> None:
    made = Messages()
    made.event(3, 5, name="x" * 100_000)
    assert len(made.read(tmp_path).events) == 1
    with pytest.raises(MalformedTrace, match="no whole packet"):
        read_bytes(tmp_path, made.bytes()[:50_000])


@pytest.mark.parametrize("head", [
    b'\n[\n {"ph": "X"',
    b"\n\n\n{",
    b"\n" + bytes(range(256)),
    b"\n\x05\x08\x01\x10\x02\x18",  # XSpace: a message in field 1, whose field 1 is a number
    b"\n\x0e\n\x04node\x12\x02Op\x1a\x02in" + b"\n\x02\n\x00" * 20,  # GraphDef
    b"\n\x00" * 50,
    b"\n",
    b"",
])  # fmt: skip
def test_what_is_no_trace_is_not_recognised(head: bytes) -> None:
    assert perfetto.recognizes(head) is False


def test_a_zip_bomb_is_refused_as_such(tmp_path: Path) -> None:
    path = tmp_path / "t.pftrace"
    path.write_bytes(b"\n\x02P\x01" + b"\n\xff\xff\xff\xff\x7f")
    with pytest.raises(InputError):
        read(str(path) + "x")
    assert "larger than" in str(read(str(path)).partial)


def changed(data: bytes, seed: int) -> bytes:
    """``data`` with a few bytes changed, taken out or put in."""
    chance = random.Random(seed)
    made = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(made))
        match chance.randrange(4):
            case 0:
                made[at] = chance.randrange(256)
            case 1:
                made[at] ^= 1 << chance.randrange(8)
            case 2:
                del made[at : at + chance.randint(1, 5)]
            case _:
                made[at:at] = chance.randbytes(chance.randint(1, 5))
    return bytes(made)


@given(seed=st.integers(0, 2**32))
def test_no_bytes_do_harm(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    folder = tmp_path_factory.getbasetemp()
    data = changed(WHOLE, seed)
    outcomes = []
    for scanner in (nullcontext, packets_by_hand):
        try:
            with scanner():
                trace = read_bytes(folder, data)
            trace.args_of(trace.events.slices_of(*range(16)))  # type: ignore[arg-type]
            outcomes.append((rows(trace), trace.tracks, trace.partial, diagnostic_counts(trace)))
        except InputError as error:
            assert isinstance(error, (UnknownFormat, MalformedTrace))  # noqa: PT017 - either may be
            outcomes.append(str(error))  # type: ignore[arg-type]
    assert outcomes[0] == outcomes[1]
