"""When compiled code earns its load, which a process pays once, however many files it goes through."""

from __future__ import annotations


class Worth:
    """What has been done without compiled code so far; to be asked before each piece of work."""

    def __init__(self) -> None:
        self._without = 0

    def it(self, size: int, least: int) -> bool:
        """Whether to load it for work of this ``size``: ``least`` costs as much without it as the load does."""
        self._without += size
        return self._without >= least
