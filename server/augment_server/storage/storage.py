"""The state directory: its lock, its folders, its database.

::

    lock           held by the server that uses the directory
    lease          which server that is, renewed by it each second (:mod:`lease`)
    state.db       the records of uploads, jobs, artifacts (SQLite, write-ahead log)
    work/ID/       the folder of a worker: the outputs of its attempts at jobs
    work/ID.given/ links to their inputs, which the worker can only read
    reserve        room for the removal of data when the disk is full
    …              the bytes (:mod:`folder`)

Rows are written before files are moved, under one lock. A server that was killed in between finds the intended move
in the database and completes it at its next start (:mod:`retention`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from augment.errors import AugmentError
from augment_server.base.errors import Refusal, disk_is_full
from augment_server.storage.folder import Folder, remove
from augment_server.storage.lease import Lease, boot, expect_local

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
CREATE INDEX IF NOT EXISTS uploads_by_time ON uploads (realm, created_ns, id);
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
DROP INDEX IF EXISTS jobs_by_realm;  -- of earlier versions
CREATE INDEX IF NOT EXISTS jobs_by_time ON jobs (realm, created_ns, id);
CREATE TABLE IF NOT EXISTS controls (  -- of jobs that compare: the other input
    job TEXT PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
    file_name TEXT NOT NULL,
    content TEXT NOT NULL     -- as of jobs
);
CREATE TABLE IF NOT EXISTS attachments (  -- what was recorded beside the traces of a job
    job TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    file_name TEXT NOT NULL,
    content TEXT NOT NULL,    -- as of jobs
    PRIMARY KEY (job, position)
);
CREATE TABLE IF NOT EXISTS parts (  -- the inputs of jobs of several traces, or of earlier jobs
    job TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    position INTEGER NOT NULL,  -- in a whole job the last is none: it stands for what follows when all others are done
    origin INTEGER NOT NULL,  -- which of the spec's inputs it is, or belongs to
    file_name TEXT NOT NULL,
    content TEXT NOT NULL,    -- as of jobs
    uri TEXT NOT NULL,
    source TEXT NOT NULL,     -- the earlier job that has made the files in made; empty if this one does
    made TEXT NOT NULL,       -- what was made of it: [[file name, size, SHA-256], …]
    state INTEGER NOT NULL,   -- of its conversion, augment.v1.Job.State
    attempts INTEGER NOT NULL DEFAULT 0,
    deaths INTEGER NOT NULL DEFAULT 0,
    error BLOB,
    bytes INTEGER NOT NULL DEFAULT 0,  -- that it takes now, in ranks/; of the last one what the rows take here
    PRIMARY KEY (job, position)
);
CREATE INDEX IF NOT EXISTS parts_by_source ON parts (source) WHERE source != '';
CREATE TABLE IF NOT EXISTS wholes (  -- jobs whose parts are converted one by one
    job TEXT PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
    ready INTEGER NOT NULL,   -- parts that can begin now
    running INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS leftovers (job TEXT PRIMARY KEY);  -- removed jobs whose artifacts another one still needs
CREATE TABLE IF NOT EXISTS artifacts (
    job TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    file_name TEXT NOT NULL,
    size INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    PRIMARY KEY (job, position)
);
CREATE TABLE IF NOT EXISTS lease (  -- of the server that uses the directory; boot: of the machine since its start
    id INTEGER PRIMARY KEY, holder TEXT NOT NULL, boot TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS clock (id INTEGER PRIMARY KEY, ns INTEGER NOT NULL);  -- by which ages are counted
"""
#: the bytes of an upload that count for its client: those that have arrived; equal contents count once
_TAKEN = """
CASE WHEN NOT {0}.complete THEN {0}.received
     WHEN EXISTS (SELECT 1 FROM uploads AS other WHERE other.sha256 = {0}.sha256 AND other.client = {0}.client
                  AND other.complete AND other.id != {0}.id) THEN 0
     ELSE {0}.size END"""
