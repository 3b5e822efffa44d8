"""A user's own tables in addition to the package's: rules for kernels, formulas for operators, names of steps
and roles, peaks of devices.

::

    trace = augment.with_tables(augment.read("rank0.json.gz"), "ours.toml")

with such a file::

    [[kernel]]
    family = "attention"
    pattern = "my_attention"

The user's rules come before the package's; rules of an earlier file come before those of a later one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from augment.core import Trace, toml
from augment.core.attachments import Tables
from augment.errors import UsageError, expect_known
from augment.facts.gpu.kernel_families import RULES, rules_of
from augment.facts.names import COLLECTIVES_TABLE as COLLECTIVES
from augment.facts.names import ROLES_TABLE as ROLES
from augment.facts.names import collective_rules, role_rules
from augment.facts.operators import peaks
from augment.facts.operators.formulas_custom import formulas_of
from augment.facts.steps.engine_steps import REGION, step_rows
from augment.facts.steps.engine_steps import TABLE as STEPS

__all__ = ["TABLES", "read_tables", "with_tables"]

TABLES = (*RULES, COLLECTIVES, STEPS, ROLES, "flops", "peak")  #: what a file may have


def with_tables(trace: Trace, *paths: str | os.PathLike[str], peaks: Sequence[str] = (), region: str = "") -> Trace:
    """``trace`` with the tables in the files at ``paths``; its analyses use them.

    Args:
        trace: the recording.
        paths: of files of tables.
        peaks: single figures of devices, as ``--peak`` takes them: ``bf16=400``, ``H100:memory_gbps=3000``.
        region: the annotation or operator whose occurrences are the steps, or a pattern with ``*`` and ``?``.

    Raises:
        UsageError: a file cannot be read or holds something else.
    """
    if not paths and not peaks and not region:
        return trace
    return trace.changed(Tables(read_tables([os.fspath(path) for path in paths], peaks, region)))


def read_tables(
    paths: Sequence[str], peak_values: Sequence[str] = (), region: str = ""
) -> dict[str, list[dict[str, Any]]]:
    """The tables in the files at ``paths``, by their key, the single figures of devices, and what ``region`` names.

    Raises:
        UsageError: as for :func:`with_tables`.
    """
    tables: dict[str, list[dict[str, Any]]] = {}
    for path in paths:
        document = toml.read_toml(path)
        for key, rows in document.items():
            expect_known(key, TABLES, "table")
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise UsageError(f"{path}: {key} must be a list of tables: write [[{key}]]")
            tables.setdefault(key, []).extend(rows)
        try:
            rules_of(document)
            step_rows(document.get(STEPS, ()))
            collective_rules(document.get(COLLECTIVES, ()))
            role_rules(document.get(ROLES, ()))
            formulas_of(document.get("flops", ()))
            peaks.rows_of(document.get("peak", ()))
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error
    if peak_values:
        tables[peaks.VALUES] = [dict(value) for value in peaks.values_of(peak_values)]
    if region:
        tables[STEPS] = [{REGION: region}, *tables.get(STEPS, ())]
    return tables
