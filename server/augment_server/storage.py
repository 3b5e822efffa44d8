"""The state directory: who owns it, its folders, its database.

::

    lock           held by the one server that works here
    state.db       what there is: uploads, jobs, artifacts (SQLite, write-ahead log)
    parts/ID       the bytes of an upload that is not complete
    blobs/SHA256   the bytes of complete uploads, each content once
    work/ID/       of one attempt at a job: where its worker reads and writes
    artifacts/ID/  what a job made; it counts once the database says that the job has succeeded

Rows are written before files are moved, under one lock, so that a server that was killed in between finds out what
was meant and completes it when it starts (:mod:`recovery`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from augment.errors import AugmentError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS uploads (
    id TEXT PRIMARY KEY,
    client TEXT NOT NULL,     -- who sent it
    realm TEXT NOT NULL,      -- who may see it
    file_name TEXT NOT NULL,
    size INTEGER,             -- as announced, or as it is once complete
    sha256 TEXT NOT NULL,     -- the same; empty if nobody announced it
    complete INTEGER NOT NULL,
    received INTEGER NOT NULL,  -- bytes that are safely on disk
    created_ns INTEGER NOT NULL,
    touched_ns INTEGER NOT NULL
);
DROP INDEX IF EXISTS uploads_by_content;  -- of earlier versions
CREATE INDEX IF NOT EXISTS uploads_by_bytes ON uploads (sha256, realm, file_name);
CREATE INDEX IF NOT EXISTS uploads_begun ON uploads (client, touched_ns) WHERE NOT complete;
CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order in which they came
    id TEXT NOT NULL UNIQUE,
    client TEXT NOT NULL,
    realm TEXT NOT NULL,
    request_id TEXT NOT NULL,
    spec BLOB NOT NULL,       -- augment.v1.JobSpec
    file_name TEXT NOT NULL,
    content TEXT NOT NULL,    -- SHA-256 of the upload; empty if the input is a file of the server's
    state INTEGER NOT NULL,   -- augment.v1.Job.State
    attempts INTEGER NOT NULL DEFAULT 0,
    deaths INTEGER NOT NULL DEFAULT 0,  -- of workers
    error BLOB,               -- augment.v1.JobError
    progress BLOB,            -- augment.v1.Progress, once it is final
    created_ns INTEGER NOT NULL,
    queued_ns INTEGER NOT NULL,
    started_ns INTEGER,
    ended_ns INTEGER
);
CREATE UNIQUE INDEX IF NOT EXISTS jobs_by_request ON jobs (realm, request_id) WHERE request_id != '';
CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs (state, number);
CREATE INDEX IF NOT EXISTS jobs_by_realm ON jobs (realm, number);
CREATE TABLE IF NOT EXISTS controls (  -- of jobs that compare: the other input
    job TEXT PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
    file_name TEXT NOT NULL,
    content TEXT NOT NULL     -- as of jobs
);
CREATE TABLE IF NOT EXISTS artifacts (
    job TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    file_name TEXT NOT NULL,
    size INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    PRIMARY KEY (job, position)
);
"""
#: what an upload takes of its client's room: what was announced, from the start; equal bytes once
_TAKEN = """
CASE WHEN NOT {0}.complete THEN MAX({0}.received, COALESCE({0}.size, 0))
     WHEN EXISTS (SELECT 1 FROM uploads AS other WHERE other.sha256 = {0}.sha256 AND other.client = {0}.client
                  AND other.complete AND other.id != {0}.id) THEN 0
     ELSE {0}.size END"""
