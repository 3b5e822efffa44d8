"""The library's registries and the sidecar, as messages. Imports what it needs when it is asked."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec

from augment.errors import UsageError
from augment.v1 import resources_pb2 as v1
from augment_server.errors import Refusal

ROWS_BYTES = 1 << 20  #: of rows in one message


class Metrics(msgspec.Struct):
    """An analysis in the sidecar; its rows are not looked into, so that nothing of them can change."""

    status: str
    rows: list[msgspec.Raw]
    reason: str = ""


class _Sidecar(msgspec.Struct):
    analyses: dict[str, Metrics]


def metrics_of(sidecar: bytes) -> dict[str, Metrics]:
    """The analyses of a sidecar."""
    return msgspec.json.decode(sidecar, type=_Sidecar).analyses


def messages(name: str, metrics: Metrics) -> Iterator[v1.AnalysisMetrics]:
    """One analysis, in as many messages as it takes; one at least."""
    status = v1.AnalysisMetrics.Status.Value(f"STATUS_{metrics.status.upper()}")
    rows = iter(metrics.rows)
    while True:
        message = v1.AnalysisMetrics(analysis=name, status=status, reason=metrics.reason)
        size = 0
        for row in rows:
            message.json_rows.append(bytes(row).decode())
            size += len(row)
            if size >= ROWS_BYTES:
                break
        yield message
        following = next(rows, None)
        if following is None:
            return
        rows = itertools.chain((following,), rows)


def analyses() -> list[v1.Analysis]:
    """What can be asked, in the order in which it is."""
    from augment.commands.list import everything

    return [
        v1.Analysis(
            name=one["name"],
            summary=one["about"],
            options=[
                v1.AnalysisOption(name=name, default_value=str(default), type=type(default).__name__)
                for name, default in one["options"].items()
            ],
        )
        for one in everything()["analyses"]
    ]


def check(spec: v1.AugmentSpec) -> None:
    """Refuse what could only fail later.

    Raises:
        Refusal: an analysis, an option or a format that does not exist, or no analysis is left.
    """
    if spec.HasField("steps") and not 0 <= spec.steps.first <= spec.steps.last:
        raise Refusal("USAGE", "steps: the first must not be beyond the last")
    if not (spec.only or spec.skip or spec.options or spec.formats):
        return  # and what is not needed is not loaded
    from augment.commands.options import check_analyses, option_values
    from augment.writers import writer_named

    try:
        check_analyses(list(spec.only), list(spec.skip), option_values(list(spec.options)))
        for name in spec.formats:
            writer_named(name)
    except UsageError as error:
        raise Refusal("USAGE", str(error)) from error
    if len(set(spec.formats)) != len(spec.formats):
        raise Refusal("USAGE", "formats: one is named twice")
