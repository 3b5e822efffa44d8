"""``augment show``: shows metrics as tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from augment.commands.options import debug, requesting, row_limit
from augment.errors import InputError, UnknownFormat, expect_regular

if TYPE_CHECKING:
    from augment.request import Request

ROWS = 20  #: rows of a table by default


@click.command("show", short_help="Show metrics as tables.")
@click.argument("source", metavar="INPUT|METRICS.json")
@click.argument("analyses", nargs=-1, metavar="[ANALYSIS…]")
@requesting()
@row_limit(ROWS)
@click.option("--json", "as_json", is_flag=True, help="Print the analyses in the metrics file as JSON, with all rows.")
@debug
def command(
    source: str,
    analyses: tuple[str, ...],
    request: Request,
    limit: int,
    as_json: bool,
) -> None:
    """Show metrics as tables, from a metrics file or from a trace, which is then analysed. Nothing is written."""
    from augment.commands.terminal import emit

    request = replace(request, only=(*analyses, *request.only))
    sidecar = _chosen(read_sidecar(source), request) if is_sidecar(source) else analysed(source, request)
    if as_json:
        import json

        emit(json.dumps(sidecar["analyses"], indent=1, ensure_ascii=False))
    else:
        from augment.commands.tables import print_sidecar

        print_sidecar(sidecar, limit)


def is_sidecar(path: str) -> bool:
    """Whether the file at ``path`` holds metrics, by its first bytes or else its name."""
    try:
        expect_regular(path)
        with open(path, "rb") as file:
            return b'"schema_version"' in file.read(64) or path.endswith(".metrics.json")
    except OSError as error:
        raise InputError.of(path, error) from error


def read_sidecar(path: str) -> dict[str, Any]:
    """The metrics in ``path``.

    Raises:
        UnknownFormat: the file holds no metrics.
    """
    import msgspec

    try:
        decoded = msgspec.json.decode(Path(path).read_bytes())
    except msgspec.DecodeError as error:
        raise UnknownFormat(path, f"not a metrics file of augment: {error}") from error
    if not isinstance(decoded, dict) or not {"source", "analyses", "diagnostics"} <= decoded.keys():
        raise UnknownFormat(path, "not a metrics file of augment; augment run writes them")
    return decoded


def _chosen(sidecar: dict[str, Any], request: Request) -> dict[str, Any]:
    """The sidecar with only the requested analyses.

    Raises:
        UsageError: an analysis is not in the file, or an option needs the trace.
    """
    from augment.errors import UsageError, expect_known

    only, skip, evidence = request.only, request.skip, request.evidence
    needs_trace = {
        "--option": request.options,
        "--steps": request.steps,
        "--tables": request.tables,
        "--peak": request.peaks,
        "--execution-trace": evidence.execution_trace,
        "--memory-timeline": evidence.memory_timeline,
    }
    if given := next((name for name, value in needs_trace.items() if value), None):
        raise UsageError(f"{given}: these metrics are already computed; name the trace to compute them again")
    known = sidecar["analyses"]
    for name in (*only, *skip):
        expect_known(name, known, "analysis in this file")
    chosen = {name: analysis for name, analysis in known.items() if (not only or name in only) and name not in skip}
    return {**sidecar, "analyses": chosen}


def analysed(path: str, request: Request) -> dict[str, Any]:
    """The sidecar that ``augment run`` would write."""
    request.check()
    import msgspec

    from augment.commands.terminal import bar
    from augment.pipeline import augment
    from augment.readers import read
    from augment.writers.metrics import document, encode

    with bar(1, quiet=False) as shown:
        shown.stage(f"reading {path}")
        trace = request.evidence.added_to(read(path))
        augmented = augment(trace, request, progress=lambda name, _done, _of: shown.stage(name))
        for why in request.evidence.unused(augmented):
            shown.say(f"augment: {why}")
    decoded: dict[str, Any] = msgspec.json.decode(encode(document(augmented)))
    return decoded
