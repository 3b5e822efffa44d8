"""The registry of readers, and :func:`read`. To add one: a module beside this file, and two lines here."""

from __future__ import annotations

from typing import Protocol

from augment.errors import UnknownFormat
from augment.readers import chrome, perfetto
from augment.readers.containers import OpenText, open_text
from augment.readers.limits import UNLIMITED, Limits
from augment.readers.raw import Announce
from augment.trace import Trace

HEAD = 4096


class Reader(Protocol):
    """What a module in this folder offers."""

    NAME: str

    def recognizes(self, head: bytes) -> bool:
        """Whether a decompressed text that begins with ``head`` is this reader's."""

    def read(self, path: str, text: OpenText, head: bytes, announce: Announce, engine: str = "auto") -> Trace:
        """The trace in ``text``, of which ``head`` has been taken already."""


READERS: tuple[Reader, ...] = (chrome, perfetto)


def read(path: str, *, announce: Announce = lambda _: None, engine: str = "auto", limits: Limits = UNLIMITED) -> Trace:
    """Read one trace file, whatever its compression and dialect.

    Args:
        path: a plain, gzip, zstd or zip file; what it is is told from its content.
        announce: told, in a sentence, of what takes long.
        engine: how to read Chrome JSON: ``auto``, ``compiled`` (numba) or ``general``; the trace is the same.
        limits: how much of it is taken.

    Raises:
        InputError: there is no such file, or it may not be read.
        UnknownFormat: no reader recognises it.
        MalformedTrace: it is broken at a byte that is named.
        LimitExceeded: it is larger than ``limits`` allow.
    """
    with open_text(path, limits) as text:
        head = b""
        while len(head) < HEAD and (more := text.read(HEAD - len(head))):
            head += more
        if not head:
            raise UnknownFormat(path, text.damage or "the file is empty")
        for reader in READERS:
            if reader.recognizes(head):
                trace = reader.read(path, text, head, announce, engine)
                limits.expect_names(path, trace.strings)
                return trace
    raise UnknownFormat(path, f"neither Chrome JSON nor Perfetto's protobuf; it begins with {head[:12]!r}")
