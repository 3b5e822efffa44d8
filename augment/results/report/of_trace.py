"""The report of one trace, from its sidecar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from augment.core.text import counted, percent, short, size, time
from augment.results.report import charts
from augment.results.report.document import Document, Row, Section
from augment.results.report.kernels import kernels
from augment.results.report.modules import modules
from augment.results.report.over_time import over_time
from augment.results.report.rows import not_possible, others, rows_of, table, totals
from augment.results.report.trace_sections import efficiency, steps
from augment.results.sidecars import with_job

Sidecar = Mapping[str, Any]
_LEAST = 0.0005  #: shares of the path below this are not drawn
_IDLE = {"host_wait": "waits for the host", "kernel_wait": "between kernels", "other": "other"}


def document(sidecar: Sidecar) -> Document:
    """All sections that have something to say."""
    source = sidecar["source"]
    makers = (efficiency, steps, over_time, critical_path, kernels, modules, communication, idle, launches, memory)
    sections = [maker(sidecar) for maker in makers]
    verdict = sidecar.get("verdict") or {"text": ()}
    shown = {each.name for section in sections for each in section.tables}
    return Document(
        title=source["name"],
        subject="trace",
        verdict=with_job(sidecar, verdict["text"] or _nothing(sidecar)),
        facts=list(facts(sidecar)),
        sections=[section for section in (*sections, others(sidecar, {*shown, "diagnosis"})) if section],
        findings=rows_of(sidecar, "diagnosis"),
        diagnostics=sidecar["diagnostics"],
    )


def _nothing(sidecar: Sidecar) -> Sequence[str]:
    """A sentence where no analysis had anything to say."""
    if any(each["status"] != "skipped" for each in sidecar["analyses"].values()):
        return ()
    reasons = [str(each["reason"]) for each in sidecar["analyses"].values()]
    return [f"Nothing could be analysed: {reasons[0] if reasons else 'no analysis ran'}."]


def facts(sidecar: Sidecar) -> Iterator[tuple[str, str]]:
    """The lines of the header."""
    source = sidecar["source"]
    names = totals(source["devices"], lambda row: row["name"] or "unnamed")
    used = {row["device"] for row in rows_of(sidecar, "temporal_breakdown")}
    if names:
        yield "GPU", "; ".join(names) + (f" ({len(used)} with recorded work)" if used else "")
    if source["ranks"]:
        yield "rank", ", ".join(map(str, source["ranks"]))
    yield "recorded", f"{time(source['duration_ns'])}, {counted(source['events'], 'event')}"
    if source["steps"]:
        yield "steps", f"{len(source['steps'])}: {', '.join(map(str, source['steps'][:12]))}"
    if source["partial"]:
        yield "incomplete", source["partial"]
    yield from not_possible(sidecar)
    yield "SHA-256 of the trace", source["sha256"]
    yield "made by", f"{sidecar['tool']['name']} {sidecar['tool']['version']}, {source['format']}"


def critical_path(sidecar: Sidecar) -> Section:
    """What the path consists of, and what would shorten it."""
    rows = rows_of(sidecar, "critical_path")
    sums = totals(rows, lambda row: row["bound_by"], "time_ns")
    whole = sum(ns for (ns,) in sums.values())
    if not whole:
        return Section("Critical path")
    order = sorted(sums, key=lambda kind: -sums[kind][0])
    bars = [
        charts.bar(kind.replace("_", " "), 0.0, ns / 1e6, charts.BLUE, f"{ns:,.0f} ns", percent(ns / whole))
        for kind, ns in ((kind, sums[kind][0]) for kind in order)
        if ns >= _LEAST * whole
    ]
    lead = (
        f"{percent(sums[order[0]][0] / whole)} of the chain of events that decided the duration is {bars[0]['label']}."
    )
    chart = charts.waterfall("critical_path", lead, bars, x_title="time on the path (ms)")
    columns = ("step", "name", "bound_by", "count", "time_ns", "time_ratio", "saved_ns", "slack_ns")
    title = "What would be saved if a name took no time"
    savings = table(sidecar, "critical_path_operators", title, by="saved_ns", columns=columns)
    return Section("Critical path", lead, [chart], savings)


def communication(sidecar: Sidecar) -> Section:
    """Collectives of this rank."""
    rows = rows_of(sidecar, "collectives")
    if not rows:
        return Section("Communication")
    sums = totals(
        rows, lambda row: f"{row['kind']} {row['description'] or row['group'] or ''}".strip(), "time_ns", "exposed_ns"
    )
    parts = {"hidden by computation": charts.SKY, "exposed": charts.VERMILION}
    bars = [
        charts.part(short(label), part, ns)
        for label, (whole, exposed) in sorted(sums.items(), key=lambda each: -each[1][0])[:20]
        for part, ns in zip(parts, (whole - exposed, exposed), strict=True)
    ]
    whole, exposed = (sum(pair[place] for pair in sums.values()) for place in (0, 1))
    lead = f"Collectives take {time(whole)}, {percent(exposed / (whole or 1))} of it not hidden by computation."
    chart = charts.stacked("collectives", lead, bars, y="collective", x_title="time (ms)", parts=parts)
    return Section("Communication", lead, [chart], table(sidecar, "collectives", "Collectives", by="exposed_ns"))


def idle(sidecar: Sidecar) -> Section:
    """Why streams were idle."""
    rows = rows_of(sidecar, "idle_time_breakdown")
    parts = {
        "waits for the host": charts.ORANGE,
        "between kernels": charts.PURPLE,
        "other": charts.GREY,
        "another stream busy": charts.SKY,
    }
    bars = []
    for row in rows:
        others = row.get("other_stream_busy_ns") or 0
        label = _stream(row)
        for part, ns in ((_IDLE.get(row["category"], ""), row["idle_ns"] - others), ("another stream busy", others)):
            if ns and part in parts:
                bars.append(charts.part(label, part, ns))
    if not bars:
        return Section("Idle time")
    longest = max(rows, key=lambda row: row.get("device_host_wait_ns") or 0)
    host = longest.get("device_host_wait_ns") or 0
    lead = f"{_stream(longest)} waited {time(host)} for the host while nothing ran on the device." if host else ""
    chart = charts.stacked(
        "idle", "Idle time of each stream by cause", bars, y="stream", x_title="idle time (ms)", parts=parts
    )
    return Section(
        "Idle time",
        lead,
        [chart],
        table(sidecar, "idle_time_breakdown", "Idle time by cause", by="idle_ns", folded=True),
    )


def _stream(row: Row) -> str:
    return f"GPU {row['device']} stream {row['stream']}"


def launches(sidecar: Sidecar) -> Section:
    """Launches and queues of streams."""
    rows = rows_of(sidecar, "launch_statistics")
    if not rows:
        return Section("Launches and queues")
    count, short_kernels = sum(row["launch_count"] for row in rows), sum(row["short_kernel_count"] for row in rows)
    lead = f"{count:,} launches; {short_kernels:,} kernels are shorter than the call that launched them."
    tables = [
        *table(sidecar, "launch_statistics", "Launches of each stream", by="launch_count"),
        *table(sidecar, "queue_length", "Operations launched and not yet started", by="mean"),
        *table(sidecar, "frequent_kernel_patterns", "Sequences of kernels that recur", by="kernel_ns", folded=True),
    ]
    return Section("Launches and queues", lead, (), tables)


def memory(sidecar: Sidecar) -> Section:
    """The peak, and what held it."""
    rows = [row for row in rows_of(sidecar, "memory_at_peak") if row["bytes"]]
    profile = rows_of(sidecar, "memory_profile")
    if not profile:
        return Section("Memory")
    peak = max(profile, key=lambda row: row["peak_allocated_bytes"] or 0)
    lead = f"At most {size(peak['peak_allocated_bytes'] or 0)} were allocated on {_device(peak)}."
    sums = totals(rows, _owner, "bytes")
    bars = [
        charts.bar(label, 0, held / 1e6, charts.BLUE, f"{held:,.0f} bytes", size(held))
        for label, (held,) in sorted(sums.items(), key=lambda each: -each[1][0])[:20]
    ]
    drawn = [charts.waterfall("memory_at_peak", "What held the memory at its peak", bars, x_title="MB")] if bars else []
    tables = [
        *table(sidecar, "memory_profile", "Memory of each device", by="peak_allocated_bytes"),
        *table(sidecar, "memory_at_peak", "What held the memory at its peak", by="bytes"),
    ]
    return Section("Memory", lead, drawn, tables)


def _owner(row: Row) -> str:
    return f"{short(row['outer_operator'] or row['operator'] or row['origin'])} ({_device(row)})"


def _device(row: Row) -> str:
    return str(row["device_type"]) if row["device"] is None else f"{row['device_type']} {row['device']}"
