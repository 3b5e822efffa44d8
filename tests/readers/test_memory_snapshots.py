"""CUDA memory snapshots as files: all versions and protocols, alone and beside a trace; and what is refused."""

from __future__ import annotations

import gzip
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import augment
from augment.core.attachment_kinds import KINDS
from augment.core.attachments import ACTIONS, MemorySnapshot, Stacks
from augment.errors import InputError, LimitExceeded, MalformedTrace, UnknownFormat
from augment.facts.memory.held import pieces_at, pieces_at_end, replay
from augment.readers import read
from augment.readers.attachments import Evidence, begins_as
from augment.readers.attachments.snapshot_file import memory_snapshot
from augment.readers.limits import Limits
from memory_snapshots import MIB, Allocator, frame, page_of, peaks_of, training, write_snapshot
from traces import op, write_trace

EVIDENCE = Path(__file__).parents[3] / "shared" / "evidence" / "memory"
KIND = next(kind for kind in KINDS if kind.name == "memory_snapshot")
START_US = 1_700_000_000 * 10**6
FILES = sorted(EVIDENCE.glob("*.gz")) or [EVIDENCE]


def columns(snapshot: MemorySnapshot | Stacks) -> dict[str, Any]:
    fields = {name: getattr(snapshot, name) for name in snapshot.__struct_fields__ if name != "name"}
    plain = {name: value.tolist() for name, value in fields.items() if isinstance(value, np.ndarray)}
    return fields | plain | ({"stacks": columns(fields["stacks"])} if "stacks" in fields else {})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_peaks_of_others_files_are_those_of_plain_python(path: Path) -> None:
    if not path.is_file():
        pytest.skip("../shared/evidence is not available")
    content = pickle.loads(gzip.decompress(path.read_bytes()))
    snapshot = memory_snapshot(str(path))
    assert begins_as(str(path)) == KIND
    for device, peak in peaks_of(content).items():
        played = replay(snapshot, device)
        assert int(played.allocated.max()) == peak
        assert played.allocated.min() >= 0
        assert int(played.size[played.live(played.peak)].sum()) == peak, "who holds it adds up to it"
        at_end = {pool.label: pool for pool in pieces_at_end(snapshot, device)}
        for pool in pieces_at(snapshot, played, len(played.rows)) or []:
            exact = at_end[pool.label]
            assert (pool.reserved, pool.free) == (exact.reserved, pytest.approx(exact.free, abs=0.15 * exact.reserved))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_gives_the_same(tmp_path: Path, protocol: int) -> None:
    made = training(START_US)
    content = made.snapshot()
    path = write_snapshot(tmp_path / "a.bin", content, protocol)
    assert begins_as(str(path)) == KIND
    snapshot = memory_snapshot(str(path))
    assert columns(snapshot) == columns(memory_snapshot(str(write_snapshot(tmp_path / "b", content))))
    assert snapshot.action_size.tolist() == [each["size"] for each in made.actions]
    assert [ACTIONS[kind] for kind in snapshot.action_kind.tolist()] == [each["action"] for each in made.actions]
    assert snapshot.settings["garbage_collection_threshold"] == 0.0
    plain = memory_snapshot(str(write_snapshot(tmp_path / "list", content["segments"], protocol)))
    assert plain.block_requested.tolist() == snapshot.block_requested.tolist()
    assert (len(plain.action_kind), plain.has_times, begins_as(str(tmp_path / "list"))) == (0, False, KIND)
    (tmp_path / "page.html").write_bytes(page_of(path.read_bytes()))
    assert begins_as(str(tmp_path / "page.html")) == KIND
    assert columns(memory_snapshot(str(tmp_path / "page.html"))) == columns(snapshot)


