"""Writes the headers of a zip as its members are written, in the form that every reader supports (PKWARE's APPNOTE,
4.3).

``zipfile`` can only write a member that it compresses itself. The members here continue an existing file.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from augment.writers.checksums import NOTHING, Checked

STORED, DEFLATED = 0, 8
LIMIT = 1 << 32  #: the most bytes of a file or a member; larger ones need other headers

_VERSION = 20
_UTF8 = 0x800
_DATE = 1 << 5 | 1  #: always 1980-01-01
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_READABLE = 0o644 << 16


class Member(NamedTuple):
    """A member whose header is ``at`` a byte of the file; its ``text`` takes ``packed`` bytes behind that."""

    name: str
    method: int
    at: int
    text: Checked = NOTHING
    packed: int = 0

    @property
    def header(self) -> bytes:
        """The header before the member's bytes. Its size does not depend on them."""
        name, common = self._common()
        return _LOCAL.pack(b"PK\3\4", *common, len(name), 0) + name

    @property
    def entry(self) -> bytes:
        """The member's entry in the directory."""
        name, common = self._common()
        return _CENTRAL.pack(b"PK\1\2", 3 << 8 | _VERSION, *common, len(name), 0, 0, 0, 0, _READABLE, self.at) + name

    def _common(self) -> tuple[bytes, tuple[int, ...]]:
        name = self.name.encode("utf-8", "replace")
        flags = 0 if self.name.isascii() else _UTF8
        return name, (_VERSION, flags, self.method, 0, _DATE, self.text.crc, self.packed, self.text.size)


def directory(members: Sequence[Member], at: int) -> bytes:
    """The end of a zip: its directory, which begins ``at`` a byte of the file."""
    entries = b"".join(member.entry for member in members)
    return entries + _END.pack(b"PK\5\6", 0, 0, len(members), len(members), len(entries), at, 0)
