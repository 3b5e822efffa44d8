"""The facts that ``augment doctor`` reports about a trace, as plain data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from augment.arrays.types import NO_INDEX, Int64s
from augment.cli.perfetto_limits import perfetto_findings
from augment.core.findings import AugmentedTrace, Skipped
from augment.core.trace import COMPLETE, GPU_WORK, LAUNCHES, Category, Trace
from augment.facts.gpu.gpu_work import correlations_of, gpu_work
from augment.facts.names.name_masks import strings_where
from augment.readers import reader_named
from augment.readers.containers import OpenText, open_text
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
    source = document(augmented)["source"]
    return {
        "file": _file(trace),
        "recording": {
            **{name: source[name] for name in ("ranks", "rank_from", "start_ns", "duration_ns", "steps", "devices")},
            **_distributed(trace),
        },
        "categories": _categories(trace),
        "tracks": _tracks(trace),
        "has": _has(trace),
        "launches": _launches(trace),
        "odd": [*_diagnostics(augmented), *_odd(trace)],
        "perfetto": perfetto_findings(trace),
        "skipped": {
            name: outcome.reason for name, outcome in augmented.outcomes.items() if isinstance(outcome, Skipped)
        },
        "partial": trace.partial,
    }


def _file(trace: Trace) -> Report:
    source = trace.source
    with open_text(source.path) as text:
        layers = _compression(text)
        head = text.read(64)
    return {
        "path": source.path,
        "bytes": os.path.getsize(source.path),
        "compression": layers,
        "text_bytes": source.text_bytes,
        "format": source.format,
        "layout": reader_named(source.format).layout(head),
        "vendor": _vendor(trace),
        "schema_version": source.metadata.get("schemaVersion"),
        "elements": source.event_count,
        "events": len(trace.events),
        "base_ns": source.base_ns,
    }


def _compression(text: OpenText) -> list[str]:
    return [_LAYERS.get(type(layer).__name__, "zip") for layer in text.layers]


def _vendor(trace: Trace) -> str | None:
    """The vendor of the devices, from the names of calls and categories; None if unknown."""
    names = _names_of(trace, trace.events.slices_of(*LAUNCHES))
    for begin, vendor in _RUNTIMES:
        if any(name.startswith(begin) for name in names):
            return vendor
    written = {row["category"].lower() for row in _categories(trace)}
    return next((vendor for category, vendor in _FOREIGN.items() if category in written), None)


def _names_of(trace: Trace, rows: Int64s) -> set[str]:
    """The distinct names of ``rows``."""
    codes = np.flatnonzero(np.bincount(trace.events.name[rows], minlength=1))
    return {trace.strings[index] for index in codes.tolist()} if len(rows) else set()


def _distributed(trace: Trace) -> Report:
    known = trace.source.metadata.get("distributedInfo")
    known = known if isinstance(known, dict) else {}
    return {name: known.get(name) for name in ("backend", "world_size")}


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


def _tracks(trace: Trace) -> Report:
    streams: dict[str, set[str]] = {}
    for track in trace.tracks:
        if track.stream is not None:
            streams.setdefault(str(track.device), set()).add(str(track.stream))
    return {
        "processes": len({track.pid for track in trace.tracks}),
        "threads": len({(track.pid, track.tid) for track in trace.tracks if track.stream is None}),
        "streams": {device: len(names) for device, names in sorted(streams.items())},
    }


def _has(trace: Trace) -> Report:
    """What was recorded in addition to times, judged by the args of a few events."""
    operators = _sampled(trace, trace.events.slices_of(Category.CPU_OP))
    kernels = trace.events.slices_of(Category.KERNEL)
    collective = strings_where(trace, lambda name: "nccl" in name.lower())
    collectives = _sampled(trace, kernels[collective[trace.events.name[kernels]]])
    return {
        "python_stacks": _any(trace, Category.PYTHON_FUNCTION),
        "shapes": any("Input Dims" in args for args in operators),
        "memory": "[memory]" in set(trace.strings),
        "collective_args": any("Collective name" in args for args in collectives),
        "flows": bool(len(trace.events.flow_id.rows)),
        "synchronisation": _any(trace, Category.CUDA_SYNC),
    }


def _sampled(trace: Trace, rows: Int64s) -> list[dict[str, Any]]:
    """The args of the first of ``rows``; the source is read only as far as these."""
    return trace.args_of(rows[:SAMPLE]) if len(rows) else []


def _any(trace: Trace, category: Category) -> bool:
    return bool(np.any(trace.events.category == category))


def _launches(trace: Trace) -> Report:
    """The number of pieces of GPU work with a launch, and of launches with GPU work."""
    work = gpu_work(trace)
    events = trace.events
    linked = int((work.launch != NO_INDEX).sum())
    rows = events.slices_of(*LAUNCHES)
    launching = strings_where(trace, lambda name: any(part in name for part in _LAUNCHING))
    rows = rows[launching[events.name[rows]]] if len(rows) else rows
    arrived = np.isin(correlations_of(trace, rows), correlations_of(trace, work.row))
    return {
        "gpu_work_count": len(work),
        "linked_ratio": linked / len(work) if len(work) else None,
        "launch_count": len(rows),
        "unmatched_launch_count": int((~arrived).sum()),
    }


def _diagnostics(augmented: AugmentedTrace) -> Iterator[Report]:
    for diagnostic in augmented.diagnostics:
        yield {"code": diagnostic.code, "count": diagnostic.count, "message": diagnostic.message}


def _odd(trace: Trace) -> Iterator[Report]:
    """Anomalies that readers and analyses tolerate, but a user may want to know of."""
    events = trace.events
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
            yield {"code": code, "count": count, "message": message}
