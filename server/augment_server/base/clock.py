"""The clock for the age of stored data. A jump of the system's clock does not expire everything at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_CATCH_UP = 10  #: while it is behind the time of day, it runs a tenth faster


class Clock:
    """Advances with the machine's monotonic clock, and is never ahead of the time of day.

    The time of day may be wrong after a jump or at the machine's start, so this clock approaches it slowly. Stored data
    is then kept longer, and never expires early by more than a tenth of its life, and ``pause_ns`` for each start.

    Args:
        saved_ns: the last saved time; None if there is none.
        pause_ns: at most this much of the time without a running server counts.
        time_of_day: the system's, in ns.
        monotonic: of the system, in ns.
    """

    def __init__(
        self,
        saved_ns: int | None,
        pause_ns: int,
        time_of_day: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._time_of_day, self._monotonic = time_of_day, monotonic
        now = time_of_day()
        self._now = now if saved_ns is None else min(now, saved_ns + pause_ns)
        self._asked = monotonic()
        self._lock = threading.Lock()

    def now_ns(self) -> int:
        """The time."""
        with self._lock:
            monotonic = self._monotonic()
            passed, self._asked = monotonic - self._asked, monotonic
            self._now = min(self._now + passed + passed // _CATCH_UP, self._time_of_day())
            return self._now
