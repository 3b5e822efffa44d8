"""The registry of rules. To add a rule: add a module to this folder and two lines to this file."""

from __future__ import annotations

from augment.diagnosis.rule import Rule
from augment.diagnosis.rules import (
    data_loading,
    exposed_communication,
    launch_bound,
    pageable_copies,
    synchronizing_calls,
)

RULES: tuple[Rule, ...] = (
    data_loading,
    synchronizing_calls,
    pageable_copies,
    launch_bound,
    exposed_communication,
)

__all__ = ["RULES", "Rule"]
