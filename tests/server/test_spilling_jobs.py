"""Jobs that come near the memory that a job may use put arrays on the disk, and are not ended."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from in_process import trace
from msgspec.structs import asdict

from augment.batch import memory_limit, spilling
from augment.pipeline.request import Request
from augment.readers.limits import UNLIMITED
from augment_server.workers import worker

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="bounds of memory need Linux")
GB = 1 << 30


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A trace with arrays of more than 16 kB."""
    return trace(tmp_path / "a.json", count=5_000)


def order_of(source: Path, folder: Path, most: int) -> dict[str, Any]:
    """An order to convert a trace, from a server that lets a job use ``most`` bytes."""
    folder.mkdir()
    return {
        "kind": "augment",
        "folder": str(folder),
        "inputs": [{"at": "0/a.json", "file_name": "a.json", "blob": str(source)}],
        "limits": asdict(UNLIMITED),
        "request": msgspec.to_builtins(Request()),
        "summaries": False,
        "metrics_only": False,
        "memory": most,
    }


def outcome_of(order: dict[str, Any]) -> dict[str, Any]:
    """What the worker answers."""
    return worker._outcome(order, lambda **_: None)


def test_the_bound_of_a_job(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bound(most: int) -> int | None:
        return worker._bound({"folder": str(tmp_path), "memory": most}, [source, tmp_path / "none"])

    assert bound(GB) is None  # it needs less
    monkeypatch.setattr(memory_limit, "needed", lambda _: GB)
    assert bound(GB) == 3 * GB // 4
    assert bound(2 * GB) is None
    assert bound(600 << 20) is None  # arrays are not what takes most of so little
    assert bound(0) is None  # no limit
    monkeypatch.setattr(memory_limit, "needed", lambda _: 1 << 60)  # more than twice the disk has
    assert bound(GB) is None


def test_a_job_on_the_disk_has_the_same_outputs(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = outcome_of(order_of(source, tmp_path / "free", GB))
    spills: list[int] = []
    spill = spilling._Memory._spill
    monkeypatch.setattr(
        spilling._Memory, "_spill", lambda self, *where: (spills.append(where[1]), spill(self, *where))[1]
    )
    for name, value in (("LEAST_ARRAY", 1 << 14), ("_FULL", 0.0), ("_EASED", 0.0)):
        monkeypatch.setattr(spilling, name, value)
    monkeypatch.setattr(memory_limit, "needed", lambda _: GB)
    assert outcome_of(order_of(source, tmp_path / "bounded", GB))["made"] == free["made"]
    assert len(spills) > 10
    assert sorted(os.listdir(tmp_path / "bounded")) == ["in", "out"]


def test_a_full_disk_is_no_lack_of_memory(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name, value in (("LEAST_ARRAY", 1 << 14), ("_FULL", 0.0), ("_EASED", 0.0)):
        monkeypatch.setattr(spilling, name, value)
    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(memory_limit, "needed", lambda _: GB)
    failed = outcome_of(order_of(source, tmp_path / "job", GB))["failed"]
    assert failed[0] == "STORAGE_FULL"
    assert str(tmp_path) not in failed[1]
