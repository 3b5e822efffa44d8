"""The user's own rules for kernels of communication: ``[[collectives]]`` of a file of tables.

A kernel whose name a rule's ``pattern`` matches communicates, and is a collective of the rule's ``kind``. The user's
rules come before the package's, and the first that matches decides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from augment.core.attachments import tables_of
from augment.core.trace import Trace
from augment.errors import UsageError, expect_known
from augment.facts.names.collective_kinds import KINDS, OTHER

TABLE = "collectives"  #: the key of the rules
NAMES = (*dict.fromkeys(kind for _, kind in KINDS), OTHER)  #: the kinds that a rule may give


def collective_rules(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    """The rules as (pattern, kind).

    Raises:
        UsageError: a rule lacks a part, gives an unknown kind, or its pattern is no regular expression.
    """
    rules = []
    for row in rows:
        pattern, kind = row.get("pattern"), row.get("kind")
        if not isinstance(pattern, str) or not isinstance(kind, str):
            raise UsageError(f"a rule for collectives must have the texts pattern and kind, not {dict(row)}")
        expect_known(kind, NAMES, "kind of collective")
        try:
            _compiled(pattern)
        except re.error as error:
            raise UsageError(f"a rule for collectives: {pattern!r} is no regular expression: {error}") from error
        rules.append((pattern, kind))
    return tuple(rules)


def stated_kind(trace: Trace, kernel: str) -> str | None:
    """The kind that the user's rules give a kernel of that name; None if none matches."""
    rules = tables_of(trace).get(TABLE)
    return _stated(collective_rules(rules), kernel) if rules else None


@lru_cache(maxsize=4096)
def _stated(rules: tuple[tuple[str, str], ...], kernel: str) -> str | None:
    return next((kind for pattern, kind in rules if _compiled(pattern).search(kernel)), None)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)
