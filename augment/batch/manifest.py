"""The results of a batch, recorded in the output folder so that a batch can be resumed.

``augment-manifest.jsonl`` gets a line for every finished input at once. Lines are only ever appended, and the last line
of an input counts. A line that a crash cut off is ignored. Paths are relative to the folder, so that it can be moved.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from augment.batch import job_question, locations
from augment.batch.conversion import File, Result, RunPlan
from augment.batch.inputs import Input
from augment.core.output_files import MANIFEST, METRICS_SUFFIX, RANKS_SUFFIX, is_manifest
from augment.errors import OutputError
from augment.readers.attachments.tables import read_tables
from augment.version import __version__
from augment.writers import DEFAULT

_FORM = 5  #: version of summaries and seams; inputs recorded with another are converted again
UPLOAD_S = 5.0  #: a remote file cannot be appended to: at most this often it is uploaded anew
_ALWAYS = ("path", "size", "sha256")  #: recorded for every file; other fields only where they are set


def digest_of(plan: RunPlan) -> str:
    """A digest that is equal for plans with equal outputs."""
    request = plan.request
    relevant = [
        _FORM,
        request.formats or (DEFAULT,),
        sorted(request.only),
        sorted(request.skip),
        request.options,
        request.steps,
        [RANKS_SUFFIX] if plan.compares else [],
        *filter(None, [request.evidence.paths, read_tables(request.tables, request.peaks, request.region)]),
    ]
    return hashlib.sha256(json.dumps(relevant, sort_keys=True, default=str).encode()).hexdigest()[:16]


class Manifest:
    """The manifest of one folder; only one process at a time writes to it.

    Args:
        root: the folder, a path or a URL.
        plan: of this run. Processes with different shards that share the folder write a file of their own each, and
            read all of them.

    Raises:
        OutputError: another process writes to it, or the file cannot be written.
    """

    def __init__(self, root: str, plan: RunPlan) -> None:
        self._root, self._digest = root, digest_of(plan)
        self._evidence = plan.request.evidence
        self._no_traces: list[bytes] = []
        self._recorded = False
        locations.expect_writable(root)
        name = locations.join(root, (f"-{plan.shard}" if plan.shard else "").join(MANIFEST))
        self._journal = _RemoteJournal(name) if locations.protocol(name) else _LocalJournal(name)

    def has_trace(self, item: Input) -> bool:
        """Whether an augmented trace of ``item`` was written, be it of what the file was before."""
        record = self._known.get(item.key)
        return record is not None and any(not file["path"].endswith(METRICS_SUFFIX) for file in record["outputs"])

    def done(self, item: Input) -> Result | None:
        """The earlier result of ``item`` if it is still valid, else None.

        It is valid if the file, the files recorded with it, the settings and the version of this program are unchanged,
        and all outputs still exist. What is no trace stays none until it changes.
        """
        record = self._known.get(item.key)
        if record is None or record["status"] not in ("augmented", "passed_over") or not item.modified:
            return None
        if (record["size"], record["modified"], record["options"], record["tool"]) != (
            item.size,
            item.modified,
            self._digest,
            __version__,
        ):
            return None
        if record["status"] == "passed_over":
            return None if item.named else Result(item.path, "passed_over", message=record["message"])
        beside = self._evidence.near(item.path, record["rank"], record["world_size"])
        if record.get("beside", "") != beside.state(record["rank"]):
            return None
        outputs, summaries = _files(self._root, record["outputs"]), _files(self._root, record["summaries"])
        changed = [file for file in (*outputs, *summaries) if self._size(file) != file.size]
        if not all(self._size(file) is not None and job_question.is_as_written(file, summaries) for file in changed):
            return None
        result = replace(_result(self._root, record), path=item.path)
        return replace(result, drawn=job_question.NOT_KNOWN) if changed else result

    def record(self, item: Input, result: Result) -> None:
        """Record the result of ``item``."""
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
        if result.status == "passed_over":
            self._no_traces.append(json.dumps(line).encode())
        else:
            self._recorded = True
            self._journal.append(json.dumps(line).encode())

    @property
    def jobs(self) -> dict[str, job_question.Earlier]:
        """What is recorded of whole jobs, by the path of a job's file."""
        return {
            locations.join(self._root, record["input"]): msgspec.convert(record["job"], job_question.Earlier)
            for record in self._known.values()
            if record["status"] == "concluded" and record["tool"] == __version__
        }

    def record_job(self, path: str, job: job_question.Earlier) -> None:
        """Record the outcome of a job, whose file is at ``path``."""
        name = locations.below(path, self._root)
        output = {"path": name, "size": job.size, "sha256": ""}
        line = {"input": name, "tool": __version__, "status": "concluded", "finished_ns": time.time_ns()}
        line |= {"outputs": [output], "summaries": [], "partial": "", "rank": None, "job": asdict(job)}
        self._journal.append(json.dumps(line).encode())

    def close(self) -> None:
        """Write what is left and release the file. A folder without traces stays as it is."""
        if self._recorded or (self._no_traces and self._known):
            for line in self._no_traces:
                self._journal.append(line)
        self._journal.close()

    @cached_property
    def _remote_sizes(self) -> dict[str, int] | None:
        """The sizes of all files, listed once; None for a local folder."""
        return locations.sizes_below(self._root) if locations.protocol(self._root) else None

    @cached_property
    def _known(self) -> dict[str, dict[str, Any]]:
        """The last record of each input."""
        return _records(self._root, os.listdir(self._root) if self._remote_sizes is None else self._remote_sizes)

    def _size(self, file: File) -> int | None:
        """The current size of a file; None if it does not exist."""
        if self._remote_sizes is not None:
            return self._remote_sizes.get(locations.below(file.path, self._root))
        return locations.size(file.path)

    def _relative(self, files: Iterable[File]) -> list[dict[str, Any]]:
        """The files as records, without empty fields."""
        records = [{**asdict(file), "path": locations.below(file.path, self._root)} for file in files]
        return [{name: value for name, value in record.items() if value or name in _ALWAYS} for record in records]


