"""The lease on a state directory: which server uses it, where the file system's lock does not tell.

A lock holds only among servers that see the same file through the same kernel: a server on another mount, or after
``rm lock``, gets a lock of its own. So each server writes a random id into the file ``lease`` and into the database,
renews the file each second, and reads both back. A server that starts touches nothing until it has seen that nobody
renews the file. A server that reads another's id has lost the directory: it stops, and commits nothing more.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from augment.errors import AugmentError

RENEW_S = 1.0
STALE_S = 6.0  #: a lease that was not renewed for this long has no server any more
_LOOK_S = 0.1
#: types of Linux file systems that other machines may write to, each with locks and a cache of its own
_NETWORK = {
    *(
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
    ),
    *("orangefs", "pvfs2", "smb3", "smbfs", "virtiofs"),
    *(
        "fuse.blobfuse2",
        "fuse.ceph-fuse",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.goofys",
        "fuse.juicefs",
        "fuse.rclone",
    ),
    *("fuse.s3fs", "fuse.seaweedfs", "fuse.sshfs"),
}


@dataclass(frozen=True, slots=True)
class Holder:
    """The server that holds a lease: its random id, where it runs, and the number of its process there."""

    id: str
    boot: str  #: of the machine since its start; empty if the system does not tell
    processes: str  #: the namespace of process numbers; empty if the system does not tell
    pid: int

    @classmethod
    def new(cls) -> Holder:
        """This process, with a new id."""
        return cls(secrets.token_hex(16), boot(), _processes(), os.getpid())

    @classmethod
    def of(cls, text: str) -> Holder | None:
        """The holder in a text of :meth:`text`; None for another text."""
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            return cls(**json.loads(text))
        return None

    def text(self) -> str:
        """The form in which file and database have it."""
        return json.dumps(asdict(self))

    def is_gone(self) -> bool:
        """Whether its process has certainly ended."""
        if not self.boot or (self.boot, self.processes) != (boot(), _processes()):
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return False


class Lease:
    """The lease on a folder, renewed by a thread until :meth:`release`.

    Args:
        folder: the state directory.
        used: whether it has been used, so that a missing file was removed.

    Raises:
        AugmentError: another server holds it.
    """

    def __init__(self, folder: Path, *, used: bool) -> None:
        self.holder = Holder.new()
        self._folder, self._file, self._aside = folder, folder / "lease", folder / f"lease-{self.holder.id}"
        self._ended, self._lost = threading.Event(), threading.Event()
        self._on_lost: Callable[[], None] = lambda: None
        self._expect_free(used)
        self._write(self.holder.text())
        self._thread = threading.Thread(target=self._renew, daemon=True, name="lease")
        self._thread.start()

    @property
    def lost(self) -> bool:
        """Whether another server has the directory now."""
        return self._lost.is_set()

    def when_lost(self, call: Callable[[], None]) -> None:
        """Have the thread call this once the lease is lost."""
        self._on_lost = call
        if self.lost:
            call()

    def lose(self) -> None:
        """Note that another server has the directory now."""
        if not self._lost.is_set():
            self._lost.set()
            self._on_lost()

    def release(self) -> None:
        """End the thread, and empty the file if it is this lease's."""
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            if self._read() == self.holder.text():
                self._write("")
        self._aside.unlink(missing_ok=True)

    def _expect_free(self, used: bool) -> None:
        """Wait until the last holder has certainly ended.

        Raises:
            AugmentError: it renews its lease.
        """
        text = self._read()
        holder = Holder.of(text or "")
        if text == "" or (text is None and not used) or (holder and holder.is_gone()):
            return
        last = self._renewed_ns()
        waited_ns = 0 if last is None else max(0, self._now_ns() - last)
        end = time.monotonic() + STALE_S - waited_ns / 1e9
        while time.monotonic() < end:
            time.sleep(_LOOK_S)
            if self._renewed_ns() != last:
                why = "another server uses it, through another mount or without its file lock; choose another folder"
                raise AugmentError(f"--state-dir {self._folder}: {why}")

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_S):
            with contextlib.suppress(OSError):  # of a disk that does not answer: the next time counts
                text = self._read()
                if text is None:
                    self._write(self.holder.text())
                elif text != self.holder.text():
                    self.lose()
                    return
                else:
                    os.utime(self._file)

    def _read(self) -> str | None:
        """What the file says: a holder, or nothing once it is released; None without a file."""
        try:
            return self._file.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None

    def _write(self, text: str) -> None:
        """Replace the file, at once."""
        self._aside.write_text(text, encoding="utf-8")
        os.replace(self._aside, self._file)

    def _renewed_ns(self) -> int | None:
        """When the file was renewed, by the clock of its file system; None without a file."""
        try:
            return self._file.stat().st_mtime_ns
        except FileNotFoundError:
            return None

    def _now_ns(self) -> int:
        """The time by the clock of the file system."""
        self._aside.touch()
        return self._aside.stat().st_mtime_ns


def boot() -> str:
    """A name of the time since the machine was started; empty if the system does not tell."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def _processes() -> str:
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def expect_local(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> None:
    """Refuse a folder on a network's file system, as far as the system tells.

    Raises:
        AugmentError: it lies on one.
    """
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return
    real, kind, longest = f"{os.path.realpath(folder)}/", "", 0
    for line in lines:
        fields = line.split(" ")  # ID PARENT DEVICE ROOT POINT OPTIONS … - TYPE SOURCE OPTIONS
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4]).rstrip("/") + "/"
        if real.startswith(point) and len(point) >= longest:  # of two at one point, the later covers the earlier
            kind, longest = fields[fields.index("-") + 1], len(point)
    if kind in _NETWORK:
        why = "its locks and its cache do not protect the database; choose a local disk, or say --network-state"
        raise AugmentError(f"--state-dir {folder}: lies on a network file system ({kind}): {why}")