@pytest.mark.parametrize("newest", [None, 40, 7, 0])
def test_what_the_ring_lost_is_counted_backwards(tmp_path: Path, newest: int | None) -> None:
    made = training(START_US)
    keep = len(made.actions) if newest is None else newest
    content = made.snapshot()
    content["device_traces"][0] = made.actions[len(made.actions) - keep :]
    snapshot = memory_snapshot(str(write_snapshot(tmp_path / "a", content)))
    played = replay(snapshot, 0)
    whole = replay(memory_snapshot(str(write_snapshot(tmp_path / "b", made.snapshot()))), 0)
    for name in ("allocated", "active", "reserved"):
        assert getattr(played, name).tolist() == getattr(whole, name).tolist()[-keep - 1 :]
    for after in range(0, keep + 1, 5):
        assert played.size[played.live(after)].sum() == played.allocated[after]


def test_without_requests_to_free_completion_counts(tmp_path: Path) -> None:
    made = training(START_US)
    content = made.snapshot()
    content["device_traces"][0] = [each for each in made.actions if each["action"] != "free_requested"]
    played = replay(memory_snapshot(str(write_snapshot(tmp_path / "a", content))), 0)
    assert int(played.allocated.max()) == peaks_of(made.snapshot())[0]
    assert int(played.allocated[0]) == 0


def test_what_was_freed_after_the_history_was_stopped_was_there(tmp_path: Path) -> None:
    made = training(START_US)
    whole = replay(memory_snapshot(str(write_snapshot(tmp_path / "a", made.snapshot()))), 0)
    recorded = len(made.actions)
    for addr in [*made.blocks]:
        made.free(addr)
    made.release()
    content = made.snapshot() | {"device_traces": [made.actions[:recorded]]}
    played = replay(memory_snapshot(str(write_snapshot(tmp_path / "b", content))), 0)
    for name in ("allocated", "active", "reserved"):
        assert getattr(played, name).tolist()[1:] == getattr(whole, name).tolist()[1:]


def test_pieces_of_a_moment_are_those_of_a_dump_then(tmp_path: Path) -> None:
    """Segments come and go; undone backwards they are what a snapshot at that moment would have had."""
    made = Allocator(START_US)
    dumps, kept = [], []
    random = np.random.default_rng(3)
    for _ in range(60):
        if kept and random.random() < 0.45:
            made.free(kept.pop(int(random.integers(len(kept)))))
            if random.random() < 0.3:
                made.release()
        else:
            kept.append(made.alloc(int(random.integers(1, 12 * MIB))))
        dumps.append((len(made.actions), made.snapshot()))
    last = memory_snapshot(str(write_snapshot(tmp_path / "last", made.snapshot())))
    played = replay(last, 0)
    for number, (after, content) in enumerate(dumps):
        then = memory_snapshot(str(write_snapshot(tmp_path / f"{number}", content)))
        pools = [(pool.label, pool.reserved, pool.free, pool.largest) for pool in pieces_at(last, played, after) or []]
        assert pools == [(pool.label, pool.reserved, pool.free, pool.largest) for pool in pieces_at_end(then, 0)]


class Payload:
    """The classic: it runs a command where it is loaded."""

    def __reduce__(self) -> Any:
        return print, ("it ran",)


def hostile() -> dict[str, tuple[bytes, type[InputError], str]]:
    start = b"\x80\x04}\x94\x8c\x08segments\x94"
    return {
        "reduce": (start + pickle.dumps(Payload(), 4)[2:], UnknownFormat, "STACK_GLOBAL at byte .* can run code"),
        "global": (start + b"cos\nsystem\n(S'id'\ntR.", UnknownFormat, "GLOBAL at byte 15"),
        "inst": (start + b"(S'id'\nios\nsystem\n.", UnknownFormat, "STRING at byte"),
        "extension": (start + b"\x82\x01.", UnknownFormat, "EXT1"),
        "persistent": (start + b"\x8c\x01aQ.", UnknownFormat, "BINPERSID"),
        "build": (start + b"]b.", UnknownFormat, "BUILD"),
        "protocol 9": (b"\x80\x04\x80\x09" + start, UnknownFormat, "PROTO at byte 2"),
        "nested": (start + b"(" * 10_000_000, LimitExceeded, "nests deeper than 64"),
        "lists": (start + b"]\x94" * 5_000_000, MalformedTrace, "ends too early"),
        "memo": (start + b"]r\xff\xff\xff\x7f.", MalformedTrace, "damaged"),
        "unknown memo": (start + b"h\x77.", MalformedTrace, "damaged"),
        "long text": (start + b"X\xff\xff\xff\x7f" + b"a" * 99, LimitExceeded, "more than 64 MB"),
        "cut": (start + b"]", MalformedTrace, "ends too early"),
        "below a mark": (start + b"(e.", MalformedTrace, "damaged"),
        "other": (pickle.dumps({"segments": 7}, 4), InputError, "snapshot"),
        "lists in lists": (start + b"]\x94" * 500_000 + b"a" * 499_999 + b"s.", UnknownFormat, "no segments"),
        "laughs": (laughs(), LimitExceeded, "repeats its values"),
    }


