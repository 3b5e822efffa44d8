"""How much of a trace a reader takes: for those who read files of strangers."""

from __future__ import annotations

from collections.abc import Collection

from augment.errors import LimitExceeded
from augment.records import dataclass

SMALL_TEXT = 64 << 20  #: bytes that any file may decompress to, whatever the ratio
NESTING = 128  #: far more than any profiler writes, and far less than JSON decoders stand
LEAST_NESTING = 16  #: compiled code looks at nothing that is nested less deeply


@dataclass(frozen=True, slots=True)
class Limits:
    """None means no limit.

    Attributes:
        text_bytes: most that the file may decompress to, and each layer of it.
        text_ratio: most that it may decompress to, in multiples of the file's size. Deflate cannot pass about 1032:1;
            a chain of containers that does is an attack.
        events: most events, or packets.
        name_bytes: longest string of the names, categories and identities.
        nesting: how deep the braces and brackets of a JSON event may nest, its own counted; of one that goes deeper
            nothing is taken, which a diagnostic counts. From :data:`LEAST_NESTING` on. Values in a native trace nest
            up to a depth of its reader's own, less than the default.
    """

    text_bytes: int | None = None
    text_ratio: int = 2_000
    events: int | None = None
    name_bytes: int | None = None
    nesting: int = NESTING

    def most_text(self, file_bytes: int) -> int:
        """How many bytes of text a file of this size may hold."""
        honest = max(SMALL_TEXT, self.text_ratio * file_bytes)
        return honest if self.text_bytes is None else min(self.text_bytes, honest)

    def expect_text(self, path: str, text_bytes: int, file_bytes: int) -> None:
        """Refuse a text that is too large.

        Raises:
            LimitExceeded: it is.
        """
        if text_bytes <= self.most_text(file_bytes):
            return
        if self.text_bytes is not None and text_bytes > self.text_bytes:
            raise LimitExceeded(path, f"decompresses to more than {self.text_bytes} bytes")
        raise LimitExceeded(path, f"decompresses to more than {self.text_ratio} times its size; not a trace")

    def expect_events(self, path: str, count: int) -> None:
        """Refuse too many events.

        Raises:
            LimitExceeded: there are.
        """
        if self.events is not None and count > self.events:
            raise LimitExceeded(path, f"has more than {self.events} events; record fewer steps")

    def expect_names(self, path: str, strings: Collection[str]) -> None:
        """Refuse a name that is too long.

        Raises:
            LimitExceeded: there is one.
        """
        if self.name_bytes is None:
            return
        longest = max(map(len, strings), default=0)
        if longest > self.name_bytes:
            raise LimitExceeded(path, f"has a name of {longest} characters; at most {self.name_bytes} are taken")


UNLIMITED = Limits()
