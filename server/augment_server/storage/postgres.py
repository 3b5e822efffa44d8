"""The catalog in PostgreSQL, version 14 or later, for several servers. Imported only when it is used.

- :meth:`Postgres.writing` is one at a time among all servers (an advisory lock), as in SQLite: what checks and then
  changes, and what moves files, is written once for both.
- :meth:`Postgres.changing` locks a job's row, :meth:`Postgres.taking` passes over rows that others lock. So servers
  begin and end jobs at the same time.
- Each server renews its row in ``servers`` each second, by the database's clock. One that did not for ``STALE_S`` has
  ended: others take over its jobs. If it goes on later, its attempts are no longer the last ones, and cannot end a job.
- Triggers notify all servers of changed jobs.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import psycopg
from psycopg.adapt import Loader

from augment.errors import AugmentError
from augment_server.base.errors import AWAY, Refusal
from augment_server.base.names import new_id
from augment_server.storage.catalog import (
    ADDED,
    COUNT,
    FORM,
    LATER,
    TABLES,
    TRIGGERS,
    Database,
    Row,
    add_columns,
    count_bytes,
    key_of_pages,
)

RENEW_S, STALE_S = 1.0, 6.0
_CONNECT_S = 5  #: how long to wait for a connection
_AGAIN_S = 1.0  #: after a connection failed, others fail at once for this long
_KEPT = 16  #: connections that are kept open for reading: as many as threads, since opening one outlasts a query
_PLACES_S = 0.5  #: how old places in the queue may be
_WRITE, _SWEEP = 4_810_001, 4_810_002  #: numbers of advisory locks
#: a server that hangs within a transaction loses it, and the lock of all
_OPTIONS = "-c idle_in_transaction_session_timeout=30s -c lock_timeout=30s -c timezone=UTC"
_NAMES = (  # SQLite's name of a type, and ours; texts are compared by their bytes, as there
    (r"LENGTH\(CAST\((\S+) AS BLOB\)\)", r"OCTET_LENGTH(\1)"),
    (r"INTEGER PRIMARY KEY AUTOINCREMENT", "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"),
    (r"\bINTEGER\b", "BIGINT"),
    (r"\bBLOB\b", "BYTEA"),
    (r"\bTEXT\b(?=[ ,)]|$)", 'TEXT COLLATE "C"'),
)
#: the time by the database's clock, ns
_NOW = "CAST(extract(epoch FROM clock_timestamp()) * 1000000000 AS BIGINT)"
_MARK = "pg_snapshot_xmin(pg_current_snapshot())::text::bigint"  # all transactions before it have ended
_FORM_TABLE = "CREATE TABLE IF NOT EXISTS form (version BIGINT NOT NULL)"
#: functions that SQLite has, and what tells servers of changes
_FUNCTIONS = r"""
CREATE OR REPLACE FUNCTION instr(text, text) RETURNS integer LANGUAGE sql IMMUTABLE AS $$ SELECT strpos($1, $2) $$;
CREATE OR REPLACE FUNCTION glob(text, text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT $2 LIKE replace(regexp_replace(
        regexp_replace($1, '\[([[?])\]', '\1', 'g'), '([\\%_])', '\\\1', 'g'), '*', '%') $$;
CREATE OR REPLACE FUNCTION json_each(text) RETURNS TABLE (key text, value text) LANGUAGE sql IMMUTABLE AS $$
    SELECT * FROM json_each_text(CASE WHEN $1 LIKE '{%' THEN $1::json ELSE '{}' END) UNION ALL
    SELECT NULL, item FROM json_array_elements_text(CASE WHEN $1 LIKE '[%' THEN $1::json ELSE '[]' END) AS item $$;
CREATE OR REPLACE FUNCTION tell_of_job() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN PERFORM pg_notify('augment', NEW.id); RETURN NULL; END $$;
CREATE OR REPLACE TRIGGER job_new AFTER INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION tell_of_job();
CREATE OR REPLACE TRIGGER job_changed AFTER UPDATE OF state, progress, changed_ns ON jobs
    FOR EACH ROW EXECUTE FUNCTION tell_of_job();
CREATE OR REPLACE FUNCTION version_of_job() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN NEW.version := pg_current_xact_id()::text::bigint; RETURN NEW; END $$;
CREATE OR REPLACE TRIGGER job_first BEFORE INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION version_of_job();
CREATE OR REPLACE TRIGGER job_next BEFORE UPDATE OF state, progress, changed_ns ON jobs
    FOR EACH ROW EXECUTE FUNCTION version_of_job();
CREATE OR REPLACE FUNCTION tell_of_steps() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN PERFORM pg_notify('augment', NEW.job); RETURN NULL; END $$;
CREATE OR REPLACE TRIGGER steps_ready AFTER UPDATE OF ready ON wholes
    FOR EACH ROW WHEN (NEW.ready > OLD.ready) EXECUTE FUNCTION tell_of_steps();
"""


def opened(url: str) -> Postgres:
    """The catalog at a URL of libpq, whose environment and service files say the rest, such as the password.

    Raises:
        AugmentError: it cannot be reached or used.
    """
    try:
        return Postgres(url)
    except psycopg.Error as error:
        why = str(error).strip().partition("\n")[0]
        raise AugmentError(f"--catalog: the database cannot be used: {why}") from error
    except Refusal as refusal:
        why = str(refusal.__cause__ or refusal).strip().partition("\n")[0]
        raise AugmentError(f"--catalog: the database cannot be reached: {why}") from refusal


class _Whole(Loader):
    """Sums of integers, which PostgreSQL gives as decimal numbers."""

    def load(self, data: Any) -> int:
        return int(bytes(data))


class _Row:
    """A row: its values by name or by place."""

    __slots__ = ("_names", "_values")

    def __init__(self, names: dict[str, int], values: Sequence[Any]) -> None:
        self._names, self._values = names, values

    def __getitem__(self, key: str | int) -> Any:
        return self._values[self._names[key] if isinstance(key, str) else key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)


def _row_maker(cursor: psycopg.Cursor[Any]) -> Callable[[Sequence[Any]], _Row]:
    result = cursor.pgresult  # not its description, which makes an object of each column
    names = {(result.fname(at) or b"").decode(): at for at in range(result.nfields)} if result else {}
    return functools.partial(_Row, names)


def _renamed(text: str) -> str:
    for sqlite, ours in _NAMES:
        text = re.sub(sqlite, ours, text)
    return text


@functools.lru_cache(1000)
def _translated(query: str) -> bytes:
    return _renamed(query).replace("%", "%%").replace("?", "%s").encode()


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Turn the loss of a connection into a refusal.

    Raises:
        Refusal: one was lost.
    """
    try:
        yield
    except psycopg.errors.QueryCanceled:
        raise
    except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.IdleInTransactionSessionTimeout) as error:
        raise _away(error) from error


