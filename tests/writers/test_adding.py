"""Tracks added to a finished output are as if written with the rest, and can be taken out again."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from augment import InputError, OutputError, Trace, read
from augment.core import Annotation, Category, CounterTrack, Flows, SliceTrack
from augment.diagnosis.drawing import DrawnDiagnosis, texts_of
from augment.writers import WRITERS, bundle, chrome, writer_named
from augment.writers.bundle import STORED, ZipMember
from augment.writers.compression import Checked
from augment.writers.seams import Described, add_tracks, is_as_written
from perfetto_engine import PerfettoEngine
from perfetto_traces import ALL, NAMES, TRACKS
from writer_traces import augmented, ns, stripped, texts, written

pytestmark = pytest.mark.slow

KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "args": {"device": 0, "stream": 7}}
LAUNCH = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 42, "tid": 43, "ts": 1, "dur": 1}
EVENTS = [*NAMES, LAUNCH, *({**KERNEL, "ts": ts, "dur": 4} for ts in range(5, 100, 10))]
COPY = {"ph": "X", "cat": "gpu_memcpy", "name": "c", "pid": 0, "tid": 7, "args": {"device": 1, "stream": 9}}
SOURCES: dict[str, list[dict[str, Any]]] = {
    "plain": EVENTS,
    "two devices of a process": [*EVENTS, {**COPY, "tid": 9, "ts": 3, "dur": 1}],
    "a process of no number": [*EVENTS, {**COPY, "pid": "GPU", "tid": 9, "ts": 3, "dur": 1}],
    "counters of the same name": [
        *EVENTS,
        {"ph": "C", "name": "Bandwidth", "pid": 0, "ts": 3, "args": {"a": 1}},
        {"ph": "C", "name": "Bandwidth (2)", "pid": 0, "ts": 3, "args": {"a": 1}},
    ],
    "numbers that are taken": [*EVENTS, {**LAUNCH, "tid": 10_000_001, "ts": 2}, {**LAUNCH, "tid": 10_000_003, "ts": 2}],
    "before time 0": [*EVENTS, {**LAUNCH, "ts": -7}],
}


def under(trace: Trace) -> list[int]:
    return [index for index, track in enumerate(trace.tracks) if track.device is not None]


def of_analyses(trace: Trace) -> list[Annotation]:
    first = under(trace)[0]
    idle = SliceTrack("idle", "Idle stream 7", first, ns(9000, 19000), ns(6000, 6000), texts("a", "b"))
    return [idle, CounterTrack("queue", "Queue Length", first, ns(1000, 2000), ns(1, 0), "operations")]


def of_job(trace: Trace, count: int = 3) -> list[SliceTrack | CounterTrack]:
    """Of every device: slices with args, and counters of one name."""
    result: list[SliceTrack | CounterTrack] = []
    for track in under(trace):
        ts = 5000 + 10_000 * np.arange(count)
        names = texts(*(f"wait {number}" for number in range(count)))
        args = {"late": texts(*map(str, range(count))), "bytes": np.arange(count) - 1}
        result.append(SliceTrack("job", f"Wait stream {track}", track, ts, np.full(count, 4000), names, args))
        result.append(CounterTrack("job", "Bandwidth", track, ns(5000, 9000), np.array([1.5, 0.0]), "GB/s", "", "b"))
    return result


def seamed(writer: Any, trace: Trace, path: Path, *annotations: Annotation) -> Described:
    return writer.write_seamed(augmented(trace, *annotations), path, under(trace)).seam.described


def source(folder: Path, events: list[dict[str, Any]], **members: Any) -> Trace:
    (folder / "t.json").write_text(json.dumps({**members, "traceEvents": events, "traceName": "x"}))
    return read(str(folder / "t.json"))


#: of which sources nothing else is added before, too
KINDS = [*((kind, False) for kind in SOURCES), ("plain", True), ("two devices of a process", True)]
writer_of = pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.NAME)


@writer_of
@pytest.mark.parametrize(("kind", "bare"), KINDS)
def test_it_is_as_if_it_had_been_written_at_once(
    writer: Any, kind: str, bare: bool, tmp_path: Path, perfetto: PerfettoEngine
) -> None:
    trace = source(tmp_path, SOURCES[kind], baseTimeNanoseconds=1_000_000 if kind == "plain" else 0)
    first = [] if bare else of_analyses(trace)
    at_once, base, later = (tmp_path / f"{name}{writer.SUFFIX}" for name in ("at once", "base", "later"))
    writer.write_seamed(augmented(trace, *first, *of_job(trace)), at_once)
    add_tracks(base, later, json.loads(json.dumps(seamed(writer, trace, base, *first))), of_job(trace))
    if writer is chrome:
        assert written(later) == written(at_once)
        assert stripped(written(later)) == (tmp_path / "t.json").read_bytes()
        shown(perfetto, later)
    else:
        assert shown(perfetto, later) == shown(perfetto, at_once)


def shown(perfetto: PerfettoEngine, path: Path) -> list[list[tuple[Any, ...]]]:
    """All that Perfetto tells of a file, but for numbers that it gives itself."""
    perfetto.load(path)
    problems = {name for name in perfetto.problems() if "negative" not in name}
    assert not problems
    args = "select key, coalesce(int_value, string_value) v from args where key glob 'debug.*' order by key, v"
    counters = "select t.name, ts, value from counter join counter_track t on t.id = track_id order by 1, 2, 3"
    return [sorted(perfetto.rows(sql), key=repr) for sql in (ALL, TRACKS, args, counters)]


@writer_of
@pytest.mark.parametrize("kind", SOURCES)
def test_what_was_added_gives_way_to_the_last_byte(writer: Any, kind: str, tmp_path: Path) -> None:
    trace = source(tmp_path, SOURCES[kind])
    base, path = tmp_path / "base", tmp_path / "out"
    seam = seamed(writer, trace, base, *of_analyses(trace))
    writer.write_seamed(augmented(trace, *of_analyses(trace)), path)
    assert path.read_bytes() == base.read_bytes()
    sha256 = hashlib.sha256(base.read_bytes()).hexdigest()
    contents = []
    for count in (3, 8):
        add_tracks(base, tmp_path / "expected", seam, of_job(trace, count))
        add_tracks(path, path, seam, of_job(trace, count))
        contents.append(path.read_bytes())
        assert contents[-1] == (tmp_path / "expected").read_bytes() != base.read_bytes()
        assert is_as_written(path, seam, sha256)
    assert contents[0] != contents[1]
    add_tracks(path, path, seam, [])
    assert path.read_bytes() == base.read_bytes()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["base", "expected", "out", "t.json"]


@writer_of
@pytest.mark.parametrize(("kind", "bare"), KINDS)
def test_what_is_at_the_seam_from_the_beginning_gives_way_and_comes_back(
    writer: Any, kind: str, bare: bool, tmp_path: Path, perfetto: PerfettoEngine
) -> None:
    trace = source(tmp_path, SOURCES[kind])
    base, path = tmp_path / f"base{writer.SUFFIX}", tmp_path / f"out{writer.SUFFIX}"
    stay = [] if bare else of_analyses(trace)
    first, other = judged(trace, "verdict", "why"), judged(trace, "verdict of the job")
    seam = json.loads(json.dumps(seamed(writer, trace, base, *stay, *first)))
    assert arrows(perfetto, base) == (0 if writer is bundle else 1)
    add_tracks(base, path, seam, other)
    assert arrows(perfetto, path) == 0
    names = "select distinct s.name from slice s where category = 'augment.diagnosis'"
    assert perfetto.rows(names) == [("verdict of the job",)]
    assert is_as_written(path, seam, hashlib.sha256(base.read_bytes()).hexdigest(), first)
    add_tracks(path, path, seam, first)
    assert path.read_bytes() == base.read_bytes()
    if writer is chrome:
        assert stripped(written(path)) == (tmp_path / "t.json").read_bytes()


def judged(trace: Trace, *names: str) -> list[SliceTrack | CounterTrack | Flows]:
    """A diagnosis: slices within each other, and from the last of two an arrow to the first kernel."""
    rows = np.flatnonzero(trace.events.category == Category.KERNEL)[:1]
    events, count = trace.events, len(names)
    drawn = DrawnDiagnosis(
        under=int(events.track[rows[0]]),
        start_ns=[5000] * count,
        dur_ns=[90_000 - number for number in range(count)],
        of_text=list(range(count)),
        texts=[texts_of("rule", name, "do", (), "high", "high", saves="") | {"name": name} for name in names],
        saved_ns=[*range(count)],
        arrows=[(1, 7, int(rows[0]), int(events.ts[rows[0]]), int(events.track[rows[0]]))] if count > 1 else [],
    )
    return list(drawn.annotations("diagnosis"))


def arrows(perfetto: PerfettoEngine, path: Path) -> int:
    """How many arrows join a diagnosis and a kernel."""
    perfetto.load(path)
    assert not {name for name in perfetto.problems() if "negative" not in name}
    sql = "select a.name, b.name from flow join slice a on a.id = slice_out join slice b on b.id = slice_in"
    return [set(row) for row in perfetto.rows(sql)].count({"why", "k"})


@pytest.mark.parametrize("without", ["", "isal"])
@pytest.mark.parametrize("level", [0, 1, 9])
def test_large_files_whose_own_bytes_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: int, without: str
) -> None:
    if without:
        monkeypatch.setitem(sys.modules, without, None)
    monkeypatch.setattr(chrome, "SPLICED_FROM", 0)
    many = [{**KERNEL, "name": f"k{ts % 37}", "ts": ts, "dur": ts % 9} for ts in range(0, 200_000, 10)]
    text = json.dumps({"traceEvents": [*NAMES, *many], "traceName": "x" * 5000}).encode()
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(text, level))
    trace = read(str(tmp_path / "t.json.gz"))
    base, later = tmp_path / "base", tmp_path / "later"
    seam = seamed(chrome, trace, base, *of_analyses(trace))
    assert (base.read_bytes()[:1000] == (tmp_path / "t.json.gz").read_bytes()[:1000]) == (level > 0)
    add_tracks(base, later, seam, of_job(trace, 5000))
    chrome.write(augmented(trace, *of_analyses(trace), *of_job(trace, 5000)), tmp_path / "at once")
    assert written(later) == written(tmp_path / "at once")
    add_tracks(later, later, seam, ())
    assert later.read_bytes() == base.read_bytes()


@pytest.mark.parametrize("layout", ["flushed", "two members", "an empty member last"])
def test_a_flushed_file_is_extended_and_several_members_become_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    monkeypatch.setattr(chrome, "SPLICED_FROM", 0)
    many = [{**KERNEL, "name": f"k{ts % 37}", "ts": ts, "dur": ts % 9} for ts in range(0, 200_000, 10)]
    text = json.dumps({"traceEvents": [*NAMES, *many]})
    path, base = tmp_path / "t.json.gz", tmp_path / "base"
    if layout == "flushed":
        with gzip.open(path, "wt", encoding="utf-8") as file:
            file.write(text)
    else:
        cut = len(text) // 2 if layout == "two members" else len(text)
        path.write_bytes(gzip.compress(text[:cut].encode()) + gzip.compress(text[cut:].encode()))
    trace = read(str(path))
    seamed(chrome, trace, base, *of_analyses(trace))
    assert (base.read_bytes()[10:1000] == path.read_bytes()[10:1000]) == (layout == "flushed")
    assert stripped(written(base)) == text.encode()
    assert json.loads(written(base))["traceEvents"][: 1 + len(many)] == [*NAMES, *many][: 1 + len(many)]


@pytest.mark.parametrize("cut", [b"", b',\n{"ph": "X", "na'])
def test_a_truncated_source_stays_closed(tmp_path: Path, cut: bytes) -> None:
    text = json.dumps({"traceEvents": EVENTS}).encode()[:-2]
    (tmp_path / "t.json").write_bytes(text + cut)
    trace = read(str(tmp_path / "t.json"))
    seam = seamed(chrome, trace, tmp_path / "out", *of_analyses(trace))
    add_tracks(tmp_path / "out", tmp_path / "out", seam, of_job(trace))
    json.loads(written(tmp_path / "out"))
    assert stripped(written(tmp_path / "out")).startswith(text)


@writer_of
def test_another_file_is_refused(writer: Any, tmp_path: Path) -> None:
    trace = source(tmp_path, EVENTS)
    path = tmp_path / "out"
    seam = seamed(writer, trace, path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="has changed since it was written"):
        add_tracks(path, tmp_path / "new", seam, of_job(trace))
    assert not is_as_written(path, seam, "")
    assert not is_as_written(tmp_path / "nowhere", seam, "")
    assert {each.name for each in tmp_path.iterdir()} == {"t.json", "out"}
    assert writer_named(seam["writer"]) is writer


def test_annotations_of_4_gib_are_refused() -> None:
    with pytest.raises(OutputError, match="too large for a zip"):
        bundle._close(io.BytesIO(), ZipMember("rank0.json", STORED, 0), 0, Checked(0, 1 << 32))
