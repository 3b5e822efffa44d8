"""CRC-32 as arithmetic: computes the checksum of a text from those of its parts, and the reverse (RFC 1952)."""

from __future__ import annotations

import struct
from typing import NamedTuple

POLYNOMIAL = 0xEDB88320  #: of CRC-32, bits reversed
PERIOD = (1 << 32) - 1  #: the polynomial is primitive: after so many zero bytes (or bits) every checksum repeats
TRAILER = struct.Struct("<II")  #: a gzip member's CRC-32, and the size of its text modulo 2**32


class Checked(NamedTuple):
    """The CRC-32 and the size of a text."""

    crc: int
    size: int

    @property
    def trailer(self) -> bytes:
        """The gzip trailer of a member with this text."""
        return TRAILER.pack(self.crc, self.size % (1 << 32))

    def then(self, end: Checked) -> Checked:
        """The checksum of this text followed by ``end``."""
        return Checked(shifted_crc(self.crc, end.size) ^ end.crc, self.size + end.size)

    def without_end(self, end: Checked) -> Checked:
        """The checksum of this text without its ``end``."""
        return Checked(shifted_crc(self.crc ^ end.crc, -end.size), self.size - end.size)

    def without_beginning(self, beginning: Checked) -> Checked:
        """The checksum of this text without its ``beginning``."""
        size = self.size - beginning.size
        return Checked(self.crc ^ shifted_crc(beginning.crc, size), size)


NOTHING = Checked(0, 0)


def shifted_crc(crc: int, count: int) -> int:
    """The value of ``crc`` after ``count`` zero bytes, without the initial value: ``crc * x**(8 count)``.

    A negative ``count`` removes zero bytes.
    """
    count %= PERIOD
    power, square = 1 << 31, 1 << 23  # 1 and x**8, reversed
    while count:
        if count & 1:
            power = _product(power, square)
        square = _product(square, square)
        count >>= 1
    return _product(crc, power)


def _product(left: int, right: int) -> int:
    """The product of two polynomials over GF(2), modulo CRC-32's, bits reversed."""
    product = 0
    for bit in range(31, -1, -1):
        if left >> bit & 1:
            product ^= right
        right = (right >> 1) ^ (POLYNOMIAL if right & 1 else 0)
    return product
