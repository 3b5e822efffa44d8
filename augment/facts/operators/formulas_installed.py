"""Formulas for operators that installed packages bring, by the entry points of the group ``kineto_augment.flops``.

An entry point is a list of rows as in ``[[flops]]`` of a file of tables. Operations and bytes may also be functions in
Python, which take an ``Arguments`` of ``formulas_custom``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache

from augment.errors import UsageError
from augment.facts.operators.formulas_custom import CustomFormula, formulas_of

GROUP = "kineto_augment.flops"
_DESCRIPTIONS = (".dist-info", ".egg-info")  #: endings of the folders that describe installed packages


@cache
def installed_formulas() -> list[CustomFormula]:
    """The formulas of all installed packages, ordered by the names of the entry points.

    Raises:
        UsageError: an entry point cannot be loaded, or is no list of formulas.
    """
    if not _may_be_declared():
        return []
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


def _may_be_declared() -> bool:
    """Whether a package in a folder of Python's path has such an entry point, or lies in an archive.

    ``importlib.metadata`` would tell, but to load it takes a twentieth of the time of a small file.
    """
    for place in sys.path:
        if place.endswith(".egg") or os.path.isfile(place):
            return True
        with suppress(OSError):
            for name in os.listdir(place or "."):
                if name.endswith(_DESCRIPTIONS) and GROUP in _entry_points(os.path.join(place, name)):
                    return True
    return False


def _entry_points(package: str) -> str:
    """The text that declares the entry points of the package described in this folder."""
    with suppress(OSError), open(os.path.join(package, "entry_points.txt"), encoding="utf-8", errors="replace") as file:
        return file.read()
    return ""
