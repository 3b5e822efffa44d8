"""Roles of the processes of a pipeline, told by the names of folders and files: those of reinforcement learning, and of
servers that prefill and decode apart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from augment.errors import UsageError

TABLE = "role"  #: key of the user's own rows
ROLLOUT, ACTOR, CRITIC = "rollout", "actor", "critic"
#: roles, and patterns of the words that tell them (case does not matter): a name of several roles tells none
ROLES: tuple[tuple[str, str], ...] = (
    (ROLLOUT, r"rollouts?|generators?|generation|samplers?"),
    (ACTOR, r"actors?|(?<!ref_)(?<!reference_)(?:policy|learner|trainer)"),
    (CRITIC, r"critics?"),
    ("reference", r"refs?|reference"),
    ("reward", r"rewards?|verifiers?"),
    ("prefill", r"prefill"),
    ("decode", r"decode"),
)
_SEPARATORS = re.compile(r"[-. ]+")

Rules = tuple[tuple[str, str], ...]


def role_rules(rows: Sequence[Mapping[str, Any]]) -> Rules:
    """The user's own rules: a pattern, which matches anywhere in a name, and its role.

    Raises:
        UsageError: a row has another form.
    """
    rules = []
    for row in rows:
        role, pattern = row.get("role"), row.get("pattern")
        if not isinstance(role, str) or not isinstance(pattern, str) or not role or row.keys() - {"role", "pattern"}:
            raise UsageError(f"[[{TABLE}]] needs role = '…' and pattern = '…'")
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(f"[[{TABLE}]] {pattern}: {error}") from error
        rules.append((role, pattern))
    return tuple(rules)


def place_of_role(role: str) -> int:
    """Where a role stands among :data:`ROLES`; those of the user's own come last."""
    return next((place for place, (name, _) in enumerate(ROLES) if name == role), len(ROLES))


@lru_cache(maxsize=4096)
def role_of(name: str, rules: Rules = ()) -> str:
    """The role that the name of a folder or file tells; empty if it tells none, or several.

    The user's ``rules`` come first: the first that matches decides.
    """
    for role, pattern in rules:
        if re.search(pattern, name, re.IGNORECASE):
            return role
    words = _SEPARATORS.sub("_", name)
    told_by = {
        role for role, words_of in ROLES if re.search(rf"(?<![a-z0-9])(?:{words_of})(?![a-z])", words, re.IGNORECASE)
    }
    return told_by.pop() if len(told_by) == 1 else ""
