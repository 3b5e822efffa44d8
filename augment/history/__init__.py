"""Figures of many runs: a store of them, the baseline that they make, and the runs where they changed."""

from __future__ import annotations

from augment.history.changes import Change, changes, series
from augment.history.store import Run, RunFigure, Store

__all__ = ["Change", "Run", "RunFigure", "Store", "changes", "series"]
