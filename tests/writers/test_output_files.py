from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest

from augment.core.output_files import is_output, output_path, replacing, stem
from augment.errors import OutputError
from augment.writers import write_all
from augment.writers.perfetto.several import MANIFEST, Archive
from perfetto_engine import PerfettoEngine
from perfetto_traces import NAMES, OP, trace_of_events


@pytest.mark.parametrize(("name", "expected"), [
    ("rank0.pt.trace.json.gz", "rank0"),
    ("rank0.trace.json.gz", "rank0"),
    ("rank0.json.gz", "rank0"),
    ("rank0.json", "rank0"),
    ("rank0.json.zst", "rank0"),
    ("rank0.pftrace", "rank0"),
    ("rank0.perfetto-trace.gz", "rank0"),
    ("worker0.1623143566756.pt.trace.json.gz", "worker0.1623143566756"),
    ("trace.zip", "trace"),
    ("a/b/trace.json", "trace"),
    ("noise", "noise"),
    (".json", ".json"),
    ("RANK0.JSON.GZ", "RANK0"),
    ("memory_timeline.raw.gz", "memory_timeline"),
])  # fmt: skip
def test_stem(name: str, expected: str) -> None:
    assert stem(name) == expected


def test_outputs_are_known_by_name(tmp_path: Path) -> None:
    for suffix in (
        ".augmented.json.gz",
        ".augmented.pftrace",
        ".metrics.json",
        ".diff.json.gz",
        ".diff.metrics.json",
        ".diff.overlay.pftrace",
    ):
        assert is_output(output_path("rank0.pt.trace.json.gz", tmp_path, suffix).name)
    assert not is_output("rank0.pt.trace.json.gz")


def test_target_appears_when_whole(tmp_path: Path) -> None:
    target = tmp_path / "new" / "out"
    with replacing(target) as file:
        file.write(b"whole")
        assert not target.exists()
    assert target.read_bytes() == b"whole"
    assert list(target.parent.iterdir()) == [target]


def test_nothing_is_left_of_a_failure(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), replacing(target) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_the_input_is_never_overwritten(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.write_bytes(b"in")
    link = tmp_path / "link"
    link.symlink_to(source)
    with pytest.raises(OutputError, match="is the input itself"), replacing(link, str(source)):
        pass
    assert source.read_bytes() == b"in"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="cannot be written"), replacing(tmp_path / "file" / "out"):
        pass


def test_what_is_no_file_is_written_to(tmp_path: Path) -> None:
    """Neither replaced, nor begun anew where it has been redirected to a file; never tried with ``/dev/stdout``."""
    with open(tmp_path / "log", "wb", buffering=0) as log:
        for text in (b"one ", b"two "):
            with replacing(Path(f"/dev/fd/{log.fileno()}")) as file:
                file.write(text)
        log.write(b"three")
    assert (tmp_path / "log").read_bytes() == b"one two three"
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with replacing(tmp_path / "pipe") as file:
        file.write(b"four")
    assert os.read(pipe, 9) == b"four"
    os.close(pipe)


def test_errors_of_other_files_are_not_taken_for_its_own(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "out"):
        (tmp_path / "missing input").read_bytes()


# The TAR of several traces: whole as a TAR, its manifest as Perfetto documents it, and what engine v52 makes of
# it.


def archive(folder: Path, names: list[str], pids: list[int]) -> Path:
    path = folder / "job.tar"
    with replacing(path) as file:
        made = Archive(file)
        for index, (name, pid) in enumerate(zip(names, pids, strict=True)):
            events = [{**event, "pid": pid} for event in (NAMES[0], {**OP, "name": name, "ts": 5 + index, "dur": 3})]
            native, _ = write_all(trace_of_events(folder, events), folder)
            with open(native, "rb") as source:
                made.copy(name, source, 0, native.stat().st_size)
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
