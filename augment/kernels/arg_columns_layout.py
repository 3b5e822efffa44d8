"""What a column has for a row, for Python and compiled code."""

from __future__ import annotations

ABSENT, PLAIN, CONVERTED, DROPPED = 0, 1, 2, 3  #: ABSENT for null, too
