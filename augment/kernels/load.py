"""When compiled code earns its load, which a process pays once, however many files it goes through."""

from __future__ import annotations

from augment.kernels.native import Native, native


class Load:
    """The load of some compiled code, and how much has been done without it; asked before each piece of work."""

    def __init__(self) -> None:
        self._without = 0

    def pays(self, size: int, least: int) -> bool:
        """Whether to use it for work of this ``size``: ``least`` costs as much without it as the load does."""
        self._without += size
        return self._without >= least

    def native(self, name: str, size: int, least: int) -> Native | None:
        """See :func:`augment.kernels.native.native`; None if it does not pay."""
        return native(name) if self.pays(size, least) else None
