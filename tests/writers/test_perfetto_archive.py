"""The TAR of several traces: whole as a TAR, its manifest as Perfetto documents it, and what engine v52 makes of it."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

from augment.writers.files import replacing
from augment.writers.perfetto.several import MANIFEST, Archive, TraceGroup
from perfetto_engine import PerfettoEngine
from perfetto_traces import NAMES, OP, trace_of_events


def archive(folder: Path, names: list[str], pids: list[int]) -> Path:
    path = folder / "job.tar"
    with replacing(path) as file:
        made = Archive(file)
        for index, (name, pid) in enumerate(zip(names, pids, strict=True)):
            events = [{**event, "pid": pid} for event in (NAMES[0], {**OP, "name": name, "ts": 5 + index, "dur": 3})]
            assert made.add(trace_of_events(folder, events), TraceGroup(name)) == []
        made.close()
    return path


def test_members_and_manifest(tmp_path: Path) -> None:
    names = ["rank 0", "rank 1", "rank 1", "ünknown/" + "x" * 200]
    with tarfile.open(archive(tmp_path, names, [1, 2, 3, 4])) as tar:
        members = tar.getnames()
        document = json.loads(tar.extractfile(MANIFEST).read())["perfetto_manifest"]  # type: ignore[union-attr]
        sizes = {getmember.name: getmember.size for getmember in tar.getmembers()}
    assert members == [file["path"] for file in document["files"]] + [MANIFEST]
    assert all(len(name) < 100 and size > 50 for name, size in sizes.items())
    assert document["version"] == 1
    assert [file["machine"]["name"] for file in document["files"]] == ["rank 0", "rank 1", "rank 1 (2)", names[3]]
    first, *others = document["files"]
    assert document["trace_time"] == {"clock": "BOOTTIME", "file": first["path"]}
    assert "clocks" not in first
    for other in others:
        assert other["clocks"] == {"clock": "BOOTTIME", "sync_to": document["trace_time"], "offset_ns": 0}


def test_an_engine_that_knows_no_manifest_reads_every_slice(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    perfetto.load(archive(tmp_path, ["rank 0", "rank 1", "rank 2"], [42, 43, 44]))
    result = perfetto.rows(
        "select slice.name, ts, dur, pid, process.name from slice join thread_track on track_id = thread_track.id "
        "join thread using (utid) join process using (upid) order by ts"
    )
    assert result == [(f"rank {index}", 5000 + 1000 * index, 3000, 42 + index, "python") for index in range(3)]
    assert perfetto.problems() == {}
