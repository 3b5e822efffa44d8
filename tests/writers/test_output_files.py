from __future__ import annotations

from pathlib import Path

import pytest

from augment.errors import OutputError
from augment.writers.files import is_output, output_path, replacing, stem


@pytest.mark.parametrize(
    ("name", "expected"),
    [
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
    ],
)
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


def test_errors_of_other_files_are_not_taken_for_its_own(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "out"):
        (tmp_path / "missing input").read_bytes()
