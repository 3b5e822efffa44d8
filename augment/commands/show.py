"""``augment show``: shows metrics as tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from augment.commands.options import debug, requesting, row_limit

if TYPE_CHECKING:
    from augment.request import Request
    from augment.sidecars import Sidecar

ROWS = 20  #: rows of a table by default


@click.command("show", short_help="Show metrics as tables.")
@click.argument("source", metavar="INPUT|METRICS.json")
@click.argument("analyses", nargs=-1, metavar="[ANALYSIS…]")
@requesting()
@row_limit(ROWS)
@click.option("--json", "as_json", is_flag=True, help="Print the analyses in the metrics file as JSON, with all rows.")
@click.option("--parquet", metavar="DIR", help="Write ANALYSIS.parquet for each analysis, with all rows (pyarrow).")
@debug
def command(
    source: str,
    analyses: tuple[str, ...],
    request: Request,
    limit: int,
    as_json: bool,
    parquet: str | None,
) -> None:
    """Show metrics as tables, from a metrics file or from a trace, which is then analysed.

    Nothing is written, but with --parquet, which also takes a folder of metrics: one file for each analysis, in which
    the columns run, trace and rank tell where a row is from.
    """
    from augment.commands.terminal import emit
    from augment.sidecars import Sidecar, is_sidecar, read_sidecar, sidecars_in

    request = replace(request, only=(*analyses, *request.only))
    if parquet is not None and os.path.isdir(source):
        _write_parquet([replace(one, content=_chosen(one.content, request)) for one in sidecars_in([source])], parquet)
        return
    sidecar = _chosen(read_sidecar(source), request) if is_sidecar(source) else analysed(source, request)
    if parquet is not None:
        _write_parquet([Sidecar.of(source, sidecar)], parquet)
    elif as_json:
        import json

        emit(json.dumps(sidecar["analyses"], indent=1, ensure_ascii=False))
    else:
        from augment.commands.tables import print_sidecar

        print_sidecar(sidecar, limit)


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
        "--graph-capture": evidence.graph_capture,
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

    from augment.commands.options import MOST_THREADS, processors
    from augment.commands.terminal import bar
    from augment.heap import keep_freed_memory
    from augment.pipeline import augment
    from augment.readers import read
    from augment.writers.metrics import document, encode

    keep_freed_memory()
    threads = min(processors(), MOST_THREADS)
    with bar(1, quiet=False) as shown:
        shown.stage(f"reading {path}")
        trace = request.evidence.added_to(read(path, threads=threads))
        augmented = augment(trace, request, progress=lambda name, _done, _of: shown.stage(name), threads=threads)
        for why in request.evidence.unused(augmented):
            shown.say(f"augment: {why}")
    decoded: dict[str, Any] = msgspec.json.decode(encode(document(augmented)))
    return decoded


def _write_parquet(sidecars: Sequence[Sidecar], folder: str) -> None:
    """Write a file for each analysis, and print the paths."""
    from augment.commands.terminal import emit
    from augment.frames import frames_of
    from augment.parquet import write_parquet

    for name, table in frames_of(sidecars).items():
        path = os.path.join(folder, f"{name}.parquet")
        write_parquet(table, path)
        emit(path)
