"""Several traces in a TAR: a native file for each, and the ``perfetto_manifest`` that describes how they belong
together.

Perfetto from v58 on treats each file as a separate machine. So ranks with equal pids stay apart, and every process and
thread is in its tables: https://perfetto.dev/docs/reference/perfetto-manifest. Earlier versions merge processes of
equal pids from different files. Arrows cannot lead from one file to another.
"""

from __future__ import annotations

import contextlib
import json
import re
import tarfile
from collections.abc import Iterator
from typing import Any, BinaryIO

from augment.core.findings import AugmentedTrace
from augment.core.trace import Diagnostic
from augment.writers.perfetto import write_part
from augment.writers.perfetto.several import TraceGroup, free_name
from augment.writers.perfetto.suffixes import Links, Part
from augment.writers.perfetto.tracks import Tracks

SUFFIX = ".tar"
MANIFEST = "perfetto_manifest.json"
_CLOCK = "BOOTTIME"  #: the clock that Perfetto assumes for a native file without one

_ODD = re.compile(r"[^A-Za-z0-9_.=-]+")
_LONGEST = 60  #: the most characters of a name in the archive


class Archive:
    """A TAR of several traces, added one after the other. All times must be on one clock."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._names: dict[str, str] = {}

    def add(self, augmented: AugmentedTrace, group: TraceGroup, *_links: Links) -> list[Diagnostic]:
        """Write a trace. Returns diagnostics of what was changed or left out."""
        name = free_name(group.name, self._names)
        plain = _ODD.sub("-", name)[:_LONGEST]
        self._names[name] = f"{len(self._names):04}-{plain}.pftrace"
        with _member(self._file, self._names[name]):
            return write_part(augmented, self._file, Tracks(augmented.trace), Part())

    def close(self) -> None:
        """Write the manifest and the end of the archive."""
        with _member(self._file, MANIFEST):
            self._file.write(json.dumps({"perfetto_manifest": self._manifest()}, ensure_ascii=False).encode())
        self._file.write(bytes(2 * tarfile.BLOCKSIZE))

    def _manifest(self) -> dict[str, Any]:
        files: list[dict[str, Any]] = [{"path": path, "machine": {"name": name}} for name, path in self._names.items()]
        first = {"file": files[0]["path"], "clock": _CLOCK}
        for member in files[1:]:
            member["clocks"] = {"clock": _CLOCK, "sync_to": first, "offset_ns": 0}
        return {"version": 1, "trace_time": first, "files": files}


@contextlib.contextmanager
def _member(file: BinaryIO, name: str) -> Iterator[None]:
    """What is written to ``file`` inside the context becomes a member of the archive. Its header is written last,
    because it needs the size.
    """
    header = file.tell()
    file.write(bytes(tarfile.BLOCKSIZE))
    yield
    end = file.tell()
    info = tarfile.TarInfo(name)
    info.size = end - header - tarfile.BLOCKSIZE
    file.write(bytes(-info.size % tarfile.BLOCKSIZE))
    after = file.tell()
    file.seek(header)
    file.write(info.tobuf(tarfile.GNU_FORMAT))
    file.seek(after)
