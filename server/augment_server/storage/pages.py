"""Lists in pages. A token contains the entry before the page; only this server can read or make tokens."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from augment_server.base.errors import invalid
from augment_server.storage.catalog import Row
from augment_server.storage.filters import Condition, Fields, condition_of, order_of
from augment_server.storage.storage import Storage

MOST_PAGE, PAGE = 1000, 100
PAGE_BYTES = 1 << 20  #: approximate size of a response, well below gRPC's limit
MOST_BYTES = 3 << 20  #: the same for a list that is asked for as a whole: clients of gRPC take 4 MB
MOST_CPU_S = 5.0  #: how long the database may look for the entries of a page
_MOST_TOKEN = 4000  #: characters
_MAC_BYTES = 16


class _Message(Protocol):
    def ByteSize(self) -> int:  # noqa: N802 - protobuf's
        ...


M = TypeVar("M", bound=_Message)


@dataclass(frozen=True)
class Asked:
    """The requested page."""

    size: int = 0  #: 0: the default
    token: str = ""
    filter: str = ""
    order_by: str = ""

    @classmethod
    def of(cls, request: Any) -> Asked:
        """The page that a list request asks for."""
        return cls(request.page_size, request.page_token, request.filter, request.order_by)


def page(
    storage: Storage,
    table: str,
    fields: Fields,
    where: Condition,
    asked: Asked,
    message: Callable[[Row], M],
) -> tuple[list[M], str]:
    """Entries of a table, and the token of the next page.

    Args:
        storage: the database.
        table: a table with columns ``created_ns`` and ``id``.
        fields: the fields that filter and order may name.
        where: the condition for the entries that the caller may see.
        asked: the requested page.
        message: makes a message from a row.

    Raises:
        Refusal: the size, token, filter or order is invalid.
    """
    if asked.size < 0:
        raise invalid("page_size", "must not be negative")
    size, order = min(asked.size or PAGE, MOST_PAGE), order_of(asked.order_by, fields)
    conditions = [where, condition_of(asked.filter, fields)]
    scope = msgspec.json.encode([table, *where, asked.filter, asked.order_by])
    tokens = Tokens(storage.secret, scope)
    columns = ", ".join(f"{column} AS place{at}" for at, column in enumerate(order.columns))
    if asked.token:
        before = tokens.read(asked.token, {1, len(order.columns)})
        if len(before) == 1:  # its texts are too long for a token
            entry = storage.row(f"SELECT {columns} FROM {table} WHERE id = ?", *before)  # noqa: S608
            if entry is None:
                raise invalid("page_token", "its entry has been removed; begin the list again")
            before = list(entry)
        conditions.append(order.after(before))
    query = (
        f"SELECT id, {columns} FROM {table} WHERE {' AND '.join(sql for sql, _ in conditions)}"  # noqa: S608
        f" ORDER BY {order.sql} LIMIT ?"
    )
    values = [value for _, values in conditions for value in values]
    try:
        places = storage.rows(query, *values, size + 1, cpu_s=MOST_CPU_S)
    except TimeoutError as error:
        what = f"takes more than {MOST_CPU_S:g} s to look for; narrow it, by create_time for example"
        raise invalid("filter", what) from error
    entries, left, last = list[M](), PAGE_BYTES, None
    for at, place in enumerate(places):
        if at == size or left <= 0:
            assert last
            token = tokens.made([last[f"place{at}"] for at in range(len(order.columns))])
            return entries, token if len(token) <= _MOST_TOKEN else tokens.made([last["id"]])
        row = storage.row(f"SELECT * FROM {table} WHERE id = ?", place["id"])  # noqa: S608
        if row:  # it may have been removed meanwhile
            entries.append(message(row))
            left -= entries[-1].ByteSize()
        last = place
    return entries, ""


def page_of(storage: Storage, scope: str, entries: Sequence[M], asked: Asked) -> tuple[list[M], str]:
    """A page of entries that are all at hand, in their order, and the token of the next one.

    Args:
        storage: has the key of tokens.
        scope: what the list is of: tokens of others are refused.
        entries: all of them.
        asked: the requested page; a size of 0 is as many as fit into a message.

    Raises:
        Refusal: the size or token is invalid.
    """
    if asked.size < 0:
        raise invalid("page_size", "must not be negative")
    tokens = Tokens(storage.secret, scope.encode())
    begin = end = int(tokens.read(asked.token, {1})[0]) if asked.token else 0
    most, left = min(asked.size, MOST_PAGE) or len(entries), MOST_BYTES
    while end < len(entries) and end - begin < most and left > 0:
        left -= entries[end].ByteSize()
        end += 1
    return list(entries[begin:end]), tokens.made([end]) if end < len(entries) else ""


class Tokens:
    """Tokens of a list or watch: an authentication code, and the place, encrypted with a key stream of key and code."""

    def __init__(self, key: bytes, scope: bytes) -> None:
        self._key, self._scope = key, scope

    def made(self, place: Sequence[Any]) -> str:
        """The token of the page after ``place``."""
        text = msgspec.json.encode(place)
        code = self._code(text)
        return base64.urlsafe_b64encode(code + self._hidden(text, code)).decode().rstrip("=")

    def read(self, token: str, counts: Container[int], field: str = "page_token") -> list[Any]:
        """The place in a token, as many values as ``counts`` has.

        Raises:
            Refusal: the token is not of this list.
        """
        try:
            data = base64.b64decode(
                token[:_MOST_TOKEN] + "=" * (-len(token[:_MOST_TOKEN]) % 4), altchars=b"-_", validate=True
            )
            code, text = data[:_MAC_BYTES], self._hidden(data[_MAC_BYTES:], data[:_MAC_BYTES])
            place = msgspec.json.decode(text) if hmac.compare_digest(code, self._code(text)) else None
        except (binascii.Error, ValueError, msgspec.DecodeError):
            place = None
        if not isinstance(place, list) or len(place) not in counts:
            what = "must be the next_page_token of the same list, with the same filter and order"
            raise invalid(field, what if field == "page_token" else f"must be a {field} of the same list and server")
        return place

    def _code(self, text: bytes) -> bytes:
        return hashlib.blake2b(self._scope + b"\0" + text, key=self._key, digest_size=_MAC_BYTES).digest()

    def _hidden(self, text: bytes, code: bytes) -> bytes:
        stream = hashlib.shake_256(self._key + code).digest(len(text))
        return bytes(byte ^ other for byte, other in zip(text, stream, strict=True))
