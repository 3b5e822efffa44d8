"""The facts that ``augment doctor`` reports about a trace, as plain data; and what Perfetto would not show of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from augment import facts
from augment.arrays import NO_INDEX, Int64s
from augment.core import COMPLETE, GPU_WORK, LAUNCHES, AugmentedTrace, Category, Skipped, Trace, attachment_kinds
from augment.facts.names import strings_where
from augment.readers import HEAD, READERS, perfetto
from augment.readers.attachments import Evidence
from augment.readers.containers import at_least, open_text
from augment.writers.metrics import document

Report = dict[str, Any]

SAMPLE = 256  #: events whose args are examined
_LAYERS = {"GzipText": "gzip", "ZstdText": "zstd", "PackedText": "compressed packets"}
_LAUNCHING = ("Launch", "Memcpy", "Memset")  #: in names of calls that launch work on a device

#: prefix of a runtime call → vendor; other hints follow
_RUNTIMES = (("hip", "AMD (HIP)"), ("cu", "NVIDIA (CUDA)"), ("ur", "Intel (XPU)"), ("ze", "Intel (XPU)"))
_FOREIGN = {
    "async_npu": "Ascend",
    "xpu_runtime": "Intel (XPU)",
    "mtia_runtime": "MTIA",
    "mtia_ccp_events": "MTIA",
    "privateuse1_runtime": "PrivateUse1",
    "hip_runtime": "AMD (HIP)",
}


def inspect(augmented: AugmentedTrace) -> Report:
    """All facts about a trace: its content, its anomalies, and what will be lost."""
    trace = augmented.trace
    source, known = document(augmented)["source"], augmented.diagnostics
    # What was recorded beside the trace and lies there under a usual name. It is used without an option, unless it may
    # be of any rank of several
    sizes = trace.source.world_size, None
    used, near = (Evidence().near(trace.source.path, trace.rank, size).of(trace.rank) for size in sizes)
    beside = [
        {"kind": kind, "what": attachment_kinds.kind_named(kind).what, "path": path, "is_used": kind in used}
        for kind, path in (near | used).items()
    ]
    streams: dict[str, set[str]] = {}
    for track in trace.tracks:
        if track.stream is not None:
            streams.setdefault(str(track.device), set()).add(str(track.stream))
    # what was recorded in addition to times; of collectives judged by the args of a few
    kernels = trace.events.slices_of(Category.KERNEL)
    collective = strings_where(trace, lambda name: "nccl" in name.lower())
    some = kernels[collective[trace.events.name[kernels]]][:SAMPLE]  # the source is read only as far as these
    collectives = trace.args_of(some) if len(some) else []
    # the number of pieces of GPU work with a launch, and of launches with GPU work
    work, events = facts.gpu.work(trace), trace.events
    linked = int((work.launch != NO_INDEX).sum())
    rows = events.slices_of(*LAUNCHES)
    launching = strings_where(trace, lambda name: any(part in name for part in _LAUNCHING))
    rows = rows[launching[events.name[rows]]] if len(rows) else rows
    arrived = np.isin(facts.gpu.correlations_of(trace, rows), facts.gpu.correlations_of(trace, work.row))
    # anomalies that readers and analyses tolerate, but a user may want to know of
    odd: list[Report] = []
    slices = events.phase == COMPLETE
    in_file = events.ts[np.argsort(events.offset[:], kind="stable")]
    of_work = np.isin(events.category, np.array(GPU_WORK, np.uint8)) & slices
    unordered = int((in_file[1:] < in_file[:-1]).sum())
    text = sum(isinstance(track.pid, str) or isinstance(track.tid, str) for track in trace.tracks)
    for code, count, message in (
        ("negative_durations", int((slices & (events.dur < 0)).sum()), "slices end before they begin"),
        ("zero_durations", int((of_work & (events.dur == 0)).sum()), "pieces of GPU work take no time"),
        ("out_of_order", unordered, "events begin before the one before them in the file"),
        ("text_ids", text, "tracks have a pid or tid that is text"),
    ):
        if count:
            odd.append({"code": code, "count": count, "message": message})
    return {
        "file": _file(trace),
        "recording": {
            **{key: source[key] for key in ("ranks", "rank_from", "start_ns", "duration_ns", "recorded_ns", "steps")},
            "devices": source["devices"],
            "backend": trace.source.distributed_info.get("backend"),
            "world_size": trace.source.world_size,
        },
        "categories": _categories(trace),
        "tracks": {
            "processes": len({track.pid for track in trace.tracks}),
            "threads": len({(track.pid, track.tid) for track in trace.tracks if track.stream is None}),
            "streams": {device: len(names) for device, names in sorted(streams.items())},
        },
        "has": {
            "python_stacks": _any(trace, Category.PYTHON_FUNCTION),
            "shapes": len(facts.source.args(trace).texts("Input Dims")[0]) > 0,
            "memory": "[memory]" in set(trace.strings),
            "collective_args": any("Collective name" in args for args in collectives),
            "flows": bool(len(trace.events.flow_id.rows)),
            "synchronisation": _any(trace, Category.CUDA_SYNC),
        },
        "launches": {
            "gpu_work_count": len(work),
            "linked_ratio": linked / len(work) if len(work) else None,
            "launch_count": len(rows),
            "unmatched_launch_count": int((~arrived).sum()),
        },
        "odd": [*({"code": each.code, "count": each.count, "message": each.message} for each in known), *odd],
        "perfetto": [{"code": code, "count": n, "message": text} for code, n, text in _findings(trace) if n],
        "skipped": {
            name: outcome.reason for name, outcome in augmented.outcomes.items() if isinstance(outcome, Skipped)
        },
        "partial": trace.partial,
        "beside": beside,
    }


def _file(trace: Trace) -> Report:
    source = trace.source
    with open_text(source.path) as text:
        names = [type(layer).__name__ for layer in text.layers]
        layers = [_LAYERS.get(name, "zip") for name in names if name != "RecorderText"]
        head = at_least(text, HEAD)
    reader = next(reader for reader in READERS if source.format == reader.NAME)
    return {
        "path": source.path,
        "bytes": os.path.getsize(source.path),
        "compression": layers,
        "text_bytes": source.text_bytes,
        "format": source.format,
        "layout": reader.layout(head),
        "vendor": _vendor(trace),
        "schema_version": source.metadata.get("schemaVersion"),
        "elements": source.event_count,
        "events": len(trace.events),
        "base_ns": source.base_ns,
    }


def _vendor(trace: Trace) -> str | None:
    """The vendor of the devices, from the names of calls and categories; None if unknown."""
    # The distinct names of ``rows``
    rows = trace.events.slices_of(*LAUNCHES)
    codes = np.flatnonzero(np.bincount(trace.events.name[rows], minlength=1))
    names = {trace.strings[index] for index in codes.tolist()} if len(rows) else set()
    for begin, vendor in _RUNTIMES:
        if any(name.startswith(begin) for name in names):
            return vendor
    written = {row["category"].lower() for row in _categories(trace)}
    return next((vendor for category, vendor in _FOREIGN.items() if category in written), None)


def _categories(trace: Trace) -> list[Report]:
    """The number of events per category (as in the file) and phase, largest first."""
    events = trace.events
    counts: list[Report] = []
    for phase in np.flatnonzero(np.bincount(events.phase, minlength=1)).tolist():
        of_phase = events.phase == phase
        written, read_as = events.category_name[of_phase], events.category[of_phase]
        for code in np.flatnonzero(np.bincount(written, minlength=1)).tolist():
            rows = written == code
            kinds = np.flatnonzero(np.bincount(read_as[rows]))
            counts.append(
                {
                    "category": trace.strings[code] or "(none)",
                    "phase": chr(phase),
                    "read_as": ", ".join(Category(kind).name.lower() for kind in kinds.tolist()),
                    "count": int(rows.sum()),
                }
            )
    return sorted(counts, key=lambda count: (-count["count"], count["category"], count["phase"]))


def _any(trace: Trace, category: Category) -> bool:
    return bool(np.any(trace.events.category == category))


# What Perfetto will drop, alter or refuse in a trace, judged by the event table.
#
# Observed with Perfetto 52, and in its sources up to 58; docs/formats.md describes the experiments.


_MEMORY = (
    (8_500_000_000, "the 64-bit engine runs out of memory"),
    (2_000_000_000, "browsers with the 32-bit engine run out of memory"),
)  #: bytes of text
_EXACT_US = 1 << 43  #: beyond this, a double in microseconds cannot represent nanoseconds
_MAX_ID = (1 << 32) - 1
_ZSTD = b"\x28\xb5\x2f\xfd"


def partly_overlapping(trace: Trace) -> int:
    """The number of slices that partly overlap another of their thread, so that Perfetto drops them.

    Perfetto (before 57) processes a thread's slices by start, longer ones first, and drops a slice that ends after the
    slice that it begins in.
    """
    events = trace.events
    rows = np.flatnonzero((events.phase == COMPLETE) & (events.dur > 0))
    numbers: dict[tuple[Any, Any], int] = {}
    thread = np.array([numbers.setdefault((str(t.pid), str(t.tid)), len(numbers)) for t in trace.tracks], np.int32)
    if not len(rows):
        return 0
    of_thread = thread[events.track[rows]]
    order = np.argsort(of_thread, kind="stable")  # rows ascend in time, so those of each thread do
    rows, of_thread = rows[order], of_thread[order]
    bounds = np.searchsorted(of_thread, np.arange(len(numbers) + 1)).tolist()
    dropped = 0
    for start, stop in pairwise(bounds):
        ts = events.ts[rows[start:stop]]
        end = ts + events.dur[rows[start:stop]]
        if np.any(ts[1:] < np.maximum.accumulate(end)[:-1]):
            dropped += _dropped(ts, end)
    return dropped


def _dropped(ts: Int64s, end: Int64s) -> int:
    """The number of dropped slices of one thread, whose ``ts`` ascend."""
    order = np.lexsort((-end, ts))
    ts, end = ts[order], end[order]
    # Whether no slices partly overlap: then equally many are open after each start as before the matching end
    count = len(ts)
    place = np.arange(count)
    after_start = place + 1 - np.searchsorted(np.sort(end), ts, side="right")
    closing = np.lexsort((-place, end))  # of slices that end together, the one that began last closes first
    closed_before = np.empty(count, np.int64)
    closed_before[closing] = place
    before_end = np.searchsorted(ts, end, side="left") - closed_before
    nested = bool(np.array_equal(after_start, before_end))
    if nested:
        return 0
    dropped = 0
    open_ends: list[int] = []
    for one_ts, one_end in zip(ts.tolist(), end.tolist(), strict=True):
        while open_ends and open_ends[-1] <= one_ts:
            open_ends.pop()
        if open_ends and one_end > open_ends[-1]:
            dropped += 1
        else:
            open_ends.append(one_end)
    return dropped


def _findings(trace: Trace) -> Iterator[tuple[str, int, str]]:
    if trace.source.format != perfetto.NAME:
        # limits that apply to JSON only
        events, source = trace.events, trace.source
        yield "partly_overlapping", partly_overlapping(trace), "slices partly overlap another of their thread: dropped"
        in_file = events.ts - source.base_ns
        yield "negative_times", int((in_file < 0).sum()), "events have a time before 0: dropped"
        last = int(np.abs(in_file).max()) if len(in_file) else 0
        if last // 1000 >= _EXACT_US:
            step = int(np.spacing(last / 1000) * 1000)
            broken = int((in_file % 1000 != 0).sum())
            yield "epoch_times", broken, f"times since 1970 have fractions of a microsecond: rounded to {step} ns"
        ids = [number for track in trace.tracks for number in (track.pid, track.tid) if isinstance(number, int)]
        yield (
            "ids_out_of_range",
            sum(not 0 <= id_ <= _MAX_ID for id_ in ids),
            "pids or tids do not fit 32 bits: become 0",
        )
        yield (
            "text_pids",
            sum(isinstance(track.pid, str) for track in trace.tracks),
            "tracks have a text as pid: numbered",
        )
        if trace.partial and source.closing == b"]}":
            yield "not_closed", 1, "the JSON is not closed: refused (the augmented file is closed)"
        for limit, message in _MEMORY:
            if source.text_bytes > limit:
                yield "too_large", 1, f"{message}; open the native format (--to perfetto)"
                break
    with open(trace.source.path, "rb") as file:
        yield "zstd", int(file.read(4) == _ZSTD), "zstd is refused before version 58 (augmented files are not zstd)"