_MORE = "INSERT INTO usage VALUES ({0}, {1}) ON CONFLICT (client) DO UPDATE SET bytes = bytes + excluded.bytes;"
_OLD, _NEW = _TAKEN.format("OLD"), _TAKEN.format("NEW")
_JOBS_CLIENT = "(SELECT client FROM jobs WHERE id = NEW.job)"
#: the bytes of a job's own row, and of the row of one of its inputs, that count; the latter with its files
_JOB = (
    "LENGTH({0}spec) + LENGTH(CAST({0}labels AS BLOB)) + COALESCE(LENGTH({0}error), 0)"
    " + COALESCE(LENGTH({0}progress), 0)"
)
_PART = "{0}bytes + COALESCE(LENGTH({0}error), 0)"
_OF_JOB = (
    "(SELECT COALESCE(SUM(size), 0) FROM artifacts WHERE job = OLD.id)"
    " + (SELECT COALESCE(SUM(bytes + COALESCE(LENGTH(error), 0)), 0) FROM parts WHERE job = OLD.id)"
)
#: the stored bytes of each client: triggers keep them up to date, and each start makes both anew
_USAGE = f"""
CREATE TABLE IF NOT EXISTS usage (client TEXT PRIMARY KEY, bytes INTEGER NOT NULL);
DROP TRIGGER IF EXISTS upload_more;
CREATE TRIGGER upload_more AFTER INSERT ON uploads BEGIN
    {_MORE.format("NEW.client", _NEW)} END;
DROP TRIGGER IF EXISTS upload_other;
CREATE TRIGGER upload_other AFTER UPDATE OF complete, received, size, sha256 ON uploads BEGIN
    {_MORE.format("NEW.client", f"({_NEW}) - ({_OLD})")} END;
DROP TRIGGER IF EXISTS upload_less;
CREATE TRIGGER upload_less AFTER DELETE ON uploads BEGIN
    {_MORE.format("OLD.client", f"-({_OLD})")} END;
DROP TRIGGER IF EXISTS artifact_more;
CREATE TRIGGER artifact_more AFTER INSERT ON artifacts BEGIN
    {_MORE.format(_JOBS_CLIENT, "NEW.size")} END;
DROP TRIGGER IF EXISTS part_other;
CREATE TRIGGER part_other AFTER UPDATE OF bytes, error ON parts BEGIN
    {_MORE.format(_JOBS_CLIENT, f"({_PART.format('NEW.')}) - ({_PART.format('OLD.')})")} END;
DROP TRIGGER IF EXISTS part_more;
CREATE TRIGGER part_more AFTER INSERT ON parts BEGIN
    {_MORE.format(_JOBS_CLIENT, "NEW.bytes")} END;
DROP TRIGGER IF EXISTS job_more;
CREATE TRIGGER job_more AFTER INSERT ON jobs BEGIN
    {_MORE.format("NEW.client", _JOB.format("NEW."))} END;
DROP TRIGGER IF EXISTS job_other;
CREATE TRIGGER job_other AFTER UPDATE OF labels, error, progress ON jobs BEGIN
    {_MORE.format("NEW.client", f"({_JOB.format('NEW.')}) - ({_JOB.format('OLD.')})")} END;
DROP TRIGGER IF EXISTS job_parts_less;
DROP TRIGGER IF EXISTS job_less;
CREATE TRIGGER job_less BEFORE DELETE ON jobs BEGIN
    {_MORE.format("OLD.client", f"-({_JOB.format('OLD.')} + {_OF_JOB})")} END;
BEGIN;
DELETE FROM usage;
INSERT INTO usage SELECT client, SUM(bytes) FROM (
    SELECT client, size AS bytes FROM artifacts JOIN jobs ON jobs.id = artifacts.job
    UNION ALL SELECT client, size FROM (SELECT DISTINCT client, sha256, size FROM uploads WHERE complete)
    UNION ALL SELECT client, received FROM uploads WHERE NOT complete
    UNION ALL SELECT client, {_PART.format("parts.")} FROM parts JOIN jobs ON jobs.id = parts.job
    UNION ALL SELECT client, {_JOB.format("")} FROM jobs
) GROUP BY client;
COMMIT;
"""  # noqa: S608 - of our own texts alone
T = TypeVar("T")
_FOLDERS = ("parts", "blobs", "work", "ranks", "artifacts")


_RESERVE_BYTES = 1 << 20  #: for a full disk: two deletions write much less
_STEPS = 1000  #: of a query, after which its time is looked at
_FORM = 1  #: version of the tables, in the database's user_version; 0: not recorded


