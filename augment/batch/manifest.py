"""The results of a batch, recorded in the output folder so that a batch can be resumed.

``augment-manifest.jsonl`` gets a line for every finished input at once. Lines are only ever appended, and the last line
of an input counts. A line that a crash cut off is ignored. Paths are relative to the folder, so that it can be moved.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from msgspec.structs import asdict

from augment.batch import job_tracks, locations
from augment.batch.convert import Settings
from augment.batch.inputs import Input
from augment.batch.journal import journal
from augment.batch.results import File, Result
from augment.readers.attachments.tables import read_tables
from augment.version import __version__
from augment.writers import DEFAULT
from augment.writers.files import MANIFEST, is_manifest

_FORM = 3  #: version of summaries and seams; inputs recorded with another are converted again
_ALWAYS = ("path", "size", "sha256")  #: recorded for every file; other fields only where they are set


def digest_of(settings: Settings) -> str:
    """A digest that is equal for settings with equal outputs."""
    request = settings.request
    relevant = [
        _FORM,
        request.formats or (DEFAULT,),
        sorted(request.only),
        sorted(request.skip),
        request.options,
        request.steps,
        [stage.suffix for stage in settings.stages],
        *filter(None, [request.evidence.paths, read_tables(request.tables, request.peaks)]),
    ]
    return hashlib.sha256(json.dumps(relevant, sort_keys=True, default=str).encode()).hexdigest()[:16]


class Manifest:
    """The manifest of one folder; only one process at a time writes to it.

    Args:
        root: the folder, a path or a URL.
        settings: the settings of this run.
        shard: distinguishes processes that share the folder; each writes a file of its own and reads all of them.

    Raises:
        OutputError: another process writes to it, or the file cannot be written.
    """

    def __init__(self, root: str, settings: Settings, shard: str = "") -> None:
        self._root, self._digest = root, digest_of(settings)
        self._evidence = settings.request.evidence
        locations.expect_writable(root)
        self._journal = journal(locations.join(root, f"-{shard}".join(MANIFEST) if shard else "".join(MANIFEST)))

    def done(self, item: Input) -> Result | None:
        """The earlier result of ``item`` if it is still valid, else None.

        It is valid if the file, the files recorded with it, the settings and the version of this program are unchanged,
        and all outputs still exist.
        """
        record = self._known.get(item.key)
        if record is None or record["status"] != "augmented" or not item.modified:
            return None
        if (record["size"], record["modified"], record["options"], record["tool"]) != (
            item.size,
            item.modified,
            self._digest,
            __version__,
        ):
            return None
        if record.get("beside", "") != self._evidence.state(record["rank"]):
            return None
        outputs, summaries = self._files(record["outputs"]), self._files(record["summaries"])
        changed = [file for file in (*outputs, *summaries) if self._size(file) != file.size]
        if not all(self._size(file) is not None and job_tracks.is_as_written(file) for file in changed):
            return None
        return Result(
            item.path,
            "done_before",
            outputs,
            sha256=record["sha256"],
            rank=record["rank"],
            world_size=record["world_size"],
            summaries=summaries,
            drawn=job_tracks.NOT_KNOWN if changed else record["drawn"],
            evidence_state=record.get("beside", ""),
            partial=record.get("partial", ""),
        )

    def record(self, item: Input, result: Result) -> None:
        """Record the result of ``item``, if it is a trace."""
        if result.status == "passed_over":
            return
        line = {
            "input": item.key,
            "path": item.path,
            "size": item.size,
            "modified": item.modified,
            "sha256": result.sha256,
            "options": self._digest,
            "tool": __version__,
            "status": result.status,
            "message": result.message,
            "rank": result.rank,
            "world_size": result.world_size,
            "finished_ns": time.time_ns(),
            "outputs": self._relative(result.files),
            "summaries": self._relative(result.summaries),
            "drawn": result.drawn,
            "beside": result.evidence_state,
            "partial": result.partial,
        }
        self._journal.append(json.dumps(line).encode())

    def close(self) -> None:
        """Write what is left and release the file."""
        self._journal.close()

    @cached_property
    def _remote_sizes(self) -> dict[str, int] | None:
        """The sizes of all files, listed once; None for a local folder."""
        return locations.sizes_below(self._root) if locations.protocol(self._root) else None

    @cached_property
    def _known(self) -> dict[str, dict[str, Any]]:
        """The last record of each input."""
        known: dict[str, dict[str, Any]] = {}
        names = os.listdir(self._root) if self._remote_sizes is None else self._remote_sizes
        for name in sorted(name for name in names if "/" not in name and is_manifest(name)):
            for line in locations.read(locations.join(self._root, name)).splitlines():
                record = _decoded(line)
                if record and record["finished_ns"] >= known.get(record["input"], record)["finished_ns"]:
                    known[record["input"]] = record
        return known

    def _size(self, file: File) -> int | None:
        """The current size of a file; None if it does not exist."""
        if self._remote_sizes is not None:
            return self._remote_sizes.get(locations.below(file.path, self._root))
        return locations.size(file.path)

    def _files(self, records: list[dict[str, Any]]) -> tuple[File, ...]:
        return tuple(File(**{**file, "path": locations.join(self._root, file["path"])}) for file in records)

    def _relative(self, files: Iterable[File]) -> list[dict[str, Any]]:
        """The files as records, without empty fields."""
        records = [{**asdict(file), "path": locations.below(file.path, self._root)} for file in files]
        return [{name: value for name, value in record.items() if value or name in _ALWAYS} for record in records]


def _decoded(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:  # cut off
        return None
    return record if isinstance(record, dict) and "finished_ns" in record else None
