"""The fields of a job that the caller sets for its handling: display name, labels, priority and deadline."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from augment.v1 import resources_pb2 as v1
from augment_server.base.errors import invalid
from augment_server.base.limits import Limits
from augment_server.storage.catalog import Row

MOST_DISPLAY_NAME, MOST_LABELS, MOST_LABEL = 200, 64, 63
MOST_PRIORITY = 10  #: above and below 0
PRIORITY_NS = 60 * 10**9  #: the head start in waiting time per level of priority
_KEY = re.compile(r"[a-z][a-z0-9_.-]{0,62}")
CHANGEABLE = frozenset({"display_name", "labels", "priority"})  #: what may change while the job exists
COLUMNS = "display_name, labels, priority, deadline_ms, due_ns"


@dataclass(frozen=True, slots=True)
class Card:
    """The fields as stored. ``deadline_ms`` is None if the server's limit applies."""

    display_name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    deadline_ms: int | None = None

    def values(self, created_ns: int) -> tuple[Any, ...]:
        """The values of :data:`COLUMNS`."""
        labels = msgspec.json.encode(dict(sorted(self.labels.items()))).decode()
        return self.display_name, labels, self.priority, self.deadline_ms, created_ns - self.priority * PRIORITY_NS

    @classmethod
    def of(cls, row: Row) -> Card:
        """The fields from a row of the table of jobs."""
        return cls(row["display_name"], msgspec.json.decode(row["labels"]), row["priority"], row["deadline_ms"])

    def tell(self, job: v1.Job) -> None:
        """Copy the fields into a message."""
        job.display_name, job.priority = self.display_name, self.priority
        job.labels.update(self.labels)
        if self.deadline_ms is not None:
            job.deadline.FromMilliseconds(self.deadline_ms)


def card_of(request: Any, limits: Limits) -> Card:
    """The fields from a request.

    Raises:
        Refusal: a field is too large or invalid.
    """
    card = changed_card(request)
    if not request.HasField("deadline"):
        return card
    deadline = request.deadline.seconds * 1000 + request.deadline.nanos // 10**6
    if not 0 < deadline <= limits.job_deadline_s * 1000:
        raise invalid("deadline", f"above 0, and at most the {limits.job_deadline_s:g} s of this server")
    return replace(card, deadline_ms=deadline)


def changed_card(request: Any) -> Card:
    """The :data:`CHANGEABLE` fields of a request.

    Raises:
        Refusal: a field is too large or invalid.
    """
    _expect_text("display_name", request.display_name, MOST_DISPLAY_NAME)
    if len(request.labels) > MOST_LABELS:
        raise invalid("labels", f"at most {MOST_LABELS}")
    for key, value in request.labels.items():
        if not _KEY.fullmatch(key):
            what = f"{key[:80]!r} is not a valid key: must be a-z, then up to 62 of a-z, 0-9, _, . and -"
            raise invalid("labels", what)
        _expect_text(f"labels.{key}", value, MOST_LABEL)
    if abs(request.priority) > MOST_PRIORITY:
        raise invalid("priority", f"from -{MOST_PRIORITY} to {MOST_PRIORITY}")
    return Card(request.display_name, dict(request.labels), request.priority)


def _expect_text(name: str, text: str, most: int) -> None:
    if len(text) > most or not (text.isprintable() or not text):
        raise invalid(name, f"at most {most} printable characters")
