"""The catalog: the rows of uploads, jobs and artifacts, the queue, and which servers share them.

Embedded it is SQLite in the state directory, for one server. :mod:`augment_server.storage.postgres` keeps the same
tables in PostgreSQL for several. All SQL is written once, in what both understand, with ``?`` for values; PostgreSQL
gets functions of SQLite's names for what it lacks, and its own names of types.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from augment_server.base.errors import Refusal
from augment_server.base.names import new_id
from augment_server.storage.lease import Lease, boot

TABLES = """
CREATE TABLE IF NOT EXISTS uploads (
    id TEXT PRIMARY KEY,
    client TEXT NOT NULL,     -- who sent it
    realm TEXT NOT NULL,      -- who may see it
    file_name TEXT NOT NULL,
    size INTEGER,             -- as announced, or as it is once complete
    sha256 TEXT NOT NULL,     -- the same; empty if nobody announced it
    complete BOOLEAN NOT NULL,
    received INTEGER NOT NULL,  -- bytes that are safely on disk
    created_ns INTEGER NOT NULL,
    touched_ns INTEGER NOT NULL
);
DROP INDEX IF EXISTS uploads_by_content;  -- of earlier versions
CREATE INDEX IF NOT EXISTS uploads_by_bytes ON uploads (sha256, realm, file_name);
CREATE INDEX IF NOT EXISTS uploads_by_time ON uploads (realm, created_ns, id);
CREATE INDEX IF NOT EXISTS uploads_begun ON uploads (client, touched_ns) WHERE NOT complete;
CREATE TABLE IF NOT EXISTS senders (  -- of unfinished uploads: the server that got their last bytes, if several can
    upload TEXT PRIMARY KEY REFERENCES uploads (id) ON DELETE CASCADE,
    server TEXT NOT NULL
);
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
    progress BLOB,            -- augment.v1.Progress; once it is final, or as other servers shall see it
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
CREATE TABLE IF NOT EXISTS job_labels (  -- the labels of jobs, to be found by; triggers keep them
    job TEXT NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    realm TEXT NOT NULL,
    created_ns INTEGER NOT NULL,
    PRIMARY KEY (job, key)
);
CREATE INDEX IF NOT EXISTS job_labels_by_value ON job_labels (realm, key, value, created_ns, job);
CREATE TABLE IF NOT EXISTS lease (  -- of the server that uses the directory; boot: of the machine since its start
    id INTEGER PRIMARY KEY, holder TEXT NOT NULL, boot TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS servers (id TEXT PRIMARY KEY, renewed_ns INTEGER NOT NULL);  -- that run; by one clock
CREATE TABLE IF NOT EXISTS served (client TEXT PRIMARY KEY, turn INTEGER NOT NULL);  -- the last turn of each client
CREATE TABLE IF NOT EXISTS clock (id INTEGER PRIMARY KEY, ns INTEGER NOT NULL);  -- by which ages are counted
CREATE TABLE IF NOT EXISTS requests (  -- that have been answered
    realm TEXT NOT NULL,
    method TEXT NOT NULL,
    request_id TEXT NOT NULL,
    text BLOB NOT NULL,
    resource TEXT NOT NULL,
    at_ns INTEGER NOT NULL,
    PRIMARY KEY (realm, method, request_id)
);
CREATE TABLE IF NOT EXISTS versions (id INTEGER PRIMARY KEY, last INTEGER NOT NULL);  -- of jobs, in SQLite
CREATE TABLE IF NOT EXISTS secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS usage (client TEXT PRIMARY KEY, bytes INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS spent (  -- by the jobs of a client in an hour since 1970: how many ended, what they took
    client TEXT NOT NULL, hour INTEGER NOT NULL, jobs INTEGER NOT NULL, cpu_ms INTEGER NOT NULL,
    PRIMARY KEY (client, hour));
"""
_ATTEMPT = {
    "server": "TEXT NOT NULL DEFAULT ''",  # that works on it
    "attempt": "TEXT NOT NULL DEFAULT ''",  # the last one; no other can end it
}
#: columns that later versions added; earlier versions ignore them
ADDED = {
    "uploads": {"pieces": "TEXT NOT NULL DEFAULT ''"},  # where the bytes of an unfinished one lie, as its store says
    "jobs": {
        "display_name": "TEXT NOT NULL DEFAULT ''",
        "labels": "TEXT NOT NULL DEFAULT '{}'",  # JSON
        "priority": "INTEGER NOT NULL DEFAULT 0",
        "deadline_ms": "INTEGER",
        "due_ns": "INTEGER NOT NULL DEFAULT 0",  # created_ns, earlier for each level of priority
        "changed_ns": "INTEGER",  # when one of the columns above was changed by its owner
        "creator": "TEXT NOT NULL DEFAULT ''",  # who created it, if it is of a project
        "version": "INTEGER NOT NULL DEFAULT 0",  # grows with each change, of all jobs
        "folder": "TEXT NOT NULL DEFAULT ''",  # the key of that with its artifacts; empty: an earlier version's
        **_ATTEMPT,
    },
    "parts": _ATTEMPT,
}
#: what needs the added columns
LATER = (
    "CREATE INDEX IF NOT EXISTS jobs_waiting ON jobs (client, due_ns, number) WHERE state = 1",  # STATE_QUEUED
    "CREATE INDEX IF NOT EXISTS jobs_by_version ON jobs (realm, version, number)",
)
CHANGING = "state, progress, changed_ns"  #: columns of a job that its watchers are told of
BACKUP = "state.db.before-upgrade"  #: the copy of a database in SQLite of an earlier version
_NAME = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+)")
FORM = 2  #: version of the tables; 0: not recorded. A server refuses a later one than its own

#: the bytes of an upload that count for its client: those that have arrived; equal contents count once
_TAKEN = """
CASE WHEN NOT {0}.complete THEN {0}.received
     WHEN EXISTS (SELECT 1 FROM uploads AS other WHERE other.sha256 = {0}.sha256 AND other.client = {0}.client
                  AND other.complete AND other.id != {0}.id) THEN 0
     ELSE {0}.size END"""
_MORE = "INSERT INTO usage VALUES ({0}, {1}) ON CONFLICT (client) DO UPDATE SET bytes = usage.bytes + excluded.bytes;"
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
_LABELS = "INSERT INTO job_labels SELECT {0}.id, key, value, {0}.realm, {0}.created_ns FROM {1}json_each({0}.labels)"
_LABELLED, _UNLABELLED = _LABELS.format("NEW", ""), "DELETE FROM job_labels WHERE job = {0}.id;"
#: what keeps the stored bytes of each client, and the labels, up to date: name, event, table and statements of a
#: trigger of each row
TRIGGERS = (
    ("upload_more", "INSERT", "uploads", _MORE.format("NEW.client", _NEW)),
    (
        "upload_other",
        "UPDATE OF complete, received, size, sha256",
        "uploads",
        _MORE.format("NEW.client", f"({_NEW}) - ({_OLD})"),
    ),
    ("upload_less", "DELETE", "uploads", _MORE.format("OLD.client", f"-({_OLD})")),
    ("artifact_more", "INSERT", "artifacts", _MORE.format(_JOBS_CLIENT, "NEW.size")),
    (
        "part_other",
        "UPDATE OF bytes, error",
        "parts",
        _MORE.format(_JOBS_CLIENT, f"({_PART.format('NEW.')}) - ({_PART.format('OLD.')})"),
    ),
    ("part_more", "INSERT", "parts", _MORE.format(_JOBS_CLIENT, "NEW.bytes")),
    ("job_more", "INSERT", "jobs", _MORE.format("NEW.client", _JOB.format("NEW."))),
    (
        "job_other",
        "UPDATE OF labels, error, progress",
        "jobs",
        _MORE.format("NEW.client", f"({_JOB.format('NEW.')}) - ({_JOB.format('OLD.')})"),
    ),
    ("job_less", "DELETE", "jobs", _MORE.format("OLD.client", f"-({_JOB.format('OLD.')} + {_OF_JOB})")),
    ("labels_more", "INSERT", "jobs", f"{_LABELLED};"),
    ("labels_other", "UPDATE OF labels", "jobs", f"{_UNLABELLED.format('OLD')} {_LABELLED};"),
    ("labels_less", "DELETE", "jobs", _UNLABELLED.format("OLD")),
)
#: makes the stored bytes of each client anew
COUNT = f"""
INSERT INTO usage SELECT client, SUM(bytes) FROM (
    SELECT client, size AS bytes FROM artifacts JOIN jobs ON jobs.id = artifacts.job
    UNION ALL SELECT client, size FROM (SELECT DISTINCT client, sha256, size FROM uploads WHERE complete) AS whole
    UNION ALL SELECT client, received FROM uploads WHERE NOT complete
    UNION ALL SELECT client, {_PART.format("parts.")} FROM parts JOIN jobs ON jobs.id = parts.job
    UNION ALL SELECT client, {_JOB.format("")} FROM jobs
) AS kept GROUP BY client"""  # noqa: S608 - of our own texts alone
_STEPS = 1000  #: of a query, after which its time is looked at


class Row(Protocol):
    """A row: its values by name or by place."""

    def __getitem__(self, key: str | int, /) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...


class Answer(Protocol):
    """What a statement returned."""

    @property
    def rowcount(self) -> int:
        """How many rows it changed."""
        ...

    def fetchone(self) -> Any:
        """The next row; None without one."""
        ...

    def fetchall(self) -> list[Any]:
        """All rows."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


class Database(Protocol):
    """A connection that takes statements."""

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Answer:
        """Do one statement."""
        ...

    def executemany(self, query: str, values: Iterable[Sequence[Any]], /) -> Any:
        """Do one statement for each of ``values``."""
        ...


def add_columns(database: Database, columns: Callable[[str], set[str]]) -> None:
    """Add the columns that earlier versions did not have. ``columns`` returns the names of those of a table."""
    for table, added in ADDED.items():
        there = columns(table)
        for name, kind in added.items():
            if name not in there:
                database.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")
    for statement in LATER:
        database.execute(statement)


def back_up(path: Path, backup: Path) -> None:
    """Copy a database; the copy appears when it is whole and on the disk, in place of an earlier one.

    Raises:
        OSError: there is no room, as :class:`sqlite3.Error` also says.
    """
    half = backup.with_name(f"{backup.name}.half")
    half.unlink(missing_ok=True)
    try:
        with contextlib.closing(sqlite3.connect(path)) as origin, contextlib.closing(sqlite3.connect(half)) as copy:
            origin.backup(copy)
        _sync(half)
        os.replace(half, backup)
        _sync(half.parent)
    finally:
        half.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def count_bytes(database: Database) -> None:
    """Count the stored bytes, and list the labels, anew."""
    for statement in ("DELETE FROM usage", COUNT, "DELETE FROM job_labels", _LABELS.format("jobs", "jobs, ")):
        database.execute(statement)


def key_of_pages(database: Database) -> bytes:
    """The key of page tokens, made at the first start."""
    key = "INSERT INTO secrets VALUES ('pages', ?) ON CONFLICT (name) DO NOTHING"
    database.execute(key, (secrets.token_bytes(32),))
    (value,) = database.execute("SELECT value FROM secrets WHERE name = 'pages'").fetchone()
    return bytes(value)


class Embedded:
    """The catalog in SQLite, for one server.

    Args:
        path: of the database, whose state has been looked at.
        lease: this server's on the directory.
    """

    id = ""  #: that a directory of files names; empty: the directory is known by the database in it
    is_shared = False  #: whether other servers can use it at the same time
    #: for a query of a row to take: pass over those that another server is taking; if there is no other, wait for it
    skip_locked: Sequence[str] = ("",)

    def __init__(self, path: Path, lease: Lease) -> None:
        self._path, self._lease = path, lease
        self.server = new_id()  #: this one's id
        self.lock = threading.RLock()  #: held while rows and files change together
        self._local = threading.local()  # each thread has a connection for reading, so that readers never wait
        self._readers: list[sqlite3.Connection] = []
        self.changes = 0  #: counts transactions
        self._writer = self._connect()
        try:
            #: the copy of the database of an earlier version, which this start has brought up to date
            self.backup = path.with_name(BACKUP) if self._is_behind() else None
            if self.backup:
                back_up(path, self.backup)
            self._writer.executescript(f"BEGIN IMMEDIATE; {TABLES}PRAGMA user_version = {FORM}")  # all, or nothing
            add_columns(self._writer, self._columns)
            next_version = (
                "UPDATE versions SET last = last + 1;"
                "UPDATE jobs SET version = (SELECT last FROM versions) WHERE id = NEW.id;"
            )
            triggers = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY name"
            before = self._writer.execute(triggers).fetchall()
            versions = (("job_first", "INSERT"), ("job_next", f"UPDATE OF {CHANGING}"))
            for name, event, table, change in (
                *TRIGGERS,
                *((name, event, "jobs", next_version) for name, event in versions),
            ):
                moment = "BEFORE" if event == "DELETE" else "AFTER"
                self._writer.execute(f"DROP TRIGGER IF EXISTS {name}")
                self._writer.execute(f"CREATE TRIGGER {name} {moment} {event} ON {table} BEGIN {change} END")
            self._writer.execute("INSERT INTO versions VALUES (0, 0) ON CONFLICT (id) DO NOTHING")
            self._writer.execute("DROP TRIGGER IF EXISTS job_parts_less")  # of an earlier version
            if self._writer.execute(triggers).fetchall() != before:  # another version has counted, or none
                count_bytes(self._writer)
            self.secret = key_of_pages(self._writer)  #: the key of page tokens
            self._writer.execute("DELETE FROM servers")
            self._writer.execute("INSERT INTO servers VALUES (?, 0)", (self.server,))
            row = self._writer.execute("SELECT boot FROM lease").fetchone()
            #: whether the machine has run since the last server
            self.is_same_boot = bool(row and row["boot"]) and row["boot"] == boot()
            self._writer.execute("INSERT OR REPLACE INTO lease VALUES (0, ?, ?)", (lease.holder.id, boot()))
            self._writer.execute("COMMIT")
        except BaseException:
            self._writer.close()
            raise

    def _expect_alone(self) -> None:
        if not self._lease.lost:
            (holder,) = self._writer.execute("SELECT holder FROM lease").fetchone()
            if holder == self._lease.holder.id:
                return
            self._lease.lose()
        raise Refusal("DRAINING", "another server has taken over the state of this one; try again", retry_s=5)

    def _is_behind(self) -> bool:
        """Whether the database is there, and lacks what this version has."""
        there = {row[0] for row in self._writer.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        (form,) = self._writer.execute("PRAGMA user_version").fetchone()
        lacks_table = not there >= set(_NAME.findall(TABLES))
        lacks_column = any(not self._columns(table) >= set(added) for table, added in ADDED.items())
        return "jobs" in there and (form < FORM or lacks_table or lacks_column)

    def _columns(self, table: str) -> set[str]:
        return {row[1] for row in self._writer.execute(f"PRAGMA table_info({table})")}

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None)
        connection.row_factory = sqlite3.Row
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=10000"):
            connection.execute(f"PRAGMA {pragma}")
        return connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[Database]:
        """A transaction, on disk when the block is left, undone if it raises. One at a time.

        Raises:
            Refusal: another server has taken over the directory.
        """
        with self.lock:
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                self._expect_alone()
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
            self.changes += 1

    def changing(self, job: str = "") -> contextlib.AbstractContextManager[Database]:  # noqa: ARG002
        """A transaction about one job or upload alone: where several servers write, those about others go on."""
        return self.writing()

    def taking(self) -> contextlib.AbstractContextManager[Database]:
        """A transaction that takes a job to work on; after a crash it may be undone."""
        return self.writing()

    def reading(self) -> contextlib.AbstractContextManager[Database]:
        """A connection for reading committed data; does not wait for writers."""
        return contextlib.nullcontext(self._reader)

    @property
    def _reader(self) -> sqlite3.Connection:
        reader: sqlite3.Connection | None = getattr(self._local, "reader", None)
        if reader is None:
            reader = self._local.reader = self._connect()
            self._readers.append(reader)
        return reader

    def rows(self, query: str, *values: Any, cpu_s: float | None = None) -> Sequence[Row]:
        """The rows of a query on committed data; does not wait for writers.

        Raises:
            TimeoutError: it took more than ``cpu_s`` of this thread's time.
        """
        reader = self._reader
        if cpu_s is None:
            return reader.execute(query, values).fetchall()
        end = time.thread_time() + cpu_s
        reader.set_progress_handler(lambda: time.thread_time() >= end, _STEPS)
        try:
            return reader.execute(query, values).fetchall()
        except sqlite3.OperationalError as error:
            if str(error) != "interrupted":
                raise
            raise TimeoutError from error
        finally:
            reader.set_progress_handler(None, 0)

    def row(self, query: str, *values: Any) -> Row | None:
        """The first row of a query; None without one."""
        rows = self.rows(query, *values)
        return rows[0] if rows else None

    def mark(self) -> int:
        """What no version of a job is below that is committed from now on."""
        row = self.row("SELECT last FROM versions")
        assert row
        return int(row["last"]) + 1

    def version(self) -> object:
        """Changes with each change of a job."""
        return self.changes

    def follow(self, changed: Callable[[str], object]) -> None:
        """Have ``changed`` called with the id of each job that another server changes; empty: perhaps any."""

    def is_steady(self) -> bool:
        """Whether this server has been able to renew its row for so long that those who have not have ended."""
        return True

    def drop_dead(self, db: Database) -> bool:  # noqa: ARG002
        """Forget servers that have ended without a word; whether there were any."""
        return False

    @contextlib.contextmanager
    def sweeping(self) -> Iterator[bool]:
        """Whether this is the server that removes old data now."""
        yield True

    def close(self) -> None:
        """Close the database."""
        with self.lock:
            for connection in (self._writer, *self._readers):
                connection.close()