def laughs() -> bytes:
    """A list of a thousand segments, of which each has the same thousand blocks."""
    block = {"address": 1, "size": 512, "state": "inactive"}
    blocks = [dict(block) for _ in range(1000)]
    segments = [{"address": 1, "total_size": 512, "blocks": blocks} for _ in range(5000)]
    return pickle.dumps({"segments": segments, "device_traces": []}, 4)


@pytest.mark.parametrize("name", hostile())
def test_what_is_hostile_is_refused_in_a_line(tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    data, kind, text = hostile()[name]
    (tmp_path / "a.pickle").write_bytes(data)
    with pytest.raises(kind, match=text) as raised:
        memory_snapshot(str(tmp_path / "a.pickle"))
    assert "\n" not in str(raised.value)
    (tmp_path / "page.html").write_bytes(page_of(data))
    with pytest.raises(InputError):
        memory_snapshot(str(tmp_path / "page.html"))
    assert "it ran" not in capfd.readouterr().out


def test_a_page_that_is_cut_off_or_another_is_refused(tmp_path: Path) -> None:
    page = page_of(pickle.dumps(training(START_US).snapshot(), 4))
    (tmp_path / "a.html").write_bytes(page[: len(page) // 2])
    with pytest.raises(MalformedTrace, match="ends too early"):
        memory_snapshot(str(tmp_path / "a.html"))
    (tmp_path / "a.html").write_bytes(page.strip().replace(b"gA", b"gA==!", 1))  # also without its first line
    with pytest.raises((MalformedTrace, UnknownFormat), match="pickle"):
        memory_snapshot(str(tmp_path / "a.html"))
    (tmp_path / "a.html").write_bytes(page.strip())
    assert len(memory_snapshot(str(tmp_path / "a.html")).action_kind)
    for other in (page.replace(b"MemoryViz.js", b"Other.js"), page_of(b"no pickle")):
        (tmp_path / "a.html").write_bytes(other)
        with pytest.raises(UnknownFormat, match="a web page"):
            read(str(tmp_path / "a.html"))


def test_a_pickle_of_something_else_is_refused(tmp_path: Path) -> None:
    for content in ([1, 2], {"weights": 3}, [{"a": 1}], "text"):
        path = write_snapshot(tmp_path / "a.pickle", content)
        with pytest.raises(UnknownFormat, match="a pickle, but not a memory snapshot"):
            memory_snapshot(str(path))
        with pytest.raises(UnknownFormat, match="a Python pickle"):
            read(str(path))


def test_limits_hold(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path / "a.pickle", training(START_US).snapshot())
    with pytest.raises(LimitExceeded, match="more than 10 events"):
        read(str(path), limits=Limits(events=10))
    with pytest.raises(LimitExceeded, match="decompresses to more than"):
        read(str(path), limits=Limits(text_bytes=1000))


def test_odd_values_do_no_harm(tmp_path: Path) -> None:
    """Times before 1970, addresses beyond int64, unknown actions, frames that are none."""
    made = training(START_US)
    content = made.snapshot()
    odd = {"action": "leap", "addr": 1 << 64, "size": -5, "stream": None, "time_us": -7}
    odd["frames"] = [None, 3, {"name": 4}]
    content["device_traces"][0] = [odd, *made.actions, {"action": "alloc"}, 7, None]
    content["segments"].append({"blocks": None, "address": None})
    content["external_annotations"] += [{"stage": "START", "name": None, "time_us": 1 << 62}, 4]
    path = write_snapshot(tmp_path / "a.pickle", content)
    snapshot = memory_snapshot(str(path))
    assert (len(snapshot.action_kind), snapshot.has_times) == (len(made.actions) + 4, False)
    augmented = augment.augment(str(path))
    assert augmented["memory_snapshot"].status == "ok"
    augment.write(augmented, tmp_path / "out")


def test_many_segments_and_steps_take_no_time(tmp_path: Path) -> None:
    """What is asked of every line or segment is asked once."""
    made = training(START_US, steps=3)
    content = made.snapshot()
    at, us = 1 << 40, made.now_us
    for number in range(30_000):
        entry = {"size": 1 << 21, "stream": 0, "time_us": us + number, "frames": [frame("/a/b.py", number)]}
        content["device_traces"][0].append({"action": "segment_map", "addr": at + number * (1 << 22), **entry})
        content["device_traces"][0].append({"action": "alloc", "addr": at + number * (1 << 22), **entry})
        content["external_annotations"].append(
            {"stage": "START", "name": f"ProfilerStep#{9 + number}", "time_us": us + number}
        )
    augmented = augment.augment(str(write_snapshot(tmp_path / "a.pickle", content)))
    assert augmented["memory_snapshot"].status == "ok"


def test_it_is_found_beside_its_trace(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "rank3.pt.trace.json", op("aten::mm"))
    beside = write_snapshot(tmp_path / "rank3_memory_snapshot.pickle", training(START_US).snapshot())
    (tmp_path / "snapshot.pickle").write_bytes(b"no pickle")
    assert Evidence().near(str(trace), 3, 8).paths == {"memory_snapshot": str(beside)}
    assert Evidence().near(str(trace), 4, 8).paths == {}
    assert Evidence().near(str(trace), None, None).paths == {}
    assert Evidence({"memory_snapshot": ""}).near(str(trace), 3, 8).paths == {}
    write_snapshot(tmp_path / "snapshot.pickle", training(START_US).snapshot())
    assert Evidence().near(str(trace), None, None).paths == {"memory_snapshot": str(tmp_path / "snapshot.pickle")}
    assert Evidence().near(str(trace), None, 2).paths == {}
    for other in (beside, tmp_path / "nccl-fault.log"):  # no traces themselves
        other.write_bytes(
            beside.read_bytes() if other == beside else b"step 1\nn0:7:9 [0] NCCL INFO Using network IB\n"
        )
        assert Evidence().near(str(other), None, None).paths == {}


def test_pieces_of_a_file_are_read_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = training(START_US).snapshot()
    path = write_snapshot(tmp_path / "a", made)
    whole = columns(memory_snapshot(str(path)))
    for size in (1, 7, 100):
        monkeypatch.setattr("augment.readers.attachments.snapshot_file._PIECE", size)
        monkeypatch.setattr("augment.readers.attachments.snapshot_file.CHUNK", size)
        assert columns(memory_snapshot(str(path))) == whole


def test_memory_is_a_small_multiple_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the largest shape that is known, short entries with a text each, at most 3 bytes for each of the file."""
    content = training(START_US).snapshot()
    frames = [frame("/a/model.py", line) for line in range(5)]
    for number in range(20_000):
        entry = {"addr": (1 << 41) + number * 512, "size": 70_000, "stream": 0, "time_us": START_US + 10**6 + number}
        for kind in ("alloc", "free_requested"):
            texts = {"action": kind, "compile_context": "N/A", "user_metadata": f"step {number % 50} of 50, {kind}"}
            content["device_traces"][0].append({**entry, **texts, "frames": frames})
    path = write_snapshot(tmp_path / "a", content)
    for name, size in (("_PIECE", 1 << 14), ("CHUNK", 1 << 14), ("_ROWS", 1 << 10), ("_MOST_ACTIONS", 1 << 10)):
        monkeypatch.setattr(f"augment.readers.attachments.snapshot_file.{name}", size)
    memory_snapshot(str(write_snapshot(tmp_path / "b", training(START_US).snapshot())))  # what is loaded once
    tracemalloc.start()
    try:
        replay(memory_snapshot(str(path)), 0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * path.stat().st_size