def results_in(root: str) -> list[Result]:
    """What the manifests of a local folder tell of converted inputs, whatever has changed since."""
    records = _records(root, os.listdir(root)).values()
    return [_result(root, record) for record in records if record["status"] == "augmented"]


def _records(root: str, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The last record of each input in the manifests among these files of a folder."""
    known: dict[str, dict[str, Any]] = {}
    for name in sorted(name for name in names if "/" not in name and is_manifest(name)):
        for line in locations.read(locations.join(root, name)).splitlines():
            try:
                record = json.loads(line)
            except ValueError:  # cut off
                continue
            if not isinstance(record, dict) or "finished_ns" not in record:
                continue
            if record["finished_ns"] >= known.get(record["input"], record)["finished_ns"]:
                known[record["input"]] = record
    return known


def _result(root: str, record: dict[str, Any]) -> Result:
    return Result(
        record["path"],
        "done_before",
        _files(root, record["outputs"]),
        sha256=record["sha256"],
        rank=record["rank"],
        world_size=record["world_size"],
        summaries=_files(root, record["summaries"]),
        drawn=record["drawn"],
        evidence_state=record.get("beside", ""),
        partial=record.get("partial", ""),
    )


def _files(root: str, records: list[dict[str, Any]]) -> tuple[File, ...]:
    return tuple(File(**{**file, "path": locations.join(root, file["path"])}) for file in records)


class _LocalJournal:
    """A file to append lines to, by one process at a time. A line is on disk when :meth:`append` returns.

    Raises:
        OutputError: another process appends to it, or it cannot be written.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        with self._errors():
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            self._file = open(path, "a+b")  # noqa: SIM115 - close() does
            try:
                import fcntl

                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                self._file.close()
                because = "another augment run writes into this folder; wait for it, or give each run a --shard"
                raise OutputError(f"{os.path.dirname(self._path)}: {because}") from error
            except (ImportError, OSError):  # a file system without locks: other writers cannot be detected
                pass
            self._file.seek(0)
            content = self._file.read()
            if content and not content.endswith(b"\n"):  # a crash cut off the last line
                self._file.write(b"\n")

    def append(self, line: bytes) -> None:
        """Append a line and flush it to the disk."""
        with self._errors():
            self._file.write(line + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Unlock the file. Without lines, none is left."""
        if not self._file.tell():
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        with self._errors():  # a full disk may show only now
            self._file.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(f"{self._path}: cannot be written: {error.strerror or error}") from error


class _RemoteJournal:
    """A remote file to append lines to. A line is there some seconds later."""

    def __init__(self, url: str) -> None:
        self._url = url
        fs, path = locations.filesystem(url)
        with locations.errors_as(lambda why: OutputError(f"{url}: cannot be read: {why}")):
            self._content = bytearray(locations.read(url) if fs.exists(path) else b"")
        if self._content and not self._content.endswith(b"\n"):
            self._content += b"\n"
        self._uploaded, self._new = time.monotonic(), False

    def append(self, line: bytes) -> None:
        """Append a line; it is uploaded some seconds after the last upload, or at the end."""
        self._content += line + b"\n"
        self._new = True
        if time.monotonic() - self._uploaded > UPLOAD_S:
            self._upload()

    def close(self) -> None:
        """Upload the new lines."""
        if self._new:
            self._upload()

    def _upload(self) -> None:
        locations.write(self._url, bytes(self._content))
        self._uploaded, self._new = time.monotonic(), False
