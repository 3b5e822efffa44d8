"""Removal of data: by age, by size, and after a server was killed. All functions may block."""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TypeVar

from augment_server.base.errors import Refusal
from augment_server.base.limits import Limits
from augment_server.jobs import parts
from augment_server.jobs.jobs import FINAL, QUEUED, RUNNING
from augment_server.storage.catalog import Row
from augment_server.storage.inputs import Outputs, folder_of
from augment_server.storage.requests import LIFE_NS
from augment_server.storage.storage import Storage, Store, now_ns
from augment_server.storage.uploads import Uploads

FRESH_S = 600.0  #: data used within this time is not removed to make room
_PAUSES = 10  #: while no server runs, at most this part of the shorter life passes
T = TypeVar("T")
_STRAYS_S = 3600.0
_TOGETHER = 200  #: jobs or uploads that are removed in one transaction
_MOST_SWEPT = 20_000  #: maximum of each kind in one sweep, so that other work need not wait
_OPEN = f"FROM jobs WHERE state IN ({QUEUED}, {RUNNING})"  # our own numbers
#: contents of waiting and running jobs; a job of several inputs has none itself, and an upload none before it is whole
_NEEDED = " UNION ALL ".join(
    [f"SELECT content {_OPEN} AND content != ''"]
    + [
        f"SELECT content FROM {table} WHERE job IN (SELECT id {_OPEN}) AND content != ''"  # noqa: S608
        for table in ("controls", "attachments", "parts")
    ]
)
#: earlier jobs whose artifacts are needed by waiting or running jobs
_SOURCES = f"SELECT source FROM parts WHERE source != '' AND job IN (SELECT id {_OPEN})"  # noqa: S608
_FINAL = ", ".join(map(str, FINAL))
_LISTED = "SELECT value FROM json_each(?)"
#: rows beyond a number: each name keeps as many of its newest ones as every other, if it has so many
_BEYOND = (
    " ORDER BY ROW_NUMBER() OVER (PARTITION BY {0} ORDER BY {1} DESC), {1} DESC LIMIT 9223372036854775807 OFFSET ?"
)