class Storage:
    """The opened state directory, locked until :meth:`close`.

    Args:
        root: the directory.
        repair: if the database is missing or unusable, move it aside with all files, and start empty.
        network: whether the directory may lie on a network's file system.

    Raises:
        AugmentError: another server uses the directory, it is not writable or not on one disk, or its database is
            unusable.
    """

    def __init__(self, root: Path, *, repair: bool = False, network: bool = False) -> None:
        self.root = root.absolute()  # symbolic links in other folders contain it
        self.lock = threading.RLock()  #: held while rows and files change together
        self.local = self.store = Folder(self.root, self.lock)  #: here; of uploads and outputs
        self._local = threading.local()  # each thread has a connection for reading, so that readers never wait
        self._readers: list[sqlite3.Connection] = []
        self._followers: list[Callable[[sqlite3.Connection], object]] = []
        with contextlib.ExitStack() as undo:
            try:
                root.mkdir(parents=True, exist_ok=True, mode=0o700)
                if not network:
                    expect_local(root)
                self._lock_file = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise AugmentError(f"--state-dir {root}: {(error.strerror or str(error)).lower()}") from error
            undo.callback(os.close, self._lock_file)
            try:
                fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise AugmentError(f"--state-dir {root}: another server uses it; choose another folder") from error
            except OSError as error:
                what = (error.strerror or str(error)).lower()
                raise AugmentError(f"--state-dir {root}: its file system has no locks ({what})") from error
            try:
                self.lease = Lease(root, used=(root / "state.db").exists())
                undo.callback(self.lease.release)
                if repair and self._fault():
                    self._put_aside()
                for folder in _FOLDERS:
                    (root / folder).mkdir(exist_ok=True, mode=0o700)
                self._expect_one_disk()
                if fault := self._fault():
                    advice = "restore state.db from a backup, or start once with --repair, which moves all files aside"
                    raise AugmentError(f"--state-dir {root}: cannot be used: {fault}; {advice}")
                self._writer = self._connect()
                undo.callback(self._writer.close)
                self._writer.executescript(f"{_SCHEMA}PRAGMA user_version = {_FORM}")
                complete(self._writer)
                self._writer.executescript(_USAGE)
                self.secret = secret(self._writer)  #: the key of page tokens
                row = self._writer.execute("SELECT boot FROM lease").fetchone()
                #: whether the machine has run since the last server: what that wrote is there, synced or not
                self.is_same_boot = bool(row and row["boot"]) and row["boot"] == boot()
                self._writer.execute("INSERT OR REPLACE INTO lease VALUES (0, ?, ?)", (self.lease.holder.id, boot()))
            except (OSError, sqlite3.Error) as error:
                raise AugmentError(f"--state-dir {root}: cannot be used: {error}") from error
            self._reserve()
            undo.pop_all()

    def _expect_one_disk(self) -> None:
        """Move a file through all folders, as uploads and outputs are later.

        Raises:
            AugmentError: a folder lies on another disk.
        """
        first, *others = (self.root / folder / f"probe-{self.lease.holder.id}" for folder in _FOLDERS)
        first.touch()
        for other in others:
            try:
                os.rename(first, other)
            except OSError as error:
                first.unlink()
                if error.errno != errno.EXDEV:
                    raise
                what = f"{other.parent.name} and {first.parent.name} lie on different disks"
                raise AugmentError(
                    f"--state-dir {self.root}: {what}; files are moved between its folders: choose a folder that lies"
                    " on one disk as a whole"
                ) from error
            first = other
        first.unlink()

    def _fault(self) -> str:
        """What is wrong with the database; empty if it is usable or new."""
        path = self.root / "state.db"
        if not path.exists() or not path.stat().st_size:
            folders = (self.root / name for name in ("artifacts", "blobs"))
            files = any(next(folder.iterdir(), None) for folder in folders if folder.is_dir())
            return "state.db is missing or empty, but the files that it lists exist" if files else ""
        try:
            with contextlib.closing(sqlite3.connect(path)) as database:
                (form,) = database.execute("PRAGMA user_version").fetchone()
                (answer,) = database.execute("PRAGMA quick_check(1)").fetchone()
                tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        except sqlite3.DatabaseError as error:
            return str(error)
        if answer != "ok":
            return f"state.db is damaged: {answer}".replace("\n", " ")
        if form > _FORM or (tables and not tables >= {"uploads", "jobs", "artifacts"}):
            return "state.db belongs to a later version or another program"
        return ""

    def _put_aside(self) -> None:
        aside = self.root / f"aside-{time.time_ns()}"
        aside.mkdir(mode=0o700)
        for name in (*_FOLDERS, "state.db", "state.db-wal", "state.db-shm"):
            if (self.root / name).exists():
                os.rename(self.root / name, aside / name)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.root / "state.db", check_same_thread=False, isolation_level=None)
        connection.row_factory = sqlite3.Row
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=10000"):
            connection.execute(f"PRAGMA {pragma}")
        return connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction, on disk when the block is left, undone if it raises. One at a time.

        Raises:
            Refusal: another server has taken over the directory.
        """
        with self.lock:
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                self._expect_lease()
                yield self._writer
            except BaseException:
                self._writer.execute("ROLLBACK")
                raise
            try:
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise
            for follower in self._followers:
                follower(self._writer)

    def freeing(self, change: Callable[[], T]) -> T:
        """The result of a change that removes data; on a full disk it gets the room that is kept for that."""
        try:
            return change()
        except (OSError, sqlite3.Error) as error:
            if not disk_is_full(error):
                raise
        with self.lock:
            remove(self.root / "reserve")
            try:
                return change()
            finally:
                self._reserve()

    def _reserve(self) -> None:
        """Take the room that :meth:`freeing` needs, if there is as much."""
        with contextlib.suppress(OSError), open(self.root / "reserve", "ab") as file:
            file.write(bytes(max(0, _RESERVE_BYTES - file.tell())))

    def follow(self, script: str, follower: Callable[[sqlite3.Connection], object]) -> None:
        """Run a script, of temporary tables and triggers, on the connection that writes, and call ``follower``.

        It is called with this connection, now and after each transaction, before the next one begins.
        """
        with self.lock:
            self._writer.executescript(script)
            follower(self._writer)
            self._followers.append(follower)

    def _expect_lease(self) -> None:
        if not self.lease.lost:
            (holder,) = self._writer.execute("SELECT holder FROM lease").fetchone()
            if holder == self.lease.holder.id:
                return
            self.lease.lose()
        raise Refusal("DRAINING", "another server has taken over the state of this one; try again", retry_s=5)

    @property
    def reader(self) -> sqlite3.Connection:
        """This thread's connection, for reading."""
        reader: sqlite3.Connection | None = getattr(self._local, "reader", None)
        if reader is None:
            reader = self._local.reader = self._connect()
            self._readers.append(reader)
        return reader

    def rows(self, query: str, *values: Any, cpu_s: float | None = None) -> list[sqlite3.Row]:
        """The rows of a query on committed data; does not wait for writers.

        Raises:
            TimeoutError: it took more than ``cpu_s`` of this thread's time.
        """
        if cpu_s is None:
            return self.reader.execute(query, values).fetchall()
        end = time.thread_time() + cpu_s
        self.reader.set_progress_handler(lambda: time.thread_time() >= end, _STEPS)
        try:
            return self.reader.execute(query, values).fetchall()
        except sqlite3.OperationalError as error:
            if str(error) != "interrupted":
                raise
            raise TimeoutError from error
        finally:
            self.reader.set_progress_handler(None, 0)

    def row(self, query: str, *values: Any) -> sqlite3.Row | None:
        """The first row of a query; None without one."""
        rows = self.rows(query, *values)
        return rows[0] if rows else None

    def free_bytes(self) -> int:
        """The free bytes of the disk."""
        disk = os.statvfs(self.root)
        return disk.f_bavail * disk.f_frsize

    def work(self, attempt: str) -> Path:
        """The folder of one attempt."""
        return self.root / "work" / attempt

    def close(self) -> None:
        """Close the database, and release the directory."""
        with self.lock:
            for connection in (self._writer, *self._readers):
                connection.close()
            self.lease.release()
            os.close(self._lock_file)


