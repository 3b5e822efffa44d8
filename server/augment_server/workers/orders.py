"""What an order asks for, as a worker sees it: where its files lie, and the request of its conversion."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from augment.core import Trace
from augment.core.attachment_kinds import TABLES
from augment.pipeline.request import Request
from augment.readers.attachments import Evidence
from augment.readers.attachments.tables import with_tables
from augment.readers.limits import Limits

Order = dict[str, Any]
_INPUTS, _ATTACHED = "in", "beside"  #: folders of an order


def folders_of(given: Mapping[str, Any]) -> tuple[str, str]:
    """The folder of a file of the order, and its path in there, which ends in the client's file name; a number keeps
    equal names apart."""
    return _ATTACHED if "kind" in given else _INPUTS, str(given["at"])


def place_of(order: Order, given: Mapping[str, Any]) -> Path:
    """The path of a file of the order."""
    return Path(order["folder"], *folders_of(given))


def ranges_of(ranks: Iterable[tuple[int, int]]) -> list[range]:
    """The ranks that an order chooses, of first and last ones; empty: all."""
    return [range(first, last + 1) for first, last in ranks]


def request_in(order: Order) -> Request:
    """The request of a conversion, with the files that were recorded beside each trace."""
    tables, beside = _beside(order)
    return replace(msgspec.convert(order["request"], Request), tables=tables, evidence=Evidence(of_traces=beside))


def with_beside(order: Order, trace: Trace, limits: Limits) -> Trace:
    """A trace of the order with what was recorded beside it, and the user's tables and peaks."""
    tables, beside = _beside(order)
    trace = Evidence(beside.get(trace.source.path, {})).added_to(trace, limits)
    return with_tables(trace, *tables, peaks=order["peaks"], region=order.get("region", ""))


def _beside(order: Order) -> tuple[tuple[str, ...], dict[str, dict[str, str]]]:
    """The paths of the user's tables, and of the files beside each trace by kind."""
    traces = [str(place_of(order, given)) for given in order["inputs"]]
    beside: dict[str, dict[str, str]] = {trace: {} for trace in traces}
    tables = [str(place_of(order, given)) for given in order["attached"] if given["kind"] == TABLES]
    for given in order["attached"]:
        if given["kind"] == TABLES:
            continue
        place = place_of(order, given)
        for trace in traces if given["beside"] is None else [traces[at] for at in given["beside"]]:
            several = given["kind"] in beside[trace]  # then they lie in a folder each, of one folder
            pattern = f"{glob.escape(str(place.parent.parent))}/*/*" if several else str(place)
            beside[trace][given["kind"]] = pattern
    return tuple(tables), beside
