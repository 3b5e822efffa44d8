"""The state directory: its lock, its folders, its database.

::

    lock           held by the server that uses the directory
    lease          which server that is, renewed by it each second (:mod:`lease`)
    state.db       the records of uploads, jobs, artifacts (:mod:`catalog`)
    closed         how state.db was left by the last server, if that ended in order
    catalog        instead of it: whose id the catalog outside the directory has
    work/SERVER.ID/       the folder of a server's worker: the outputs of its attempts at jobs
    work/SERVER.ID.given/ links to their inputs, which the worker can only read
    reserve        room for the removal of data when the disk is full
    …              the bytes (:mod:`folder`)

Rows are written before files are moved, under one lock. A server that was killed in between finds the intended move
in the database and completes it at its next start (:mod:`retention`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from augment.errors import AugmentError
from augment_server.base.errors import disk_is_full
from augment_server.storage.catalog import FORM, Embedded
from augment_server.storage.folder import Folder, remove, sync_folder
from augment_server.storage.lease import Lease, expect_local

if TYPE_CHECKING:
    from augment_server.storage.bucket import Bucket
    from augment_server.storage.postgres import Postgres

Store: TypeAlias = "Folder | Bucket"
T = TypeVar("T")
CATALOG = "catalog"  #: the file that says which catalog outside the directory has its rows
_CLOSED = "closed"
_FOLDERS = ("parts", "blobs", "work", "ranks", "artifacts")


_RESERVE_BYTES = 1 << 20  #: for a full disk: two deletions write much less


class Storage:
    """The opened state directory, locked until :meth:`close`.

    ``catalog`` has its rows; its ``rows``, ``row``, ``writing`` and ``lock`` are this object's, too.

    Args:
        root: the directory.
        repair: if the database is missing or unusable, move it aside with all files, and start empty.
        network: whether the directory may lie on a network's file system.
        catalog: the URL of a PostgreSQL database with the rows: several servers may use it and the directory
            together. Empty: a database in the directory, for one server.

    Raises:
        AugmentError: another server uses the directory, it is not writable or not on one disk, or its database is
            unusable.
    """

    def __init__(self, root: Path, *, repair: bool = False, network: bool = False, catalog: str = "") -> None:
        self.root = root.absolute()  # symbolic links in other folders contain it
        self.lease: Lease | None = None
        with contextlib.ExitStack() as undo:
            try:
                root.mkdir(parents=True, exist_ok=True, mode=0o700)
                if not (network or catalog):
                    expect_local(root)
                self._lock_file = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise AugmentError(f"--state-dir {root}: {(error.strerror or str(error)).lower()}") from error
            undo.callback(os.close, self._lock_file)
            try:
                fcntl.flock(self._lock_file, (fcntl.LOCK_SH if catalog else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError as error:
                others = "a server without --catalog" if catalog else "another server"
                raise AugmentError(f"--state-dir {root}: {others} uses it; choose another folder") from error
            except OSError as error:
                what = (error.strerror or str(error)).lower()
                if not catalog:
                    raise AugmentError(f"--state-dir {root}: its file system has no locks ({what})") from error
            try:
                self.catalog: Embedded | Postgres = (
                    self._shared(catalog, repair) if catalog else self._embedded(repair, undo)
                )
            except (OSError, sqlite3.Error) as error:
                raise AugmentError(f"--state-dir {root}: cannot be used: {error}") from error
            self._reserve()
            undo.pop_all()
        self.lock, self.writing, self.changing = self.catalog.lock, self.catalog.writing, self.catalog.changing
        self.local = Folder(self.root, self.lock)
        self.store: Store = self.local  #: of uploads and outputs
        self.rows, self.row, self.secret = self.catalog.rows, self.catalog.row, self.catalog.secret

    def _embedded(self, repair: bool, undo: contextlib.ExitStack) -> Embedded:
        root = self.root
        self.lease = Lease(root, used=(root / "state.db").exists())
        undo.callback(self.lease.release)
        if (root / CATALOG).exists():
            raise AugmentError(f"--state-dir {root}: its catalog is in PostgreSQL; say --catalog")
        if repair and self._fault():
            self._put_aside()
        self._make_folders(self.lease.holder.id)
        if fault := self._fault():
            advice = "restore state.db from a backup, or start once with --repair, which moves all files aside"
            raise AugmentError(f"--state-dir {root}: cannot be used: {fault}; {advice}")
        catalog = Embedded(root / "state.db", self.lease)
        #: whether the machine has run since the last server: what that wrote is there, synced or not
        self.is_same_boot = catalog.is_same_boot
        return catalog

    def _shared(self, url: str, repair: bool) -> Postgres:
        """The catalog at a URL, if the directory is its, or is empty."""
        try:
            from augment_server.storage.postgres import opened
        except ModuleNotFoundError as error:
            if error.name != "psycopg":
                raise
            raise AugmentError("--catalog needs psycopg: pip install 'kineto-augment-server[postgres]'") from error
        root = self.root
        if repair:
            raise AugmentError("--repair: is for the database of a --state-dir alone; restore --catalog from a backup")
        if (root / "state.db").exists():
            raise AugmentError(f"--state-dir {root}: has a catalog of its own, state.db; choose another folder")
        catalog, self.is_same_boot = opened(url), False
        try:
            mark = root / CATALOG
            with catalog.lock:
                self._make_folders(catalog.server)
                if not mark.exists():
                    if any(next((root / folder).iterdir(), None) for folder in ("artifacts", "blobs", "parts")):
                        raise AugmentError(f"--state-dir {root}: has files of another catalog; choose another folder")
                    mark.write_text(catalog.id, encoding="ascii")
                if mark.read_text(encoding="ascii") != catalog.id:
                    raise AugmentError(f"--state-dir {root}: belongs to another catalog; choose another folder")
        except BaseException:
            catalog.close()
            raise
        return catalog

    def _make_folders(self, probe: str) -> None:
        for folder in _FOLDERS:
            (self.root / folder).mkdir(exist_ok=True, mode=0o700)
        self._expect_one_disk(probe)

    def _expect_one_disk(self, probe: str) -> None:
        """Move a file through all folders, as uploads and outputs are later.

        Raises:
            AugmentError: a folder lies on another disk.
        """
        first, *others = (self.root / folder / f"probe-{probe}" for folder in _FOLDERS)
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
            known = self._is_as_closed()
            with contextlib.closing(sqlite3.connect(path)) as database:
                (form,) = database.execute("PRAGMA user_version").fetchone()
                (answer,) = ("ok",) if known else database.execute("PRAGMA quick_check(1)").fetchone()
                tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        except sqlite3.DatabaseError as error:
            return str(error)
        if answer != "ok":
            return f"state.db is damaged: {answer}".replace("\n", " ")
        if form > FORM or (tables and not tables >= {"uploads", "jobs", "artifacts"}):
            return "state.db belongs to a later version or another program"
        return ""

    def _is_as_closed(self) -> bool:
        """Whether the database is the one that a server has closed in order, and nobody has written to since.

        Only then need it not be read as a whole. From now on it counts as not closed.
        """
        mark = self.root / _CLOSED
        alone = mark.exists() and not (self.root / "state.db-wal").exists()
        known = alone and mark.read_text(encoding="ascii", errors="replace") == self._seal()
        mark.unlink(missing_ok=True)
        sync_folder(self.root)  # else a loss of power could bring it back, beside a database that was written to
        return known

    def _seal(self) -> str:
        """What changes when anybody writes to the database, or puts another one in its place."""
        status = (self.root / "state.db").stat()
        return f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns}"

    def _put_aside(self) -> None:
        aside = self.root / f"aside-{time.time_ns()}"
        aside.mkdir(mode=0o700)
        for name in (*_FOLDERS, "state.db", "state.db-wal", "state.db-shm"):
            if (self.root / name).exists():
                os.rename(self.root / name, aside / name)

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

    def free_bytes(self) -> int:
        """The free bytes of the disk."""
        disk = os.statvfs(self.root)
        return disk.f_bavail * disk.f_frsize

    def work(self, worker: str) -> Path:
        """The folder of one worker of this server."""
        return self.root / "work" / f"{self.catalog.server}.{worker}"

    def use_store(self, url: str) -> None:
        """Have the bytes in the store at ``url``, or here if it is empty; for good.

        Raises:
            AugmentError: the bytes lie elsewhere, the store is that of another state directory, or it does not answer.
        """
        where = self.row("SELECT value FROM secrets WHERE name = 'store'")
        if not url and where:
            raise AugmentError(
                f"--state-dir {self.root}: its bytes lie in {bytes(where['value']).decode()}; add --store with it"
            )
        if not url:
            return
        is_new = not self.row("SELECT id FROM uploads UNION ALL SELECT id FROM jobs LIMIT 1")
        if not (where or is_new):
            raise AugmentError(
                f"--state-dir {self.root}: its bytes lie there, so --store needs another one, which is new"
            )
        try:
            from augment_server.storage.bucket import Bucket
        except ImportError as error:
            raise AugmentError("--store needs obstore: pip install 'kineto-augment[store]'") from error
        self.store = Bucket(url, self.root / "work", store_owner(self.secret), is_new=is_new)
        with self.writing() as db:
            change = "INSERT INTO secrets VALUES ('store', ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
            db.execute(change, (url.encode(),))

    def close(self) -> None:
        """Close the database, and release the directory."""
        self.store.close()
        self.catalog.close()
        if self.lease:
            if not self.lease.lost:
                with contextlib.suppress(OSError):  # of a full disk: then the next start reads it all
                    (self.root / _CLOSED).write_text(self._seal(), encoding="ascii")
            self.lease.release()
        os.close(self._lock_file)


def store_owner(secret: bytes) -> str:
    """By what a store knows the catalog with this secret."""
    return hashlib.sha256(b"store" + secret).hexdigest()


def now_ns() -> int:
    """The time of day, ns since 1970."""
    return time.time_ns()
