"""Options that several commands share."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from augment.cli.terminal import say
from augment.core.attachment_kinds import KINDS
from augment.errors import AugmentError, UsageError, unabridged

if TYPE_CHECKING:
    from augment.client import Client
    from augment.pipeline.request import Request

Function = TypeVar("Function", bound=Callable[..., Any])


#: parameters of commands by the heading of the help that they stand below; all others stand below "Options"
HEADINGS = {
    "What is analysed": ("only", "skip", "options", "steps", "region", "ranks", "shard", "parallelism", "trust_clocks"),
    "Files beside a trace": (
        *("execution_trace", "graph_capture", "memory_timeline"),
        *("control_graph_capture", "test_graph_capture", "tables", "peaks"),
    ),
    "One timeline of all ranks": ("merge", "no_align", "whole_timeline"),
    "Where and how": ("jobs", "threads", "memory", "scheduler", "server"),
}


class GroupedCommand(click.Command):
    """A command whose help lists its options below :data:`HEADINGS`."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those below no heading first."""
        heading_of = {name: heading for heading, names in HEADINGS.items() for name in names}
        groups: dict[str, list[tuple[str, str]]] = {heading: [] for heading in ("Options", *HEADINGS)}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)):
                groups[heading_of.get(parameter.name or "", "Options")].append(record)
        for heading, records in groups.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


class FromStdin(str):
    """The path of a file that holds what came on standard input."""


def as_given(path: str) -> str:
    """A path as the command line has it: ``-`` for standard input."""
    return "-" if isinstance(path, FromStdin) else path


