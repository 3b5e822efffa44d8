"""Idempotency: answered requests by ``request_id``, so that a repeated request is executed once.

Jobs store their own ``request_id``; those of other changes are stored here for a day.
"""

from __future__ import annotations

from typing import Any

from augment_server.base.errors import Refusal, invalid
from augment_server.base.people import Caller
from augment_server.storage.storage import Storage, now_ns

LIFE_NS = 24 * 3600 * 10**9
MOST_REQUEST_ID = 200


class Requests:
    """The answered requests. Every method may be called from any thread, and may block."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def known(self, caller: Caller, method: str, request_id: str, text: bytes) -> str | None:
        """The resource of the same request if it was answered; else None.

        Raises:
            Refusal: another request has this id, or it is too long.
        """
        if not request_id:
            return None
        expect_id(request_id)
        query = "SELECT text, resource FROM requests WHERE realm = ? AND method = ? AND request_id = ?"
        row = self._storage.row(query, caller.realm, method, request_id)
        if row is None:
            return None
        if row["text"] != text:
            raise _reused()
        return str(row["resource"])

    def is_removed(self, caller: Caller, method: str, request: Any) -> bool:
        """Whether the same request has removed its resource already.

        Raises:
            Refusal: another request has this id, or it is too long.
        """
        known = self.known(caller, method, request.request_id, b"")
        if known not in (None, request.name):
            raise _reused()
        return known is not None

    def remember(self, caller: Caller, method: str, request_id: str, text: bytes, resource: str) -> None:
        """Store an answered request."""
        if request_id:
            values = (caller.realm, method, request_id, text, resource, now_ns())
            anew = "text = excluded.text, resource = excluded.resource, at_ns = excluded.at_ns"
            known = "ON CONFLICT (realm, method, request_id) DO UPDATE"
            change = f"INSERT INTO requests VALUES (?, ?, ?, ?, ?, ?) {known} SET {anew}"  # noqa: S608
            with self._storage.writing() as db:
                db.execute(change, values)


def _reused() -> Refusal:
    what = "request_id: another request had the same; choose a new one"
    return Refusal("REQUEST_ID_REUSED", what, field_path="request_id")


def expect_id(request_id: str) -> None:
    """Check the length of an id.

    Raises:
        Refusal: it is too long.
    """
    if len(request_id) > MOST_REQUEST_ID:
        raise invalid("request_id", f"at most {MOST_REQUEST_ID} characters")