class _Connection:
    """A connection that takes our SQL."""

    def __init__(self, url: str, *, is_durable: bool = True) -> None:
        self.real = psycopg.connect(
            url, autocommit=True, row_factory=_row_maker, connect_timeout=_CONNECT_S, options=_options(url),
            application_name="kineto-augment", keepalives_idle=10, keepalives_interval=5, keepalives_count=3,
            tcp_user_timeout=20_000,
        )  # fmt: skip
        self.real.adapters.register_loader("numeric", _Whole)
        if not is_durable:
            self.real.execute("SET synchronous_commit = off")

    def execute(self, query: str, values: Sequence[Any] = ()) -> psycopg.Cursor[_Row]:
        """Do one statement."""
        return self.real.execute(_translated(query), values)

    def raw(self, text: str) -> None:
        """Do statements without values."""
        self.real.execute(text.encode())

    def is_free(self) -> bool:
        """Whether it is open, and outside of a transaction."""
        status = psycopg.pq.TransactionStatus.IDLE
        return not self.real.closed and self.real.info.transaction_status == status

    def executemany(self, query: str, values: Iterable[Sequence[Any]]) -> None:
        """Do one statement for each of ``values``."""
        with self.real.cursor() as cursor:
            cursor.executemany(_translated(query), values)


def _options(url: str) -> str:
    given = psycopg.conninfo.conninfo_to_dict(url).get("options") or os.environ.get("PGOPTIONS", "")
    return f"{given} {_OPTIONS}".strip()