class _TraceName(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """A path or URL; ``-`` is standard input, copied to a temporary file (``TMPDIR``): a trace is read twice."""

    name = "file"

    def convert(self, value: str, _param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name of a file."""
        if value != "-":
            return value
        import shutil
        import sys
        import tempfile

        assert ctx
        folder = ctx.with_resource(tempfile.TemporaryDirectory(prefix="augment-"))
        path = f"{folder}/stdin"
        with open(path, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
        return FromStdin(path)


TRACE = _TraceName()  #: the type of arguments that name traces


#: ``cli.main`` reads it from the arguments
debug = click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors.")


def row_limit(rows: int | None, text: str = "Maximum rows of a table; 0: all.") -> Callable[[Function], Function]:
    """``--limit``, by default ``rows``."""
    return click.option("--limit", type=click.IntRange(min=0), default=rows, show_default=True, metavar="N", help=text)


def listed(_context: click.Context, _parameter: click.Parameter, values: Sequence[str]) -> tuple[str, ...]:
    """The names of ``--only a,b --only c``, each once."""
    names = (name.strip() for value in values for name in value.split(","))
    return tuple(dict.fromkeys(name for name in names if name))


def labels_option(text: str) -> Callable[[Function], Function]:
    """``--label KEY=VALUE``; the command gets a dict ``labels``."""
    return click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", callback=_labels, help=text)


def _labels(_context: click.Context, _parameter: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    parts = {text: text.partition("=") for text in values}
    for text, (key, equals, _) in parts.items():
        if not equals or not key.strip():
            raise UsageError(f"--label {text}: must be KEY=VALUE, such as branch=main")
    return {key.strip(): value.strip() for key, _, value in parts.values()}


def first_and_last(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """The numbers in ``3-5``, or in ``4``."""
    if value is None:
        return None
    first, dash, last = (part.strip() for part in value.partition("-"))
    if not first.isdecimal() or not (last.isdecimal() if dash else not last) or int(last or first) < int(first):
        raise UsageError(f"--steps {value}: must be the number of a step, such as 4, or a first and last, such as 3-5")
    return int(first), int(last or first)


_SPAN = re.compile(r"(\d+)(?:-(\d+))?")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([MGT])(?:I?B)?")
_PERIOD = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:-\s*(\d+(?:\.\d+)?)\s*)?")


def period(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[float, float] | None:
    """The begin and end in ``120-180``, ms."""
    if value is None:
        return None
    match = _PERIOD.fullmatch(value)
    if not match or match[2] is None or float(match[1]) >= float(match[2]):
        raise UsageError(f"--time {value}: must be a start and an end in ms, such as 120-180.5")
    return float(match[1]), float(match[2])


def moment(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[float, float] | None:
    """The begin and end in ``120-180``, ms; for a moment, such as ``120``, both are equal."""
    if value is None:
        return None
    match = _PERIOD.fullmatch(value)
    if not match or float(match[2] or match[1]) < float(match[1]):
        raise UsageError(f"--at {value}: must be a moment in ms, such as 120.5, or a start and an end, such as 120-180")
    return float(match[1]), float(match[2] or match[1])


def sizes(_context: click.Context, _parameter: click.Parameter, value: str | None) -> dict[str, int]:
    """The numbers in ``tp=4,dp=2``."""
    if value is None:
        return {}
    from augment.job.ranks.dimension_names import stated

    return stated(value)


def complete_analysis(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the last of a comma-separated list of names of analyses (``--only steps,…``)."""
    from augment import analyses

    return _completed(incomplete, [analysis.NAME for analysis in analyses.ANALYSES])


def complete_format(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the last of a comma-separated list of names of writers."""
    from augment import writers

    return _completed(incomplete, [writer.NAME for writer in writers.WRITERS])


def _completed(incomplete: str, known: list[str]) -> list[str]:
    listed, comma, begun = incomplete.rpartition(",")
    return [f"{listed}{comma}{name}" for name in known if name.startswith(begun)]


def analyses_of(names: Iterable[str], known: Collection[str] | None = None) -> tuple[str, ...]:
    """Replace each unique prefix of an analysis's name by the name, and report that on stderr. Other names stay
    unchanged, so that their use raises the error."""
    from augment.cli.terminal import complain

    names = tuple(names)
    if not names:
        return ()
    if known is None:
        from augment import analyses

        known = [analysis.NAME for analysis in analyses.ANALYSES]
    full = tuple(unabridged(name, known) for name in names)
    for name, whole in zip(names, full, strict=True):
        if name != whole:
            complain(f"{name}: taken as {whole}")
    return tuple(dict.fromkeys(full))


def formats_of(names: Iterable[str]) -> tuple[str, ...]:
    """The names of writers, each once.

    Raises:
        UsageError: a name matches no writer.
    """
    names = tuple(names)
    if not names:
        return ()
    from augment import writers

    return tuple(dict.fromkeys(writers.writer_named(name).NAME for name in names))


def memory_option(text: str) -> Callable[[Function], Function]:
    """``--memory``, described by ``text``."""
    return click.option("--memory", callback=_memory, metavar="SIZE", help=text)


def _memory(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip().upper())
    if not match:
        raise click.BadParameter(f"{text!r} is not a size, such as 4G or 800M")
    return int(float(match[1]) * (1 << {"M": 20, "G": 30, "T": 40}[match[2]]))


#: ``--memory`` of a command with one process
memory_of_one = memory_option(
    "Most memory, such as 4G. If the traces may need more, arrays lie on the disk of the output folder: slower, with "
    "the same results.  [default: no bound]"
)


def ranks_of(_context: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[range, ...]:
    """The ranks that an option lists, such as ``0,8,16-23``.

    Raises:
        BadParameter: it is no such list.
    """
    if text is None:
        return ()
    spans = [_SPAN.fullmatch(part.strip()) for part in text.split(",")]
    ranks = tuple(range(int(span[1]), int(span[2] or span[1]) + 1) for span in spans if span)
    if len(ranks) < len(spans) or not all(ranks):
        raise click.BadParameter(f"{text!r} is not a list of ranks, such as 0,8,16-23")
    return ranks


#: ``--ranks``
ranks_option = click.option("--ranks", callback=ranks_of, metavar="0,8,16-23", help="Only traces of these ranks.")

#: ``--trust-clocks``
trust_option = click.option(
    "--trust-clocks",
    is_flag=True,
    help="Trust the hosts' clocks (to about 1 ms), and so compare ranks that share no collective.",
)


def requesting(*, formats: bool = False) -> Callable[[Function], Function]:
    """Adds the options that make a :class:`Request`; the command gets it as the argument ``request``.

    Args:
        formats: whether the command writes traces and so supports ``--to``.
    """

    def decorated(function: Function) -> Function:
        @functools.wraps(function)
        def command(*args: Any, **values: Any) -> Any:
            return function(*args, request=_request({name: values.pop(name) for name in names}), **values)

        names = ["only", "skip", "options", "steps", "tables", "peaks", "price", "region"]
        names += [*(kind.name for kind in KINDS), *["formats"] * formats]
        for option in (*_REQUEST, *[_FORMATS] * formats):
            command = option(command)
        return command  # type: ignore[return-value]

    return decorated


tables_option = click.option(
    "--tables",
    metavar="FILE",
    multiple=True,
    help="A TOML file with your own rules for kernels, which precede the built-in rules; repeatable.",
)
peaks_option = click.option(
    "--peak",
    "peaks",
    metavar="[DEVICE:]NAME=VALUE",
    multiple=True,
    help="The peak of devices with DEVICE in their names: bf16=989.4 in 10^12 operations per second, memory_gbps=3350; "
    "repeatable.",
)


_REQUEST: tuple[Callable[..., Any], ...] = (
    *(click.option(f"--{kind.option}", metavar="FILE", help=kind.help) for kind in reversed(KINDS)),
    peaks_option,
    click.option("--price", default="", metavar="PRICE", help="The price of a GPU hour: what steps and findings cost."),
    tables_option,
    click.option(
        "--region",
        default="",
        metavar="NAME",
        help="Use each occurrence of this annotation or operator as a step; may have * and ?.",
    ),
    click.option(
        "--steps",
        metavar="N[-M]",
        callback=first_and_last,
        help="Analyse only these steps, with the GPU work that they launch.",
    ),
    click.option(
        "--option",
        "options",
        multiple=True,
        metavar="ANALYSIS.NAME=VALUE",
        help="Set an option of an analysis (see augment list); repeatable.",
    ),
    click.option(
        "--skip",
        multiple=True,
        metavar="NAME,…",
        callback=listed,
        shell_complete=complete_analysis,
        help="Leave these analyses out.",
    ),
    click.option(
        "--only",
        multiple=True,
        metavar="NAME,…",
        callback=listed,
        shell_complete=complete_analysis,
        help="Run only these analyses.",
    ),
)
_FORMATS = click.option(
    "--to",
    "formats",
    multiple=True,
    metavar="FORMAT,…",
    callback=listed,
    shell_complete=complete_format,
    help="Output formats (see augment list).  [default: perfetto]",
)


def _request(values: dict[str, Any]) -> Request:
    """The request that the options make.

    Raises:
        UsageError: an option of an analysis has another form or type.
    """
    from augment.pipeline.request import Request, option_values
    from augment.readers.attachments import Evidence

    values["only"], values["skip"] = analyses_of(values["only"]), analyses_of(values["skip"])
    if "formats" in values:
        values["formats"] = formats_of(values["formats"])
    evidence = Evidence({kind.name: values.pop(kind.name) for kind in KINDS})
    price = values.pop("price")
    price = (f"cost.price={price}",) if price else ()
    return Request(**{**values, "options": option_values([*values["options"], *price])}, evidence=evidence)


DONE_IN_PART = 5  #: the exit code where nothing failed, but not all was done that was asked for
_MOST_LINKS = 5
_FILE = click.Path(dir_okay=False, path_type=Path)


#: the settings of a client with an option and a variable each
_SETTINGS = {
    **dict.fromkeys(("tls-key", "tls-cert", "tls-ca", "token-file"), _FILE),
    "patience": click.FloatRange(min=0),
    "project": str,
}

#: ``--server``, of commands that take a client's other settings from the environment alone
server_option = click.option(
    "--server",
    metavar="grpc[s]://HOST:PORT",
    help="Run on this server (augment serve), with TLS if grpcs. AUGMENT_TOKEN_FILE names a file with the token; "
    "docs/service.md lists the other variables.",
)


def server_options(function: Function) -> Function:
    """``--server``; and, hidden, each other setting of a client, which a variable of the environment gives, too."""
    for name, kind in _SETTINGS.items():
        variable = f"AUGMENT_{name.upper().replace('-', '_')}"
        function = click.option(f"--{name}", type=kind, envvar=variable, hidden=True)(function)
    function = click.option("--tls", is_flag=True, hidden=True)(function)
    function = click.option("--forget", is_flag=True, envvar="AUGMENT_FORGET", hidden=True)(function)
    return server_option(function)


@contextlib.contextmanager
def client_of(server: str | None, **given: Any) -> Iterator[Client | None]:
    """The client for the options of :func:`server_options`, or of ``--server`` alone; None without it.

    Raises:
        UsageError: an option without ``--server``, another scheme, an unusable file, or gRPC is not installed.
    """
    if server is None:
        context = click.get_current_context()
        for name in given:
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise UsageError(f"--{name.replace('_', '-')}: needs --server grpc://HOST:PORT")
        yield None
        return
    try:
        from augment.client import PATIENCE_S, Client, Tls
    except ImportError as error:
        raise UsageError(f"--server: {error}") from error
    settings = given or server_options(click.command()(lambda **_: None)).make_context("", []).params
    scheme, separator, address = server.rpartition("://")
    tls = Tls(*(settings[name] for name in ("tls_ca", "tls_cert", "tls_key")))
    wanted = bool(settings["tls"]) or tls != Tls()
    if separator and scheme not in ("grpc", "grpcs"):
        raise UsageError(f"--server {server}: must be grpc://HOST:PORT, or grpcs://HOST:PORT with TLS")
    if scheme == "grpc" and wanted:
        raise UsageError(f"--server {server}: has no TLS, though options or variables for it are set; grpcs:// has it")
    patience_s = PATIENCE_S if settings["patience"] is None else settings["patience"]
    said = set[str]()

    def waiting(what: str) -> None:
        if what not in said:
            said.add(what)
            say(f"augment: {address}: {what}; waiting for up to {patience_s:g} s")

    with Client(
        address,
        token=_token(settings["token_file"]),
        tls=tls if scheme == "grpcs" or wanted else False,
        patience_s=patience_s,
        waiting=waiting,
        forget=settings["forget"],
        project=settings["project"] or "",
    ) as client:
        yield client
        links: list[str] = []
        with contextlib.suppress(AugmentError):  # what was asked for is done
            links = [] if click.get_current_context().params.get("quiet") else client.links()
        for link in links[:_MOST_LINKS]:
            say(f"for members of the project: {link}")
        if len(links) > _MOST_LINKS:
            say(f"and {len(links) - _MOST_LINKS} more jobs")


def _token(file: Path | None) -> str | None:
    """The first non-empty line of the file.

    Raises:
        UsageError: there is none.
    """
    if file is None:
        return None
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {file}: {(getattr(error, 'strerror', None) or str(error)).lower()}") from error
    for line in lines:
        if line.strip() and not line.startswith("#"):
            return line.strip()
    raise UsageError(f"--token-file {file}: the file contains no token")
