"""Several traces in a TAR, a native file each, with the ``perfetto_manifest`` that says how they belong together.

Perfetto from v58 on makes each file a machine of its own, so that ranks of equal pids stay apart and every process and
thread is in its tables: https://perfetto.dev/docs/reference/perfetto-manifest. Before, processes of equal pids in
different files are one. Arrows do not lead from file to file.
"""

from __future__ import annotations

import contextlib
import json
import re
import tarfile
from collections.abc import Iterator
from typing import Any, BinaryIO

from augment.findings import AugmentedTrace
from augment.trace import Diagnostic
from augment.writers.perfetto import write_part
from augment.writers.perfetto.several import Group, free_name
from augment.writers.perfetto.suffixes import Links, Part
from augment.writers.perfetto.tracks import Tracks

SUFFIX = ".tar"
MANIFEST = "perfetto_manifest.json"
_CLOCK = "BOOTTIME"  #: what times of a native file are taken for that does not say

_ODD = re.compile(r"[^A-Za-z0-9_.=-]+")
_LONGEST = 60  #: characters of a name in the archive


class Archive:
    """A TAR of several traces, added one after the other; the times of all must be of one clock."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._names: dict[str, str] = {}

    def add(self, augmented: AugmentedTrace, group: Group, *_links: Links) -> list[Diagnostic]:
        """Write a trace; what had to be changed or left out."""
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
        files: list[dict[str, Any]] = [
            {"path": path, "machine": {"name": name}} for name, path in self._names.items()
        ]  # fmt: skip
        first = {"file": files[0]["path"], "clock": _CLOCK}
        for member in files[1:]:
            member["clocks"] = {"clock": _CLOCK, "sync_to": first, "offset_ns": 0}
        return {"version": 1, "trace_time": first, "files": files}


@contextlib.contextmanager
def _member(file: BinaryIO, name: str) -> Iterator[None]:
    """What is written to ``file`` within becomes a member of the archive: its header needs the size, and comes last."""
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
