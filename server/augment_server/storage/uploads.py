"""Uploads: bytes that arrive in chunks, over several calls and restarts, and are stored by content."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from augment.v1 import resources_pb2 as v1
from augment_server.base.errors import Refusal, invalid
from augment_server.base.limits import Limits
from augment_server.base.names import new_id
from augment_server.base.people import Caller, prefix_of
from augment_server.storage.catalog import Database, Row
from augment_server.storage.filters import Field
from augment_server.storage.folder import BytesLost, Part
from augment_server.storage.pages import Asked, page
from augment_server.storage.storage import Storage, now_ns

if TYPE_CHECKING:
    from augment_server.storage.bucket import Pieces

FRESH_S = 60.0  #: an upload that was begun, or got bytes, within this time is in use
SYNC_BYTES = 16 << 20  #: after this many bytes they are synced to disk, and recorded in the database
_MOST_DIGESTS = 10_000
LAG_S, _LOOK_S = 5.0, 0.1  #: how long a mount may lack what another server has completed, and how often to look
#: the fields that filters and orders may name
FIELDS = {
    "state": Field("choice", "complete", {"ACTIVE": False, "COMPLETE": True}),
    "create_time": Field("time", "created_ns"),
    "file_name": Field("text", "file_name"),
    "size_bytes": Field("number", "COALESCE(size, received)"),
    "sha256": Field("text", "sha256"),
}


@dataclass(frozen=True, slots=True)
class Announced:
    """The announcement of a file that a client is about to send."""

    file_name: str
    size: int | None
    sha256: str


class Uploads:
    """All uploads. Every method may be called from any thread, and may block."""

    def __init__(self, storage: Storage, limits: Limits) -> None:
        self._storage, self.store, self._limits = storage, storage.store, limits
        self._writers: dict[str, Writer] = {}
        #: of unfinished uploads, by how many bytes: a call that continues one need not read what came before
        self._digests: dict[str, tuple[int, hashlib._Hash]] = {}
        self._opening = threading.Lock()  # order of locks: this, then the writer's, then the storage's

    def start(self, caller: Caller, announced: Announced) -> v1.Upload:
        """Begin an upload, or find the one that already has all or some of these bytes.

        Raises:
            Refusal: it is too large, or the client has too many open.
        """
        self._expect_intact(announced.sha256)
        idle = list[str]()
        with self._storage.writing() as db:
            if announced.sha256 and (known := self._known(db, caller, announced)):
                db.execute("UPDATE uploads SET touched_ns = ? WHERE id = ?", (now_ns(), known))
                upload = known
            else:
                upload = self._insert(db, caller, announced, idle)
        for other in idle:
            self.store.remove(f"parts/{other}")
        if announced.size == 0 and (writer := self.open(caller, upload, 0)):
            writer.finish()  # an empty file is complete at once
        return self.get(caller, upload)

    def _expect_intact(self, sha256: str) -> None:
        """Mark an upload as incomplete if its bytes are missing or damaged on disk, so that they are sent again. What
        another server has just completed may not be seen yet through this one's mount."""
        query = "SELECT size FROM uploads WHERE sha256 = ? AND complete LIMIT 1"
        row, until = self._storage.row(query, sha256), time.monotonic() + LAG_S * self._storage.catalog.is_shared
        while row and not (intact := self.store.has(sha256, row["size"])) and time.monotonic() < until:
            time.sleep(_LOOK_S)
            row = self._storage.row(query, sha256)
        if row and not intact:
            with self._storage.writing() as db:
                change = "complete = FALSE, received = 0, pieces = ''"
                db.execute(f"UPDATE uploads SET {change} WHERE sha256 = ? AND complete", (sha256,))  # noqa: S608

    def _known(self, db: Database, caller: Caller, announced: Announced) -> str | None:
        """The most complete upload of the same bytes with the same name."""
        query = (
            "SELECT id FROM uploads WHERE sha256 = ? AND realm = ? AND file_name = ?"
            " AND (COALESCE(size, -1) = ? OR complete) ORDER BY complete DESC, received DESC LIMIT 1"
        )
        size = -1 if announced.size is None else announced.size
        row = db.execute(query, (announced.sha256, caller.realm, announced.file_name, size)).fetchone()
        return str(row["id"]) if row else None

    def _insert(self, db: Database, caller: Caller, announced: Announced, idle: list[str]) -> str:
        upload, now = new_id(), now_ns()
        # uploads of other realms do not prove that this client has the bytes
        same = "SELECT size FROM uploads WHERE sha256 = ? AND sha256 != '' AND realm = ? AND complete LIMIT 1"
        there = db.execute(same, (announced.sha256, caller.realm)).fetchone()
        if not there:
            idle += self._expect_few(db, caller)
        size = there["size"] if there else announced.size
        values = (upload, caller.client, caller.realm, announced.file_name, size, announced.sha256)
        more = (bool(there), size if there else 0, now, now, "")
        db.execute("INSERT INTO uploads VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*values, *more))
        return upload

    def expect_size(self, size: int | None) -> None:
        """Check an announced size.

        Raises:
            Refusal: it is negative or above a limit.
        """
        if size is not None and size < 0:
            raise invalid("size_bytes", "must not be negative")
        if size is not None and size > self._most():
            raise self._too_large("size_bytes")

    def _most(self) -> int:
        return min(self._limits.max_upload_bytes, self._limits.max_stored_bytes)

    def _expect_few(self, db: Database, caller: Caller) -> list[str]:
        """Make room for one more unfinished upload by removing an idle one, which may never be continued."""
        query = "SELECT id, touched_ns FROM uploads WHERE client = ? AND NOT complete ORDER BY touched_ns"
        begun = db.execute(query, (caller.client,)).fetchall()
        most, fresh = self._limits.max_open_uploads, now_ns() - int(FRESH_S * 1e9)
        if len(begun) < most:
            return []
        left = (row["id"] for row in begun if row["touched_ns"] < fresh and row["id"] not in self._writers)
        waiting = next(left, None)
        if waiting is None:
            raise Refusal(
                "TOO_MANY_UPLOADS",
                f"{most} of your uploads are unfinished; finish one first",
                retry_s=1,
                subject=caller.client,
            )
        db.execute("DELETE FROM uploads WHERE id = ?", (waiting,))
        return [waiting]

    def get(self, caller: Caller, upload: str) -> v1.Upload:
        """An upload as it stands.

        Raises:
            Refusal: no such upload is visible to the caller.
        """
        writers = dict(self._writers)  # before the row: a writer that ends meanwhile has written what it knows
        return self._as_it_stands(self._row(caller, upload), writers)

    def _as_it_stands(self, row: Row, writers: Mapping[str, Writer]) -> v1.Upload:
        writer = writers.get(row["id"])
        return self._message(row, writer.received if writer and not row["complete"] else row["received"])

    def page(self, caller: Caller, asked: Asked) -> tuple[list[v1.Upload], str]:
        """Uploads, and the token of the next page.

        Raises:
            Refusal: the token, filter or order is invalid.
        """
        message = partial(self._as_it_stands, writers=dict(self._writers))
        return page(self._storage, "uploads", FIELDS, ("realm = ?", [caller.realm]), asked, message)

    def _row(self, caller: Caller, upload: str) -> Row:
        row = self._storage.row("SELECT * FROM uploads WHERE id = ? AND realm = ?", upload, caller.realm)
        if row is None:
            raise _gone(upload)
        return row

    def _message(self, row: Row, received: int) -> v1.Upload:
        made = v1.Upload(
            name=f"{prefix_of(row['realm'])}uploads/{row['id']}",
            file_name=row["file_name"],
            state=v1.Upload.STATE_COMPLETE if row["complete"] else v1.Upload.STATE_ACTIVE,
            received_bytes=received,
            size_bytes=row["size"],
            sha256=row["sha256"],
        )
        made.create_time.FromNanoseconds(row["created_ns"])
        made.expire_time.FromNanoseconds(row["touched_ns"] + int(self._limits.upload_life_s * 1e9))
        return made

    def open(self, caller: Caller, upload: str, offset: int) -> Writer | None:
        """Continue an upload; None if it is complete. A concurrent call for the same upload ends.

        Raises:
            Refusal: there is no such upload, or bytes before ``offset`` are missing.
        """
        with self._opening:
            row = self._row(caller, upload)  # before the other call ends: it may be another client's
            before = self._writers.pop(upload, None)
            if before:
                what = f"uploads/{upload}: another call continues this upload"
                before.close(Refusal("UPLOAD_TAKEN_OVER", what))
            if self._storage.catalog.is_shared:
                self._take_over(upload)
            if before or self._storage.catalog.is_shared:
                row = self._row(caller, upload)  # with what that call has saved
            if row["complete"]:
                return None
            received = row["received"]
            if not 0 <= offset <= received:
                there = f"uploads/{upload}: has {received} bytes, not {offset}; continue from received_bytes"
                raise Refusal("OFFSET_OUT_OF_RANGE", there, {"received_bytes": str(received)}, field_path="offset")
            count, digest = self._digests.pop(upload, (0, None))
            writer = Writer(self, row, received, offset, digest if count == received else None)
            self._writers[upload] = writer
        return writer

    def _take_over(self, upload: str) -> None:
        """Become the one server that writes an upload: what another still writes goes into a file without a name."""
        ours = self._storage.catalog.server
        with self._storage.writing() as db:
            row = db.execute("SELECT server FROM senders WHERE upload = ?", (upload,)).fetchone()
            if row and row["server"] != ours:
                self._digests.pop(upload, None)
                self.store.separate(upload)
            change = "INSERT INTO senders VALUES (?, ?) ON CONFLICT (upload) DO UPDATE SET server = excluded.server"
            db.execute(change, (upload, ours))

    def _expect_sender(self, db: Database, upload: str) -> None:
        """Check that no other server continues an upload."""
        if self._storage.catalog.is_shared:
            row = db.execute("SELECT server FROM senders WHERE upload = ?", (upload,)).fetchone()
            if row and row["server"] != self._storage.catalog.server:
                raise Refusal("UPLOAD_TAKEN_OVER", f"uploads/{upload}: another call continues this upload")

    def keep_busy(self) -> None:
        """Let other servers see that the uploads whose bytes are arriving are in use."""
        if busy := self.busy():
            with self._storage.changing() as db:
                change = "UPDATE uploads SET touched_ns = ? WHERE id = ? AND touched_ns < ?"
                now, old = now_ns(), now_ns() - int(FRESH_S * 1e9) // 2
                db.executemany(change, [(now, upload, old) for upload in sorted(busy)])

    def closed(self, writer: Writer) -> None:
        """Record that a writer's call has ended."""
        with self._opening:
            if self._writers.get(writer.upload) is writer:
                del self._writers[writer.upload]

    def keep_digest(self, upload: str, count: int, digest: hashlib._Hash) -> None:
        """Keep the digest of an upload's first bytes; those kept longest are forgotten."""
        self._digests[upload] = count, digest
        if len(self._digests) > _MOST_DIGESTS:
            self._digests.pop(list(self._digests)[0], None)  # noqa: RUF015 - other threads change it meanwhile

    def drop(self, upload: str) -> None:
        """Remove the bytes of a removed upload that was not complete; a call that sends more of them ends."""
        with self._opening:
            if writer := self._writers.pop(upload, None):
                writer.close(_gone(upload))
            self._digests.pop(upload, None)
        with contextlib.suppress(Refusal):  # of a store that does not answer: then it is a stray
            self.store.remove(f"parts/{upload}")

    def unsent(self, client: str) -> int:
        """How many bytes the client has announced that have not arrived."""
        more = "SELECT SUM(size - received) AS bytes FROM uploads"
        row = self._storage.row(f"{more} WHERE client = ? AND NOT complete AND size > received", client)
        return int(row["bytes"] or 0) if row else 0

    def busy(self) -> set[str]:
        """The uploads whose bytes are arriving."""
        return set(self._writers)

    def count_open(self) -> int:
        """The number of unfinished uploads."""
        row = self._storage.row("SELECT COUNT(*) AS count FROM uploads WHERE NOT complete")
        return int(row["count"]) if row else 0

    def saved(self, upload: str, received: int, pieces: str = "") -> None:
        """Record that this many bytes are stored, in these ``pieces``.

        Raises:
            Refusal: the upload has been removed.
        """
        with self._storage.changing() as db:
            self._expect_sender(db, upload)
            change = "UPDATE uploads SET received = ?, pieces = ?, touched_ns = ? WHERE id = ?"
            if not db.execute(change, (received, pieces, now_ns(), upload)).rowcount:
                raise _gone(upload)

    def completed(self, upload: str, size: int, sha256: str, pieces: str) -> None:
        """Store the bytes by content, once all are stored."""
        if self.store.is_far:  # what the row names is no stray
            with self._storage.writing() as db:
                self._expect_sender(db, upload)
                db.execute("UPDATE uploads SET sha256 = ? WHERE id = ?", (sha256, upload))
        with self.store.completing(upload, sha256, size, pieces), self._storage.writing() as db:
            self._expect_sender(db, upload)
            values = (size, size, sha256, pieces, now_ns(), upload)
            change = "complete = TRUE, received = ?, size = ?, sha256 = ?, pieces = ?, touched_ns = ?"
            if not db.execute(f"UPDATE uploads SET {change} WHERE id = ?", values).rowcount:  # noqa: S608
                raise _gone(upload)

    def discarded(self, upload: str) -> None:
        """Discard all bytes, because they differ from what was announced."""
        self.saved(upload, 0)  # first: on a full disk bytes that are recorded stay, and differ again
        self.store.remove(f"parts/{upload}")

    def expect_room(self, row: Row, end: int) -> None:
        """Refuse bytes beyond the announced or allowed size.

        Raises:
            Refusal: ``end`` is beyond that size.
        """
        if end > self._most():
            raise self._too_large()
        if row["size"] is not None and end > row["size"]:
            raise Refusal("UPLOAD_TOO_LARGE", f"{row['file_name']}: has more than the announced {row['size']} bytes")

    def _too_large(self, field: str = "") -> Refusal:
        most = self._most()
        what = f"this server takes up to {most} bytes"
        return Refusal("UPLOAD_TOO_LARGE", what, {"max_bytes": str(most)}, field_path=field)


class Writer:
    """One call that sends the bytes of one upload. Used by one thread at a time; another thread may end it."""

    def __init__(self, uploads: Uploads, row: Row, received: int, offset: int, digest: hashlib._Hash | None) -> None:
        self.upload: str = row["id"]
        self.received = received
        self._uploads, self._row = uploads, row
        self._passed_over = received - offset  # bytes still to arrive that the server already has
        self._saved: int = row["received"]
        self._lock = threading.Lock()
        try:
            self._part: Part | Pieces | None = uploads.store.part(self.upload, received, row["pieces"])
        except BytesLost as lost:
            uploads.saved(self.upload, 0)
            what = f"{row['file_name']}: bytes were lost; send it again from the beginning"
            raise Refusal("UPLOAD_INCOMPLETE", what, {"received_bytes": "0"}) from lost
        self._hash = digest  # of the existing bytes; slow, so computed only when needed
        self._ended: Refusal | None = None  # why another thread has ended the call

    @property
    def unsaved(self) -> int:
        """The bytes that have arrived and are not recorded yet."""
        return self.received - self._saved

    def is_whole(self, more: int = 0) -> bool:
        """Whether all announced bytes have arrived, with this many ``more``."""
        return self._row["size"] is not None and bool(self.received + more >= self._row["size"])

    @property
    def closed(self) -> bool:
        """Whether the call has ended."""
        return self._part is None

    def write(self, data: bytes) -> None:
        """Append the next bytes.

        Raises:
            Refusal: too many bytes arrived, or another call has taken over.
        """
        digest = self._digest()
        with self._lock:
            part = self._expect_open()
            again = min(self._passed_over, len(data))
            self._passed_over -= again
            data = data[again:]
            self._uploads.expect_room(self._row, self.received + len(data))
            part.write(data)
            digest.update(data)
            self.received += len(data)
            if self.received - self._saved >= SYNC_BYTES:
                self._save(part)

    def finish(self) -> None:
        """Complete the upload.

        Raises:
            Refusal: the bytes differ from the announcement.
        """
        digest = self._digest()
        with self._lock:
            part = self._expect_open()
            size, announced = self._row["size"], self._row["sha256"]
            name = self._row["file_name"]
            if size is not None and self.received != size:
                self._save(part)
                raise self.incomplete()
            pieces = part.save()
            sha256 = digest.hexdigest()
            if announced and sha256 != announced:
                self.received, self._saved, self._hash = 0, 0, None
                self._uploads.discarded(self.upload)
                raise Refusal(
                    "CHECKSUM_MISMATCH", f"{name}: the SHA-256 differs from the announced one; send the file again"
                )
            self._uploads.completed(self.upload, self.received, sha256, pieces)
            self._saved, self._hash = self.received, None
        self.close()

    def incomplete(self) -> Refusal:
        """The refusal of a call that ended too early."""
        size = self._row["size"]
        wanted = "finish was not set" if size is None else f"{size} were announced"
        what = f"{self._row['file_name']}: {self.received} bytes arrived, {wanted}; continue from received_bytes"
        return Refusal("UPLOAD_INCOMPLETE", what, {"received_bytes": str(self.received)})

    def close(self, why: Refusal | None = None) -> None:
        """End the call; the received bytes are kept, unless the upload is removed. ``why``: if another thread calls."""
        with self._lock:
            if self._part:
                self._ended = why
                try:
                    if self.received != self._saved:
                        with contextlib.suppress(Refusal):
                            self._save(self._part)
                finally:
                    self._part.close()
                    self._part = None
                if self._hash:
                    self._uploads.keep_digest(self.upload, self.received, self._hash)
        if not why:
            self._uploads.closed(self)

    def _digest(self) -> hashlib._Hash:
        """The digest of the existing bytes. Call it without the lock, so that a call that takes over need not wait."""
        if self._hash is None:
            try:
                pieces = self._uploads.store.received(self.upload, self._row["pieces"])
                self._hash = _hash_of(pieces, lambda: self.closed)
            except FileNotFoundError as error:
                with self._lock:
                    self._expect_open()
                raise _gone(self.upload) from error
        return self._hash

    def _save(self, part: Part | Pieces) -> None:
        self._uploads.saved(self.upload, self.received, part.save())
        self._saved = self.received

    def _expect_open(self) -> Part | Pieces:
        if self._part is None:
            raise self._ended or _gone(self.upload)
        return self._part


def _gone(upload: str) -> Refusal:
    return Refusal("NOT_FOUND", f"uploads/{upload}: there is no such upload; it may have expired")


def _hash_of(pieces: Iterator[bytes], ended: Callable[[], bool]) -> hashlib._Hash:
    """The digest of all bytes; of some of them, without a use, if their call has ended meanwhile."""
    digest = hashlib.sha256()
    while not ended() and (piece := next(pieces, b"")):
        digest.update(piece)
    return digest