class Retention:
    """Removes data that is no longer needed."""

    def __init__(self, storage: Storage, limits: Limits, uploads: Uploads) -> None:
        self._storage, self._limits, self._uploads = storage, limits, uploads
        saved = storage.row("SELECT ns FROM clock")
        life_s = min(limits.artifact_life_s, limits.upload_life_s)
        self.clock = Clock(saved["ns"] if saved else None, int(life_s * 1e9) // _PAUSES)
        self._strays_s = -math.inf  # when the store is looked through again
        self.stopping = False  #: whether the current sweep shall end early
        self.removed: Counter[tuple[str, str]] = Counter()  #: counts by reason: ``age``, ``number``, ``room``

    def recover(self, tell: Callable[[str], None]) -> list[str]:
        """After the end of servers: complete their unfinished moves, queue their jobs again, remove orphaned files.

        An upload or a file for which this fails does not keep the others from it.

        Args:
            tell: called with a sentence on each such failure.

        Returns:
            The ids of waiting jobs, the oldest first.
        """
        storage = self._storage
        with storage.lock:
            gone = "server NOT IN (SELECT id FROM servers)"
            doubtful, values = "", list[str]()
            if storage.catalog.is_shared:
                doubtful = f" WHERE id IN (SELECT upload FROM senders WHERE {gone})"  # noqa: S608
            elif not storage.store.is_far:  # the others are whole, and nearly all: a look at each would take seconds
                doubtful = f" WHERE NOT complete OR received != COALESCE(size, -1) OR sha256 NOT IN ({_LISTED})"
                values = [json.dumps(storage.store.names("blobs"))]
            for row in storage.rows(f"SELECT id, sha256, size, received, complete FROM uploads{doubtful}", *values):  # noqa: S608
                try:
                    self._recover_upload(row)
                except OSError as error:  # noqa: PERF203 - the others go on
                    self._update("UPDATE uploads SET complete = FALSE, received = 0 WHERE id = ?", row["id"])
                    tell(f"uploads/{row['id']}: is to be sent again, its bytes cannot be used: {error!r}")
            with storage.writing() as db:
                parts.recover(db)
                alone = "id NOT IN (SELECT job FROM wholes WHERE running > 0)"
                anew = "state = ?, queued_ns = ?, attempt = '', progress = NULL"
                change = f"UPDATE jobs SET {anew} WHERE state = ? AND {gone} AND {alone}"  # noqa: S608
                db.execute(change, (QUEUED, now_ns(), RUNNING))
                db.execute(f"DELETE FROM senders WHERE {gone}")  # noqa: S608
            self._drop_strays(storage.local, tell)
        return [row["id"] for row in storage.rows("SELECT id FROM jobs WHERE state = ? ORDER BY number", QUEUED)]

    def _recover_upload(self, row: Row) -> None:
        """Count the bytes of an upload; without those of a complete one it is to be sent again.

        Raises:
            OSError: the bytes cannot be moved or looked at.
        """
        there = self._storage.store.recover(row, same_boot=self._storage.is_same_boot)
        if there < row["received"] and row["complete"]:
            self._update("UPDATE uploads SET complete = FALSE, received = 0 WHERE id = ?", row["id"])
        elif there != row["received"]:
            self._update("UPDATE uploads SET received = ? WHERE id = ?", there, row["id"])

    def _drop_strays(self, store: Store, tell: Callable[[str], None]) -> None:
        """Remove bytes without a row. They are looked for before the rows, which were there first."""
        storage = self._storage
        is_open, jobs = f"value IN (SELECT id {_OPEN})", [_there("artifacts", "job"), f"value IN ({_SOURCES})"]
        if storage.catalog.is_shared or store.is_far:  # jobs may run meanwhile
            jobs += [is_open, _there("leftovers", "job")]
        needed = {"parts": [_there("uploads", "id")], "artifacts": jobs, "ranks": [is_open]}
        if store is storage.local:
            needed["work"] = [_there("servers", "id")]
        stored = {folder: store.begun() if folder == "parts" else set(store.names(folder)) for folder in needed}
        for folder, names in stored.items():
            strays = self._strays(needed[folder], {name.partition(".")[0] for name in names})
            for name in (name for name in names if name.partition(".")[0] in strays):
                try:
                    store.remove(f"{folder}/{name}")
                except OSError as error:  # noqa: PERF203 - the others go on
                    tell(f"{folder}/{name}: belongs to nothing, and cannot be removed: {error!r}")

    def _strays(self, needed: Sequence[str], names: Iterable[str]) -> set[str]:
        """Those of ``names`` that are not ``needed``. They are compared in the database, as there may be many."""
        query = f"SELECT value FROM json_each(?) AS stored WHERE NOT {' AND NOT '.join(needed)}"  # noqa: S608
        return {row["value"] for row in self._storage.rows(query, json.dumps([*names]))}

    def drop_attempts(self, age_s: float) -> None:
        """Remove outputs of attempts that no row names: their server ended before it wrote that, or came too late.

        Args:
            age_s: how old they are at least, so that none of them is under way.
        """
        storage = self._storage
        stored = storage.store.attempts(time.time() - age_s)  # before the rows, which name what is there
        if not stored:
            return
        jobs = json.dumps([*{key.split("/")[1] for key in stored}])
        named = {folder_of(row) for row in storage.rows(f"SELECT id, folder FROM jobs WHERE id IN ({_LISTED})", jobs)}  # noqa: S608
        made = storage.rows(f"SELECT made FROM parts WHERE made != '' AND job IN (SELECT id {_OPEN})")  # noqa: S608
        named |= {Outputs.of(row["made"]).folder for row in made}
        named |= {f"artifacts/{row['job']}" for row in storage.rows("SELECT job FROM leftovers")}
        for key in stored - named:
            if key.rpartition("/")[0] not in named and not self.stopping:
                _removed(storage.store, key)

    def sweep(self) -> None:
        """Remove data beyond the limits of age and number, but no upload whose bytes are arriving.

        If several servers share the data, one does it at a time.
        """
        with self._storage.catalog.sweeping() as ours:
            if ours:
                self._sweep()

    def _sweep(self) -> None:
        limits, now, busy = self._limits, self.clock.now_ns(), self._uploads.busy()
        for why, jobs in self._old_jobs(now - int(limits.artifact_life_s * 1e9)).items():
            for some in self._some(jobs[:_MOST_SWEPT]):
                self._remove_jobs(some, why)
        for why, uploads in self._old_uploads(now - int(limits.upload_life_s * 1e9)).items():
            for several in self._some([upload for upload in uploads if upload[0] not in busy][:_MOST_SWEPT]):
                self._remove_uploads(several, why)
        if not self.stopping:
            with contextlib.suppress(Refusal):
                self.make_room("", 0)
            self._drop_contents()
            self._drop_leftovers()
            self._drop_ranks()
            if time.monotonic() >= self._strays_s:
                self._strays_s = time.monotonic() + _STRAYS_S
                if self._storage.store.is_far:
                    self._drop_strays(self._storage.store, lambda _: None)
                self.drop_attempts(max(_STRAYS_S, 2 * limits.job_deadline_s))
        self._update("DELETE FROM requests WHERE at_ns < ?", now - LIFE_NS)
        self._update("DELETE FROM served WHERE turn < ?", now_ns() - LIFE_NS)
        answered = [tuple(row) for row in self._more("requests", "realm, method, request_id", "realm", "at_ns")]
        with self._storage.writing() as db:
            db.executemany("DELETE FROM requests WHERE realm = ? AND method = ? AND request_id = ?", answered)
        change = "INSERT INTO clock VALUES (0, ?) ON CONFLICT (id) DO UPDATE SET ns = excluded.ns"
        self._update(change, self.clock.now_ns())

    def _some(self, all_: list[T]) -> Iterator[list[T]]:
        """The items in groups, for each of which others wait; ends when the server stops."""
        for at in range(0, len(all_), _TOGETHER):
            if self.stopping:
                return
            yield all_[at : at + _TOGETHER]

    def _more(self, of: str, columns: str, owner: str, at: str) -> Sequence[Row]:
        """The rows beyond the maximum number; as a rule there are none, and then all need not be put in order."""
        most, count = self._limits.max_kept, self._storage.row(f"SELECT COUNT(*) AS count FROM {of}")  # noqa: S608
        assert count
        few = count["count"] <= most
        return () if few else self._storage.rows(f"SELECT {columns} FROM {of}{_BEYOND.format(owner, at)}", most)  # noqa: S608

    def _old_jobs(self, old: int) -> dict[str, list[str]]:
        """Final jobs that ended before ``old``, and those beyond the maximum number."""
        ended = f"jobs WHERE state IN ({_FINAL})"
        rows = self._storage.rows(f"SELECT id FROM {ended} AND ended_ns < ?", old)  # noqa: S608
        more = self._more(ended, "id", "client", "ended_ns")
        return {"age": [row["id"] for row in rows], "number": [row["id"] for row in more]}

    def _old_uploads(self, old: int) -> dict[str, list[tuple[str, int]]]:
        """The same for uploads, with the time when each was last used."""
        rows = self._storage.rows("SELECT id, touched_ns FROM uploads WHERE touched_ns < ?", old)
        more = self._more("uploads WHERE complete", "id, touched_ns", "client", "touched_ns")
        rows_of = {"age": rows, "number": more}
        return {why: [(row["id"], row["touched_ns"]) for row in of] for why, of in rows_of.items()}

    def announce(self, client: str, size: int) -> None:
        """Make room for an announced upload among the client's own data: others lose nothing for what may never come.

        Raises:
            Refusal: with all that it has announced, the client would store more than the server does for all.
        """

        def fits() -> bool:
            taken = self.used().get(client, 0) + self._uploads.unsent(client)
            return taken + size <= self._limits.max_stored_bytes

        self._remove_until(fits, self._removable([client], fresh=False))

    def make_room(self, client: str, size: int) -> None:
        """Remove data until ``client`` may store this many more bytes, which have arrived.

        Raises:
            Refusal: the remaining data is all needed or was used recently, or others have no more than their share.
        """
        most = self._limits.max_stored_bytes
        self._remove_until(lambda: self._counted(client) + size <= most, self._to_go(client, size))

    def _remove_until(self, fits: Callable[[], bool], rows: Iterable[Row]) -> None:
        """Remove one after the other until it fits.

        Raises:
            Refusal: it does not fit without them all.
        """
        if fits():
            return
        for row in rows:
            if row["kind"] == "job":
                self._remove_jobs([row["id"]], "room")
            else:
                self._remove_uploads([(row["id"], row["at"])], "room")
            if fits():
                break
        self._drop_contents()
        if not fits():
            most = self._limits.max_stored_bytes
            raise Refusal(
                "STORAGE_FULL", f"all {most} bytes of this server's storage are in use; try later", retry_s=60
            )

    def _counted(self, client: str) -> int:
        """The stored bytes that keep ``client`` from storing more: without what others' running jobs have made so far.

        Those have the same room once more (:func:`parts.expect_room`).
        """
        others = f"SELECT id {_OPEN} AND client != ?"
        query = f"SELECT COALESCE(SUM(bytes), 0) AS bytes FROM parts WHERE origin >= 0 AND job IN ({others})"  # noqa: S608
        row = self._storage.row(query, client)
        assert row
        return self.stored_bytes() - int(row["bytes"])

    def _removable(self, clients: Collection[str], *, fresh: bool) -> Iterator[Row]:
        """Final jobs and uploads of clients that no job needs, unfinished uploads first, then the oldest.

        Those used recently are left out; ``fresh``: those alone, at last the uploads whose bytes are arriving.
        """
        query = (
            f"SELECT 'job' AS kind, id, client, ended_ns AS at, TRUE AS done FROM jobs WHERE state IN ({_FINAL})"  # noqa: S608
            f" UNION ALL SELECT 'upload', id, client, touched_ns, complete FROM uploads WHERE sha256 NOT IN ({_NEEDED})"
        )
        query = f"SELECT * FROM ({query}) AS data WHERE client IN ({_LISTED}) ORDER BY done, at"  # noqa: S608
        since, busy = now_ns() - int(FRESH_S * 1e9), self._uploads.busy()
        rows = self._storage.rows(query, json.dumps([*clients]))
        rows = [row for row in rows if (row["at"] >= since or row["id"] in busy) == fresh]
        yield from sorted(rows, key=lambda row: row["id"] in busy)

    def _to_go(self, client: str, size: int) -> Iterator[Row]:
        """What is removed to make room for ``client``, in this order.

        All shares are equal. A client that stays within its share takes from those above theirs, until they are within
        it, even what was used recently; from its own old data only what is then still needed. One that does not gives
        its own old data first, and takes only old data of others: if one client has less than its share and there is
        room, another has more.
        """
        used = self.used()
        share = self._limits.max_stored_bytes // len({*used, client} - {""})
        within = bool(client) and used.get(client, 0) + size <= share
        above = [other for other, bytes_ in used.items() if bytes_ > share and other != client]
        if not within:
            yield from self._removable([client], fresh=False)
        for fresh in (False, True) if within else (False,):
            for row in self._removable(above, fresh=fresh):
                if self.used().get(row["client"], 0) > share:
                    yield row
        if within:
            yield from self._removable([client], fresh=False)

    def used(self) -> dict[str, int]:
        """The stored bytes of each client that has any."""
        return {row["client"]: row["bytes"] for row in self._storage.rows("SELECT * FROM usage WHERE bytes > 0")}

    def stored_bytes(self) -> int:
        """The bytes of uploads, artifacts and specs. Equal contents of two clients count twice."""
        return sum(self.used().values())

    def remove_job(self, job: str) -> None:
        """Remove a final job, and its artifacts."""
        self._storage.freeing(lambda: self._remove_jobs([job], "asked"))

    def remove_upload(self, upload: str) -> None:
        """Remove an upload, and its bytes unless a job or another upload needs them; a call that sends it ends."""
        row = self._storage.row("SELECT sha256 FROM uploads WHERE id = ?", upload)
        if row:
            self._storage.freeing(lambda: self._remove_uploads([(upload, None)], "asked"))
            self._drop_content(row["sha256"])

    def _remove_jobs(self, jobs: Sequence[str], why: str) -> None:
        with self._storage.writing() as db:
            gone = [job for job in jobs if db.execute("DELETE FROM jobs WHERE id = ?", (job,)).rowcount]
            needed = {row["source"] for row in db.execute(_SOURCES)}
            later = [(job,) for job in jobs if job in needed]
            db.executemany("INSERT INTO leftovers VALUES (?) ON CONFLICT DO NOTHING", later)
        for job in jobs:
            if job not in needed:
                _removed(self._storage.store, f"artifacts/{job}")
        self.removed["job", why] += len(gone)

    def _remove_uploads(self, uploads: Sequence[tuple[str, int | None]], why: str) -> None:
        """Remove uploads, but none used again since the time beside it: its client was told that it exists."""
        change = "DELETE FROM uploads WHERE id = ? AND touched_ns = COALESCE(?, touched_ns) RETURNING id, complete"
        with self._storage.writing() as db:
            gone = [row for upload in uploads for row in db.execute(change, upload).fetchall()]
        for row in gone:
            if not row["complete"]:
                self._uploads.drop(row["id"])
        self.removed["upload", why] += len(gone)

    def _drop_content(self, sha256: str) -> None:
        storage = self._storage
        named = "SELECT 1 FROM uploads WHERE sha256 = ?"
        needed = f"{named} UNION ALL SELECT 1 FROM ({_NEEDED}) AS needed WHERE content = ? LIMIT 1"  # noqa: S608
        with storage.store.lock:
            if sha256:
                _removed(storage.store, f"blobs/{sha256}", lambda: not storage.row(needed, sha256, sha256))

    def _drop_contents(self) -> None:
        """Remove contents that no upload, and no waiting or running job, needs."""
        store, needed = self._storage.store, [_there("uploads", "sha256"), f"value IN ({_NEEDED})"]
        for contents in self._some([*self._strays(needed, store.names("blobs"))]):
            with store.lock:  # in which a content gets its row, and only then its place
                for name in self._strays(needed, contents):
                    _removed(store, f"blobs/{name}", lambda name=name: bool(self._strays(needed, [name])))  # type: ignore[misc]

    def _drop_leftovers(self) -> None:
        """Remove artifacts of removed jobs that no waiting or running job needs."""
        for row in self._storage.rows(f"SELECT job FROM leftovers WHERE job NOT IN ({_SOURCES})"):  # noqa: S608
            _removed(self._storage.store, f"artifacts/{row['job']}")
            self._update("DELETE FROM leftovers WHERE job = ?", row["job"])

    def _drop_ranks(self) -> None:
        """Remove outputs of single traces of ended jobs that were left behind."""
        for job in self._storage.store.names("ranks"):
            if not self._storage.row(f"SELECT 1 {_OPEN} AND id = ?", job):
                _removed(self._storage.store, f"ranks/{job}")

    def _update(self, change: str, *values: object) -> None:
        with self._storage.writing() as db:
            db.execute(change, values)


def _there(table: str, column: str) -> str:
    """The condition that a ``value`` is in a column, which has an index."""
    return f"EXISTS (SELECT 1 FROM {table} WHERE {column} = value)"  # noqa: S608 - our own names


def _removed(store: Store, key: str, may: Callable[[], bool] = lambda: True) -> None:
    """Remove what a row had, if it ``may`` be. Where the store does not answer, that is done later, as of strays."""
    with contextlib.suppress(Refusal):
        store.remove(key, may)


_CATCH_UP = 10  #: while it is behind the time of day, it runs a tenth faster


class Clock:
    """The clock for the age of stored data: advances with the machine's, and is never ahead of the time of day.

    The time of day may be wrong after a jump or at the machine's start, so this clock approaches it slowly. Stored data
    is then kept longer, and never expires early by more than a tenth of its life, and ``pause_ns`` for each start.

    Args:
        saved_ns: the last saved time; None if there is none.
        pause_ns: at most this much of the time without a running server counts.
        time_of_day: the system's, in ns.
        monotonic: of the system, in ns.
    """

    def __init__(
        self,
        saved_ns: int | None,
        pause_ns: int,
        time_of_day: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._time_of_day, self._monotonic = time_of_day, monotonic
        now = time_of_day()
        self._now = now if saved_ns is None else min(now, saved_ns + pause_ns)
        self._asked = monotonic()
        self._lock = threading.Lock()

    def now_ns(self) -> int:
        """The time."""
        with self._lock:
            monotonic = self._monotonic()
            passed, self._asked = monotonic - self._asked, monotonic
            self._now = min(self._now + passed + passed // _CATCH_UP, self._time_of_day())
            return self._now
