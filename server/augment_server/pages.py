"""Lists in pages, the newest first. A token names the last entry of a page, of which the caller has been told."""

from __future__ import annotations

import base64
import binascii
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from augment_server.errors import Refusal
from augment_server.storage import Storage

MOST_PAGE, PAGE = 1000, 100
_END = 1 << 62  #: ns: after all that will ever be created
_MOST_TOKEN = 200
PAGE_BYTES = 1 << 20  #: about so much in one answer, well under what gRPC takes


class _Message(Protocol):
    def ByteSize(self) -> int:  # noqa: N802 - protobuf's
        ...


M = TypeVar("M", bound=_Message)


def page(
    storage: Storage, query: str, values: Sequence[Any], size: int, token: str, message: Callable[[sqlite3.Row], M]
) -> tuple[list[M], str]:
    """Entries from the newest on, and the token of the next page.

    Args:
        storage: where they are.
        query: which they are, with columns ``created_ns`` and ``id``; to be gone on with ``AND``.
        values: of the query.
        size: how many, 0 for as many as usual.
        token: of this page.
        message: made of each row.

    Raises:
        Refusal: this is no token, or the size is negative.
    """
    if size < 0:
        raise Refusal("INVALID_REQUEST", "page_size must not be negative")
    size = min(size or PAGE, MOST_PAGE)
    order = "ORDER BY created_ns DESC, id DESC LIMIT ?"
    rows = storage.rows(f"{query} AND (created_ns, id) < (?, ?) {order}", *values, *_place(token), size + 1)
    entries: list[M] = []
    left = PAGE_BYTES
    for row in rows[:size]:
        if left <= 0:
            break
        entries.append(message(row))
        left -= entries[-1].ByteSize()
    return entries, _token(rows[len(entries) - 1]) if len(rows) > len(entries) else ""


def _token(row: sqlite3.Row) -> str:
    """When an entry was created, and its id: nothing that tells of others."""
    return base64.urlsafe_b64encode(f"{row['created_ns']}:{row['id']}".encode()).decode()


def _place(token: str) -> tuple[int, str]:
    if not token:
        return _END, ""
    try:
        created, _, name = base64.b64decode(token[:_MOST_TOKEN], altchars=b"-_", validate=True).decode().partition(":")
        place = int(created), name
    except (binascii.Error, ValueError):
        place = _END, ""
    if not 0 <= place[0] < _END:
        raise Refusal("INVALID_REQUEST", "page_token must be a next_page_token of the same list")
    return place
