"""Formulas for operators that installed packages bring, by the entry points of the group ``kineto_augment.flops``.

An entry point is a list of rows as in ``[[flops]]`` of a file of tables. Operations and bytes may also be functions in
Python, which take an ``Arguments`` of ``formulas_custom``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from augment.derived.operators.formulas_custom import CustomFormula, formulas_of
from augment.errors import UsageError

GROUP = "kineto_augment.flops"


@cache
def installed_formulas() -> list[CustomFormula]:
    """The formulas of all installed packages, ordered by the names of the entry points.

    Raises:
        UsageError: an entry point cannot be loaded, or is no list of formulas.
    """
    from importlib import metadata

    formulas: list[CustomFormula] = []
    for point in sorted(metadata.entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        origin = f"{point.dist.name}'s entry point {point.name}" if point.dist else f"the entry point {point.name}"
        try:
            rows = point.load()
        except Exception as error:
            raise UsageError(f"{origin} ({GROUP}) cannot be loaded: {type(error).__name__}: {error}") from error
        if not isinstance(rows, (list, tuple)) or not all(isinstance(row, Mapping) for row in rows):
            raise UsageError(f"{origin} ({GROUP}) must be a list of rows such as {{'operator': '^lib::', 'flops': …}}")
        try:
            formulas += formulas_of(rows, origin)
        except UsageError as error:
            raise UsageError(f"{origin} ({GROUP}): {error}") from error
    return formulas