_MORE = "INSERT INTO usage VALUES ({0}, {1}) ON CONFLICT (client) DO UPDATE SET bytes = bytes + excluded.bytes;"
_OLD, _NEW = _TAKEN.format("OLD"), _TAKEN.format("NEW")
_JOBS_CLIENT = "(SELECT client FROM jobs WHERE id = NEW.job)"
#: how much each client stores, kept up to date by the database itself, and added up anew at each start
_USAGE = f"""
CREATE TABLE IF NOT EXISTS usage (client TEXT PRIMARY KEY, bytes INTEGER NOT NULL);
CREATE TRIGGER IF NOT EXISTS upload_more AFTER INSERT ON uploads BEGIN
    {_MORE.format("NEW.client", _NEW)} END;
CREATE TRIGGER IF NOT EXISTS upload_other AFTER UPDATE OF complete, received, size, sha256 ON uploads BEGIN
    {_MORE.format("NEW.client", f"({_NEW}) - ({_OLD})")} END;
CREATE TRIGGER IF NOT EXISTS upload_less AFTER DELETE ON uploads BEGIN
    {_MORE.format("OLD.client", f"-({_OLD})")} END;
CREATE TRIGGER IF NOT EXISTS artifact_more AFTER INSERT ON artifacts BEGIN
    {_MORE.format(_JOBS_CLIENT, "NEW.size")} END;
CREATE TRIGGER IF NOT EXISTS job_less BEFORE DELETE ON jobs BEGIN
    {_MORE.format("OLD.client", "-(SELECT COALESCE(SUM(size), 0) FROM artifacts WHERE job = OLD.id)")} END;
BEGIN;
DELETE FROM usage;
INSERT INTO usage SELECT client, SUM(bytes) FROM (
    SELECT client, size AS bytes FROM artifacts JOIN jobs ON jobs.id = artifacts.job
    UNION ALL SELECT client, size FROM (SELECT DISTINCT client, sha256, size FROM uploads WHERE complete)
    UNION ALL SELECT client, MAX(received, COALESCE(size, 0)) FROM uploads WHERE NOT complete
) GROUP BY client;
COMMIT;
"""  # noqa: S608 - of our own texts alone
_FOLDERS = ("parts", "blobs", "work", "artifacts")


class Storage:
    """The state directory, opened: ours until :meth:`close`.

    Raises:
        AugmentError: another server works there, or it cannot be written to.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()  # links lead there, from other folders
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock_file = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise AugmentError(f"--state-dir {root}: {(error.strerror or str(error)).lower()}") from error
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock_file)
            raise AugmentError(f"--state-dir {root}: another server works there; choose another folder") from error
        self.lock = threading.RLock()  #: held while rows and files change together
        self._local = threading.local()  # each thread reads by a connection of its own, and waits for no other
        self._readers: list[sqlite3.Connection] = []
        try:
            for folder in _FOLDERS:
                (root / folder).mkdir(exist_ok=True, mode=0o700)
            self._writer = self._connect()
            self._writer.executescript(_SCHEMA + _USAGE)
        except (OSError, sqlite3.Error) as error:
            os.close(self._lock_file)
            raise AugmentError(f"--state-dir {root}: cannot be used: {error}") from error

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.root / "state.db", check_same_thread=False, isolation_level=None)
        connection.row_factory = sqlite3.Row
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=10000"):
            connection.execute(f"PRAGMA {pragma}")
        return connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction, on disk when the block is left, undone if it raises. One at a time."""
        with self.lock:
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
            except BaseException:
                self._writer.execute("ROLLBACK")
                raise
            self._writer.execute("COMMIT")

    def rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        """What a query finds of all that has been committed; waits for no writer."""
        reader: sqlite3.Connection | None = getattr(self._local, "reader", None)
        if reader is None:
            reader = self._local.reader = self._connect()
            self._readers.append(reader)
        return reader.execute(query, values).fetchall()

    def row(self, query: str, *values: Any) -> sqlite3.Row | None:
        """The first row that a query finds."""
        found = self.rows(query, *values)
        return found[0] if found else None

    def part(self, upload: str) -> Path:
        """Where the bytes of an upload grow."""
        return self.root / "parts" / upload

    def blob(self, sha256: str) -> Path:
        """Where a content is kept."""
        return self.root / "blobs" / sha256

    def work(self, attempt: str) -> Path:
        """The folder of one attempt."""
        return self.root / "work" / attempt

    def artifacts(self, job: str) -> Path:
        """What a job has made."""
        return self.root / "artifacts" / job

    def close(self) -> None:
        """Let go of the directory."""
        with self.lock:
            for connection in (self._writer, *self._readers):
                connection.close()
            os.close(self._lock_file)


def sync_folder(path: Path) -> None:
    """Make sure that a rename in this folder outlives a loss of power."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def now_ns() -> int:
    """The time of day."""
    return time.time_ns()
