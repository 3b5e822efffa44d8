"""Records of NCCL's Inspector (profiler plugin of NCCL ≥ 2.28, and of RCCL): JSON lines, a collective or message each.

What a record has depends on the version of the plugin, whose number did not change with its fields, so keys decide
(plugins/profiler/inspector of NVIDIA/nccl). Only verbose records (``NCCL_INSPECTOR_DUMP_VERBOSE=1``) carry times; the
time of a dump is up to a whole interval late. From v4.3 on a ``dump_stats`` line holds for the lines after it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from augment.core.records import InspectorLog, InspectorRecord
from augment.errors import UnknownFormat
from augment.readers.containers import bounded_lines
from augment.readers.limits import UNLIMITED, Limits

LONGEST_LINE = 1 << 24  #: bytes; a longer line is passed over and counted
MOST_RECORDS = 1_000_000  #: that are kept; others are counted


def read_inspector(path: str, limits: Limits = UNLIMITED) -> InspectorLog:
    """The Inspector's records at ``path``, plain or compressed. Lines that are no JSON are counted.

    Raises:
        InputError: the file cannot be read.
        UnknownFormat: no line is a record of the Inspector.
    """
    log, decoder, shared = InspectorLog(path), msgspec.json.Decoder(), dict[str, Any]()
    for line, is_cut in bounded_lines(path, LONGEST_LINE, limits):
        if is_cut:
            log.unreadable_lines += 1
        elif len(log.records) >= MOST_RECORDS:
            log.left_out += bool(line.strip())
        elif line.strip():
            try:
                shared = _read(log, decoder.decode(line), shared)
            except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError):  # another's keys
                log.unreadable_lines += 1
    if not (log.records or log.version):
        raise UnknownFormat(path, "no records of NCCL's Inspector: no line has coll_perf, p2p_perf or dump_stats")
    return log


def _read(log: InspectorLog, line: dict[str, Any], shared: dict[str, Any]) -> dict[str, Any]:
    """Add the record in ``line``; the header and metadata that hold for the lines after it."""
    metadata = line.get("metadata") or shared.get("metadata") or {}
    header = line.get("header") or shared.get("header") or {}
    log.version = str(metadata.get("inspector_output_format_version", log.version))
    log.hostname = str(metadata.get("hostname", log.hostname))
    log.pid = _int(metadata["pid"]) if "pid" in metadata else log.pid
    if stats := line.get("dump_stats"):
        log.dropped += _int(stats.get("coll_dropped_since_last_dump", 0)) + _int(
            stats.get("p2p_dropped_since_last_dump", 0)
        )
        return {"metadata": metadata, "header": header}
    for prefix in ("coll", "p2p"):
        performance = line.get(f"{prefix}_perf")
        if performance is None:
            continue
        events = performance.get("event_trace_ts") or {}
        log.records.append(
            InspectorRecord(
                str(header.get("id", "")),
                _int(header.get("rank", -1)),
                _int(header.get("n_ranks", 0)),
                str(performance[prefix]),
                _int(performance[f"{prefix}_sn"]),
                _int(performance[f"{prefix}_msg_size_bytes"]),
                _int(round(performance[f"{prefix}_exec_time_us"] * 1000)),
                str(performance.get(f"{prefix}_timing_source", "")),
                _known(performance.get(f"{prefix}_algo")),
                _known(performance.get(f"{prefix}_proto")),
                _int(performance["p2p_peer"]) if "p2p_peer" in performance else None,
                [_int(each.get("kernel_stop_ts", 0)) * 1000 for each in events.get("kernel_events", ())],
            )
        )
    return shared


def _known(name: Any) -> str:
    return "" if name in (None, "unknown") else str(name)


def _int(value: Any) -> int:
    """An integer that columns hold; ValueError beyond."""
    number = int(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(value)
    return number