def _away(error: Exception) -> Refusal:
    what = "the server does not reach its database now; what it has accepted is kept, try again"
    refusal = Refusal(AWAY, what, retry_s=2)
    refusal.__cause__ = error
    return refusal


class Postgres:
    """The catalog in PostgreSQL. The methods are those of :class:`augment_server.storage.catalog.Embedded`.

    All may raise a :class:`Refusal` with the reason ``AWAY``: of a change it is then unknown whether it was made.
    """

    is_shared = True
    backup = None  #: of earlier tables; taking one is for the operator, and pg_dump
    skip_locked: Sequence[str] = ("FOR UPDATE OF jobs SKIP LOCKED", "FOR UPDATE OF jobs")

    def __init__(self, url: str) -> None:
        self._url, self.server = url, new_id()
        self._fails_until = 0.0
        self._why: Exception | None = None
        self._idle: dict[bool, queue.LifoQueue[_Connection]] = {kind: queue.LifoQueue() for kind in (True, False)}
        self._writer: _Connection | None = None
        self._mutex, self._depth = threading.RLock(), 0  # of the lock
        self.lock = _Lock(self)
        self._changes = 0
        self._renewed = self._steady_since = -STALE_S
        self._ended = threading.Event()
        self._changed: Callable[[str], object] = lambda _: None
        with contextlib.ExitStack() as undo, self.writing() as db:
            undo.callback(db.real.close)
            self._make_tables(db)
            self.secret = key_of_pages(db)
            key = "INSERT INTO secrets VALUES ('catalog', ?) ON CONFLICT (name) DO NOTHING"
            db.execute(key, (new_id().encode(),))
            row = db.execute("SELECT value FROM secrets WHERE name = 'catalog'").fetchone()
            assert row
            self.id = bytes(row["value"]).decode()
            later = "pg_snapshot_xmax(pg_current_snapshot())::text::bigint"  # of another cluster, before a restore
            db.raw(f"UPDATE jobs SET version = 0 WHERE version >= {later}")  # noqa: S608 - our own
            undo.pop_all()
        with self._borrowed() as connection:
            self._renew(connection)
        self._listener = threading.Thread(target=self._listen, daemon=True, name="catalog")
        self._listener.start()

    def _make_tables(self, db: _Connection) -> None:
        """Make what is missing, or refuse a database that is not for us.

        Nothing is done where all is there, for that waits for those who write, and they for that.
        """
        version = db.execute("SHOW server_version_num").fetchone()
        if version and int(version[0]) < 140_000:
            raise AugmentError("--catalog: PostgreSQL is too old; version 14 or later is needed")
        db.raw(_FORM_TABLE)
        row = db.execute("SELECT MAX(version) FROM form").fetchone()
        if row and (row[0] or 0) > FORM:
            raise AugmentError("--catalog: belongs to a later version of kineto-augment")
        made = hashlib.sha256(repr((TABLES, ADDED, LATER, TRIGGERS, COUNT, _FUNCTIONS)).encode()).digest()
        known = "SELECT value FROM secrets WHERE name = 'tables'"
        if row and row[0] == FORM and (last := db.execute(known).fetchone()) and bytes(last["value"]) == made:
            return
        db.raw(_renamed(TABLES))
        add_columns(db, functools.partial(_columns, db))
        db.raw(_FUNCTIONS)
        for name, event, table, change in TRIGGERS:  # before, to see of several rows those that have changed already
            text = f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$"
            text += f" BEGIN {_renamed(change)} RETURN COALESCE(NEW, OLD); END $$;"
            text += f"CREATE OR REPLACE TRIGGER {name} BEFORE {event} ON {table}"
            db.raw(f"{text} FOR EACH ROW EXECUTE FUNCTION {name}()")
        count_bytes(db)
        db.execute("INSERT INTO secrets VALUES ('tables', ?) ON CONFLICT (name) DO UPDATE SET value = ?", (made, made))
        db.execute("DELETE FROM form")
        db.execute("INSERT INTO form VALUES (?)", (FORM,))

    def _opened(self, *, is_durable: bool = True) -> _Connection:
        """A new connection."""
        if time.monotonic() < self._fails_until:
            assert self._why
            raise _away(self._why)
        try:
            return _Connection(self._url, is_durable=is_durable)
        except psycopg.OperationalError as error:
            self._why, self._fails_until = error, time.monotonic() + _AGAIN_S
            raise

    @contextlib.contextmanager
    def _borrowed(self, begin: str = "", *, is_durable: bool = True) -> Iterator[_Connection]:
        """A connection that no other thread uses; one that still works if ``begin``, done first, shows that.

        Raises:
            Refusal: the database cannot be reached.
        """
        idle = self._idle[is_durable]
        with _told():
            while True:
                connection, is_new = None, False
                with contextlib.suppress(queue.Empty):
                    connection = idle.get_nowait()
                if connection is None:
                    connection, is_new = self._opened(is_durable=is_durable), True
                try:
                    if begin:
                        connection.raw(begin)
                    break
                except psycopg.OperationalError:
                    connection.real.close()
                    if is_new:
                        raise
            try:
                yield connection
            finally:
                if connection.is_free() and idle.qsize() < _KEPT:
                    idle.put(connection)
                else:
                    connection.real.close()

    @contextlib.contextmanager
    def _transaction(self, *, is_durable: bool) -> Iterator[_Connection]:
        with self._borrowed("BEGIN", is_durable=is_durable) as connection:
            try:
                yield connection
            except BaseException:
                with contextlib.suppress(psycopg.Error):  # then the connection is closed
                    connection.raw("ROLLBACK")
                raise
            connection.raw("COMMIT")
            self._changes += 1

    @contextlib.contextmanager
    def writing(self) -> Iterator[_Connection]:
        """A transaction, one at a time among all servers."""
        with self._mutex, _told():
            writer = self._begun(f"BEGIN; SELECT pg_advisory_xact_lock({_WRITE})")
            try:
                yield writer
                writer.raw("COMMIT")
            except BaseException:
                with contextlib.suppress(psycopg.Error):
                    writer.raw("ROLLBACK")
                raise
            self._changes += 1

    def _begun(self, begin: str) -> _Connection:
        """The connection that writes, after this statement. If it is lost, another, but not within the lock."""
        within = self._depth > 1 or (self._depth == 1 and begin.startswith("BEGIN"))
        if self._writer and not self._writer.real.closed:
            try:
                self._writer.raw(begin)
                return self._writer
            except psycopg.OperationalError:
                self._writer.real.close()
                if within:
                    raise
        elif within:
            raise _away(psycopg.OperationalError("the lock of all servers is lost with its connection"))
        self._writer = writer = self._opened()
        writer.raw(begin)
        return writer

    def changing(self, job: str = "") -> contextlib.AbstractContextManager[Database]:
        """A transaction about one job or upload alone, while servers change others."""
        return self._about(job)

    @contextlib.contextmanager
    def _about(self, job: str) -> Iterator[Database]:
        with self._transaction(is_durable=True) as db:
            if job:
                db.execute("SELECT 1 FROM jobs WHERE id = ? FOR UPDATE", (job,))
            yield db

    def taking(self) -> contextlib.AbstractContextManager[Database]:
        """A transaction that takes a job to work on; after a crash it may be undone."""
        return self._transaction(is_durable=False)

    def reading(self) -> contextlib.AbstractContextManager[Database]:
        """A connection for reading committed data."""
        return self._borrowed("SELECT")

    def rows(self, query: str, *values: Any, cpu_s: float | None = None) -> Sequence[Row]:
        """The rows of a query on committed data.

        Raises:
            TimeoutError: it took more than ``cpu_s``.
        """
        if cpu_s is not None:
            limited = f"BEGIN; SET LOCAL statement_timeout = {round(cpu_s * 1000)}"
            try:
                with self._borrowed(limited) as connection:
                    rows = connection.execute(query, values).fetchall()
                    connection.raw("COMMIT")
                    return rows
            except psycopg.errors.QueryCanceled as error:
                raise TimeoutError from error
        try:
            with self._borrowed() as connection:
                return connection.execute(query, values).fetchall()
        except Refusal:
            if time.monotonic() < self._fails_until:
                raise
        self._drop_idle()  # all that were open when the database went away
        with self._borrowed() as connection:
            return connection.execute(query, values).fetchall()

    def row(self, query: str, *values: Any) -> Row | None:
        """The first row of a query; None without one."""
        rows = self.rows(query, *values)
        return rows[0] if rows else None

    def _drop_idle(self) -> None:
        for idle in self._idle.values():
            with contextlib.suppress(queue.Empty):
                while True:
                    idle.get_nowait().real.close()

    def mark(self) -> int:
        """What no version of a job is below that is committed from now on."""
        row = self.row(f"SELECT {_MARK}")
        assert row
        return int(row[0])

    def version(self) -> object:
        """Changes with each change of a job by this server, and soon after one by another."""
        return self._changes, int(time.monotonic() / _PLACES_S)

    def follow(self, changed: Callable[[str], object]) -> None:
        """Have ``changed`` called with the id of each job that a server changes; empty: perhaps any."""
        self._changed = changed

    def _listen(self) -> None:
        while not self._ended.is_set():
            try:
                connection = self._opened(is_durable=False)
                with contextlib.closing(connection.real):
                    connection.raw("LISTEN augment")
                    self._changed("")
                    while not self._ended.is_set():
                        if time.monotonic() - self._renewed >= RENEW_S:
                            self._renew(connection)
                        for note in connection.real.notifies(timeout=RENEW_S / 4):
                            self._changed(note.payload)
            except (psycopg.Error, Refusal):  # noqa: PERF203 - it is tried again
                self._ended.wait(RENEW_S / 4)

    def _renew(self, connection: _Connection) -> None:
        """Say that this server runs."""
        anew = "ON CONFLICT (id) DO UPDATE SET renewed_ns = excluded.renewed_ns"
        connection.execute(f"INSERT INTO servers VALUES (?, {_NOW}) {anew}", (self.server,))  # noqa: S608 - our own
        now = time.monotonic()
        if now - self._renewed > STALE_S / 2:
            self._steady_since = now
        self._renewed = now

    def is_steady(self) -> bool:
        """Whether this server has renewed its row for so long that those who have not have ended."""
        now = time.monotonic()
        return now - self._renewed < STALE_S / 2 and now - self._steady_since > STALE_S

    def drop_dead(self, db: Database) -> bool:
        """Forget servers that have ended without a word; whether there were any."""
        old = f"DELETE FROM servers WHERE renewed_ns < {_NOW} - {round(STALE_S * 1e9)}"  # noqa: S608 - our own
        return db.execute(old).rowcount > 0

    @contextlib.contextmanager
    def sweeping(self) -> Iterator[bool]:
        """Whether this is the server that removes old data now."""
        with self._borrowed("SELECT") as connection:
            row = connection.execute(f"SELECT pg_try_advisory_lock({_SWEEP})").fetchone()
            try:
                yield bool(row and row[0])
            finally:
                connection.execute(f"SELECT pg_advisory_unlock({_SWEEP})")

    def close(self) -> None:
        """Say that this server has ended, and close all connections."""
        self._ended.set()
        self._listener.join()
        with contextlib.suppress(psycopg.Error, Refusal), self._transaction(is_durable=False) as db:
            db.execute("DELETE FROM servers WHERE id = ?", (self.server,))
        self._drop_idle()
        if self._writer:
            self._writer.real.close()


class _Lock:
    """Held while rows and files change together: by one server, and one thread of it. May be taken again within.

    A server that hangs with it for a minute loses it, and its connection.
    """

    def __init__(self, catalog: Postgres) -> None:
        self._catalog = catalog

    def __enter__(self) -> None:
        catalog = self._catalog
        catalog._mutex.acquire()
        catalog._depth += 1
        try:
            if catalog._depth == 1:
                with _told():
                    catalog._begun(f"SET idle_session_timeout = '60s'; SELECT pg_advisory_lock({_WRITE})")
        except BaseException:
            self._leave()
            raise

    def __exit__(self, *_: object) -> None:
        catalog = self._catalog
        if catalog._depth == 1 and catalog._writer:
            with contextlib.suppress(psycopg.Error):  # then the lock went with the connection
                catalog._writer.raw(f"SELECT pg_advisory_unlock({_WRITE}); SET idle_session_timeout = 0")
        self._leave()

    def _leave(self) -> None:
        self._catalog._depth -= 1
        self._catalog._mutex.release()


def _columns(db: Database, table: str) -> set[str]:
    query = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped"
    return {row[0] for row in db.execute(query, (table,))}
