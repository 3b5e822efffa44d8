"""``augment show``: the metrics as tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from augment.commands.options import choice_of_analyses, debug, files_beside
from augment.errors import InputError, UnknownFormat

if TYPE_CHECKING:
    from augment.batch.beside import Beside

ROWS = 20  #: of a table, unless --limit says otherwise


@click.command("show", short_help="Show metrics as tables.")
@click.argument("source", metavar="INPUT|METRICS.json")
@click.argument("analyses", nargs=-1, metavar="[ANALYSIS…]")
@choice_of_analyses
@files_beside
@click.option("--limit", type=click.IntRange(min=0), default=ROWS, show_default=True, metavar="N",
              help="Rows of a table; 0: all.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the analyses' part of the metrics file, all rows.")
@debug
def command(
    source: str,
    analyses: tuple[str, ...],
    only: tuple[str, ...],
    skip: tuple[str, ...],
    options: tuple[str, ...],
    steps: tuple[int, int] | None,
    execution_trace: str | None,
    memory_timeline: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show metrics as tables: of a metrics file, or of a trace, which is analysed now; nothing is written."""
    from augment.batch.beside import Beside
    from augment.commands.terminal import emit

    wanted = (*analyses, *only)
    if is_sidecar(source):
        anew = {"--option": options, "--steps": steps, "--execution-trace": execution_trace,
                "--memory-timeline": memory_timeline}  # fmt: skip
        sidecar = _chosen(read_sidecar(source), wanted, skip, anew)
    else:
        sidecar = _analysed(source, wanted, skip, options, steps, Beside(execution_trace, memory_timeline))
    if as_json:
        import json

        emit(json.dumps(sidecar["analyses"], indent=1, ensure_ascii=False))
    else:
        from augment.commands.tables import print_sidecar

        print_sidecar(sidecar, limit)


def is_sidecar(path: str) -> bool:
    """Whether the file at ``path`` holds metrics; told from its first bytes, or else its name."""
    try:
        with open(path, "rb") as file:
            return b'"schema_version"' in file.read(64) or path.endswith(".metrics.json")
    except OSError as error:
        raise InputError.of(path, error) from error


def read_sidecar(path: str) -> dict[str, Any]:
    """The metrics in ``path``.

    Raises:
        UnknownFormat: they are none.
    """
    import msgspec

    try:
        decoded = msgspec.json.decode(Path(path).read_bytes())
    except msgspec.DecodeError as error:
        raise UnknownFormat(path, f"no metrics of augment: {error}") from error
    if not isinstance(decoded, dict) or not {"source", "analyses", "diagnostics"} <= decoded.keys():
        raise UnknownFormat(path, "no metrics of augment; make them with augment run")
    return decoded


def _chosen(
    sidecar: dict[str, Any], wanted: Collection[str], skip: Collection[str], anew: Mapping[str, object]
) -> dict[str, Any]:
    """The sidecar with the wanted analyses alone. ``anew`` are options that only a trace can be asked with."""
    from augment.errors import UsageError, expect_known

    if given := next((name for name, value in anew.items() if value), None):
        raise UsageError(f"{given}: these metrics are computed already; name the trace to compute them anew")
    known = sidecar["analyses"]
    for name in (*wanted, *skip):
        expect_known(name, known, "analysis in this file")
    chosen = {name: one for name, one in known.items() if (not wanted or name in wanted) and name not in skip}
    return {**sidecar, "analyses": chosen}


def _analysed(
    path: str,
    wanted: Sequence[str],
    skip: Sequence[str],
    options: Sequence[str],
    steps: tuple[int, int] | None,
    beside: Beside,
) -> dict[str, Any]:
    """The sidecar that ``augment run`` would write."""
    from augment.commands.options import check_analyses, option_values

    values = option_values(options)
    check_analyses(wanted, skip, values)
    import msgspec

    from augment.commands.terminal import bar
    from augment.pipeline import augment
    from augment.readers import read
    from augment.writers.metrics import document, encode

    with bar(1, quiet=False) as shown:
        shown.stage(f"reading {path}")
        trace = beside.added_to(read(path, announce=lambda text: shown.say(f"augment: {text}")))
        augmented = augment(
            trace,
            only=wanted,
            skip=skip,
            options=values,
            steps=steps,
            progress=lambda name, _done, _of: shown.stage(name),
        )
        for why in beside.unused(augmented):
            shown.say(f"augment: {why}")
    decoded: dict[str, Any] = msgspec.json.decode(encode(document(augmented)))
    return decoded