def now_ns() -> int:
    """The time of day, ns since 1970."""
    return time.time_ns()


#: columns and tables that later versions added to the state directory's database; earlier versions ignore them
_ADDED = {
    "uploads": {"pieces": "TEXT NOT NULL DEFAULT ''"},  # where the bytes of an unfinished one lie, as its store says
    "jobs": {
        "display_name": "TEXT NOT NULL DEFAULT ''",
        "labels": "TEXT NOT NULL DEFAULT '{}'",  # JSON
        "priority": "INTEGER NOT NULL DEFAULT 0",
        "deadline_ms": "INTEGER",
        "due_ns": "INTEGER NOT NULL DEFAULT 0",  # created_ns, earlier for each level of priority
        "changed_ns": "INTEGER",  # when one of the columns above was changed by its owner
        "folder": "TEXT NOT NULL DEFAULT ''",  # the key of that with its artifacts; empty: an earlier version's
    },
}
_TABLES = """
CREATE INDEX IF NOT EXISTS jobs_waiting ON jobs (client, due_ns, number) WHERE state = 1;  -- STATE_QUEUED
CREATE TABLE IF NOT EXISTS requests (  -- that have been answered
    realm TEXT NOT NULL,
    method TEXT NOT NULL,
    request_id TEXT NOT NULL,
    text BLOB NOT NULL,
    resource TEXT NOT NULL,
    at_ns INTEGER NOT NULL,
    PRIMARY KEY (realm, method, request_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL);
INSERT OR IGNORE INTO secrets VALUES ('pages', randomblob(32));
"""


def complete(database: sqlite3.Connection) -> None:
    """Add the missing columns and tables."""
    for table, columns in _ADDED.items():
        there = {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
        for name, kind in columns.items():
            if name not in there:
                database.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")
    database.executescript(_TABLES)


def secret(database: sqlite3.Connection) -> bytes:
    """The key of this state directory's page tokens."""
    (value,) = database.execute("SELECT value FROM secrets WHERE name = 'pages'").fetchone()
    return bytes(value)
