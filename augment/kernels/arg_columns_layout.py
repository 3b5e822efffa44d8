"""The flags of a column's entries, shared by Python and compiled code."""

from __future__ import annotations

ABSENT, PLAIN, CONVERTED, DROPPED = 0, 1, 2, 3  #: ABSENT also stands for null
