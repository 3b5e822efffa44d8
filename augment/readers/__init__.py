"""The registry of readers, and :func:`read`. To add one: a module beside this file, and two lines here."""

from __future__ import annotations

import os
from typing import Protocol

from augment.core import Trace
from augment.errors import UnknownFormat
from augment.readers import chrome, containers, perfetto, recorded, recorders, stage_timeline
from augment.readers.containers import OpenText, open_text
from augment.readers.limits import UNLIMITED, Limits

HEAD = 4096


class Reader(Protocol):
    """What a module in this folder offers."""

    NAME: str
    SUFFIXES: tuple[str, ...]  #: the endings of such file names, without the suffix of a compression

    def recognizes(self, head: bytes) -> bool:
        """Whether a decompressed text that begins with ``head`` is this reader's."""

    def layout(self, head: bytes) -> str:
        """The form of the format that the text beginning with ``head`` has, for ``augment doctor``."""

    def read(self, path: str, text: OpenText, head: bytes) -> Trace:
        """The trace in ``text``. The bytes in ``head`` were already read from it."""


#: the first reader that recognises a text reads it
READERS: tuple[Reader, ...] = (recorded, stage_timeline, recorders.NSIGHT, recorders.ROCPROF, chrome, perfetto)


def suffixes() -> tuple[str, ...]:
    """The endings of names of files that may be traces, compressed or not."""
    of_readers = (suffix for reader in READERS for suffix in reader.SUFFIXES)
    return tuple(dict.fromkeys((*of_readers, *containers.SUFFIXES)))


def read(path: str | os.PathLike[str], *, limits: Limits = UNLIMITED, threads: int = 1) -> Trace:
    """Read one trace file, whatever its compression and dialect.

    Args:
        path: a plain, gzip, zstd or zip file; its content decides which.
        limits: how much of the file is read.
        threads: with two or more, one decompresses while another decodes. The result does not depend on it.

    Raises:
        InputError: the file does not exist, or access is denied.
        UnknownFormat: no reader recognises it.
        MalformedTrace: it is broken at a known byte.
        LimitExceeded: it is larger than ``limits`` allow.
    """
    path = os.fspath(path)
    with open_text(path, limits) as text:
        head = containers.at_least(text, HEAD)
        if not head:
            raise UnknownFormat(path, text.damage or "the file is empty")
        if not recorded.recognizes(head) and (known := containers.described(path, head)):
            raise UnknownFormat(path, known)
        text.share(threads)
        for reader in READERS:
            if reader.recognizes(head):
                trace = reader.read(path, text, head)
                limits.expect_names(path, trace.strings)
                limits.expect_tracks(path, trace.tracks)
                limits.expect_described(path, trace.source.metadata.get("deviceProperties"))
                return trace
        if (log := recorded.read_log(path, text, head)) is not None:
            return log
    start = head[:12]
    shown = repr(start.decode()) if start.isascii() else f"bytes {start.hex(' ')}"
    raise UnknownFormat(path, f"not a trace: it starts with {shown}; docs/formats.md lists the formats")
