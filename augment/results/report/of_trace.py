"""The report of one trace, from its sidecar: the header, and a function for each section, in the page's order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from operator import itemgetter
from statistics import median
from typing import Any

from augment.core.text import counted, device_label, devices_text, opening, percent, short, size, sizes, time
from augment.diagnosis.verdict import LARGE
from augment.facts.memory.held import BEFORE
from augment.results.report import charts
from augment.results.report.sections import (
    HATCHED,
    Chart,
    Document,
    Row,
    Section,
    made_table,
    mean,
    not_possible,
    others,
    rows_of,
    severity_of,
    short_heading,
    table,
    totals,
)
from augment.results.sidecars import in_job, in_steady_steps, with_device_names

Sidecar = Mapping[str, Any]


def document(sidecar: Sidecar, path: str | None = None) -> Document:
    """All sections that have something to say; commands show the trace at ``path``, or say its name."""
    sidecar = with_device_names(in_job(dict(sidecar)))
    source = sidecar["source"]
    makers = (
        host,
        efficiency,
        steps,
        over_time,
        critical_path,
        kernels,
        modules,
        communication,
        idle,
        launches,
        memory,
        memory_snapshot,
    )
    sections = [maker(sidecar) for maker in makers]
    opened = path or source["name"]
    verdict: Sequence[str] = opening((sidecar.get("verdict") or {}).get("text", ()), opened)
    if not verdict and all(each["status"] == "skipped" for each in sidecar["analyses"].values()):
        reasons = [str(each["reason"]) for each in sidecar["analyses"].values()]
        verdict = [f"Nothing could be analysed: {reasons[0] if reasons else 'no analysis ran'}."]
    shown = {each.name for section in sections for each in section.tables}
    return Document(
        title=source["name"],
        opened=opened if source["events"] else "",
        subject="trace" if source["events"] else "recording",
        verdict=verdict,
        facts=list(facts(sidecar)),
        sections=[section for section in (*sections, others(sidecar, {*shown, "diagnosis", _SAVINGS})) if section],
        headline=headline(sidecar),
        parts=list(step_parts(sidecar)),
        findings=rows_of(sidecar, "diagnosis"),
        diagnostics=sidecar["diagnostics"],
    )


def headline(sidecar: Sidecar) -> tuple[str, str]:
    """What is gravest, if the verdict says it, and its severity: too little work, collectives of a host alone that take
    far more than the first finding saves, or that finding, if it saves much or puts others in doubt; else what is not
    known, or that there is nothing."""
    rows, whole = rows_of(sidecar, "diagnosis"), in_steady_steps(sidecar, "steps")
    few = [row["title"] for row in rows if (row.get("figures") or {}).get("problem") == "excerpt"]
    waits = (mean(whole, "host_collective_ns") or 0) / (mean(whole, "wall_ns") or 1)
    for row in [row for row in rows if row.get("in_verdict")][:1]:
        severity, saved = severity_of(row), row.get("saved_ratio")
        if few:
            return few[0], "info"
        if waits >= LARGE and waits > _FAR * (saved or 0):
            return f"Waiting in collectives of the host ({percent(waits)})", "warning"
        if severity != "info" or saved is None:
            return "Possible: " * (severity == "possible") + short_heading(row), severity
    unknown = (mean(whole, "other_wait_ns") or 0) / (mean(whole, "wall_ns") or 1)
    if unknown >= LARGE:
        return f"Idle for reasons not recorded ({percent(unknown)})", "warning"
    computed = (mean(whole, "compute_ns") or 0) / (mean(whole, "wall_ns") or 1)
    if 2 * (apart := uncounted_ns(sidecar)) > (mean(whole, "wall_ns") or 0):
        rest = f"; no serious problem in the other {time(mean(whole, 'wall_ns') or 0)}" * (2 * computed >= 1)
        return f"{time(apart)} at the start are not counted{rest}", "info"
    calls = rows_of(sidecar, "operator_breakdown")
    if computed or not calls:
        return ("No serious problem", "info") if rows and 2 * computed >= 1 else ("", "")
    spent = totals(calls, lambda row: row["operator"], "self_cpu_ns")
    longest = max(spent, key=lambda name: spent[name])
    share = percent(spent[longest][0] / max(sum(ns for (ns,) in spent.values()), 1))
    return (f"Only the host was recorded: {share} of its operators' time is {longest}", "info") if rows else ("", "")


def step_parts(sidecar: Sidecar) -> Iterator[tuple[str, float, str]]:
    """What the mean step of all devices goes into: name, share and colour. They are the verdict's. Before them what is
    long, but not counted: hatched, a multiple of the step."""
    rows = in_steady_steps(sidecar, "steps")
    whole = mean(rows, "wall_ns")
    made = [row["figures"] for row in rows_of(sidecar, "diagnosis") if row["rule"] == "graph_capture"]
    captures = any(figures.get("mostly") for figures in made if figures)
    if whole and (apart := uncounted_ns(sidecar)):
        yield f"{time(apart)} at the start, which are not counted", apart / whole, HATCHED
    for name, (label, colour) in STEP_PARTS.items():
        if whole and (ns := mean(rows, name) or 0) >= LEAST_SHARE * whole:
            yield label + ", which mostly captures graphs" * (captures and name == "host_wait_ns"), ns / whole, colour


def uncounted_ns(sidecar: Sidecar) -> int:
    """What passes before the first window of the mean step, if it is long: nothing of it counts. That other windows
    begin behind earlier work as well needs no words."""
    rows = in_steady_steps(sidecar, "steps")
    whole = mean(rows, "wall_ns")
    windows = [row for row in rows_of(sidecar, "steps") if row.get("idle_ns") is not None]
    is_whole = all(each["code"] != "cut" for each in sidecar.get("diagnostics", ()))
    before = [row.get("start_ns" if is_whole and row["step"] is None else "backlog_ns", 0) for row in windows]
    late = {row["step"]: ns for row, ns in zip(windows, before, strict=True) if whole and ns >= LARGE * whole}
    first = min(windows, key=itemgetter("start_ns"))["step"] if late else None
    return int(late[first]) if [*late] == [first] and first in {row["step"] for row in rows} else 0


def host(sidecar: Sidecar) -> Section:
    """Of a recording without GPU work: what the host did, by operator."""
    calls = [] if rows_of(sidecar, "temporal_breakdown") else rows_of(sidecar, "operator_breakdown")
    spent = totals(calls, lambda row: row["operator"], "self_cpu_ns")
    longest = sorted(((name, ns) for name, (ns,) in spent.items() if ns), key=lambda each: -each[1])[:_MOST_OPERATORS]
    if not longest:
        return Section("Operators")
    whole = sum(ns for (ns,) in spent.values())
    bars = [
        charts.bar(name, 0, ns / 1e6, charts.BLUE, f"{ns:,.0f} ns", f"{percent(ns / whole)}, {time(ns)}")
        for name, ns in longest
    ]
    lead = f"{longest[0][0]} takes {percent(longest[0][1] / whole)} of the {time(whole)} in operators."
    chart = charts.waterfall("operators", lead, bars, x_title="time of the host in the operator itself (ms)")
    return Section("Operators", lead, [chart], table(sidecar, "operator_breakdown", "Operators", by="self_cpu_ns"))


def facts(sidecar: Sidecar) -> Iterator[tuple[str, str]]:
    """The lines of the header."""
    source = sidecar["source"]
    if source["devices"]:
        yield _accelerator(sidecar), devices_text(source["devices"])
    if source["ranks"]:
        yield "rank", ", ".join(map(str, source["ranks"]))
    if source["events"]:  # a snapshot of the memory has none
        yield (
            "recorded",
            f"{counted(source['events'], 'event')} within {time(source.get('recorded_ns', source['duration_ns']))}",
        )
    if source["steps"]:
        numbers = source["steps"]
        several = f"{numbers[0]} to {numbers[-1]} ({len(numbers)})"
        worked = {row["step"] for row in rows_of(sidecar, "steps")}
        if idle := sorted({*numbers} - worked) if worked else []:
            why = "not known to be whole" if source["partial"] else f"without {_accelerator(sidecar)} work"
            several += f"; {why}: step{'s' * (len(idle) > 1)} {', '.join(map(str, idle))}"
        yield ("steps", several) if len(numbers) > 1 else ("step", str(numbers[0]))
    if source["partial"]:
        yield "incomplete", source["partial"]
    if source["events"]:  # of a file that is recorded beside a trace, nearly nothing is possible
        yield from not_possible(sidecar)
    yield "SHA-256", source["sha256"]
    yield "made by", f"{sidecar['tool']['name']} {sidecar['tool']['version']}, {source['format']}"


EFFICIENCY_PARTS = {
    "ideal_compute_ns": ("compute-bound work, at peak", charts.GREEN),
    "compute_above_ns": ("compute-bound work, time lost", charts.BLUE),
    "memory_ideal_ns": ("memory-bound work, at peak", charts.SKY),
    "memory_above_ns": ("memory-bound work, time lost", charts.INDIGO),
    "latency_bound_ns": ("small kernels, bound by latency", charts.TEAL),
    "unmodelled_ns": ("computing, roof unknown", charts.PALE),
    "exposed_communication_ns": ("exposed communication", charts.VERMILION),
    "exposed_memory_ns": ("exposed copies", charts.PURPLE),
    "host_wait_ns": ("waiting for the host", charts.ORANGE),
    "kernel_wait_ns": ("between kernels", charts.YELLOW),
    "other_wait_ns": ("idle for reasons not recorded", charts.GREY),
}


def efficiency(sidecar: Sidecar) -> Section:
    """The mean step, from the work at the peak to its whole time."""
    rows = in_steady_steps(sidecar, "step_efficiency")
    wall = mean(rows, "wall_ns")
    whole = bool(rows) and rows[0]["step"] is None
    title, of_each = ("Where the recording goes", "Figures") if whole else ("Where a step goes", "Each step")
    if not rows or not wall:
        return Section(title)
    bars: list[Row] = []
    start = 0.0
    for name, (label, colour) in EFFICIENCY_PARTS.items():
        ns = mean(rows, name) or 0.0
        if not ns:
            continue
        exact, shown = f"{ns:,.0f} ns", f"{time(ns)}, {percent(ns / wall)}"
        bars.append(charts.bar(label, start / 1e6, (start + ns) / 1e6, colour, exact, shown))
        start += ns
    mfu = mean(rows, "mfu_ratio")
    lead = f"From the first {_accelerator(sidecar)} work to the last, it" if whole else "A step"
    unknown = f". Its MFU is not known, as {rows[0].get('lacking') or 'no shapes were recorded'}."
    lead += f" takes{' on average' if len(rows) > 1 and not whole else ''} {time(wall)}"
    lead += unknown if mfu is None else f", at {percent(mfu)} MFU."
    chart = charts.waterfall("step_efficiency", _ROOF, bars, x_title=f"time{'' if whole else ' of the mean step'} (ms)")
    return Section(title, lead, [chart], table(sidecar, "step_efficiency", of_each, folded=True))


_ROOF = (
    "At peak: the time that work would take at the device's peak, its roof, which is unknown without shapes or a "
    "formula. Lost: what it took beyond that."
)
STEP_PARTS = {
    "compute_ns": ("computing", charts.BLUE),
    "exposed_communication_ns": ("exposed communication", charts.VERMILION),
    "exposed_memory_ns": ("exposed copies", charts.PURPLE),
    "host_wait_ns": ("idle: waiting for the host", charts.ORANGE),
    "kernel_wait_ns": ("idle: between kernels", charts.YELLOW),
    "other_wait_ns": ("idle: for reasons not recorded", charts.GREY),
    # of a recording without a device
    "operator_ns": ("running operators", charts.BLUE),
    "host_collective_ns": ("in collectives of the host", charts.VERMILION),
    "outside_ns": ("outside operators (Python, or not recorded)", charts.ORANGE),
}
_MOST_STEPS = 60
_MOST_OPERATORS = 12
_FAR = 3  #: times what a fix saves
LEAST_SHARE = 0.0005  #: smaller parts of a step, 0.0 %, are not in the bar at the top


def steps(sidecar: Sidecar) -> Section:
    """Each step of the device with most work."""
    rows = rows_of(sidecar, "steps")
    devices = sorted(
        {row["device"] for row in rows},
        key=lambda device: -(mean([row for row in rows if row["device"] == device], "busy_ns") or 0),
    )
    chosen = [row for row in rows if row["device"] == devices[0] and row["step"] is not None][:_MOST_STEPS]
    if len(chosen) < 2:
        return Section("Steps")
    judged = [row for row in rows_of(sidecar, "diagnosis") if row["rule"] == "step_outliers"]
    outlying = {step for row in judged if row["status"] == "found" for step in row["figures"]["steps"]}
    on_device = any(row.get(name) for row in chosen for name in STEP_PARTS)
    parts = STEP_PARTS if on_device else {"wall_ns": ("time on the host", charts.BLUE)}
    bars = [
        charts.part(f"{row['step']}{' (outlier)' if row['step'] in outlying else ''}", label, row[name])
        for row in chosen
        for name, (label, _) in parts.items()
        if row.get(name)
    ]
    steady = [row for row in chosen if row.get("is_steady", True)]
    some = f"{len(chosen)} steps; {len(steady)}" if len(steady) < len(chosen) else f"{len(chosen)} steps"
    lead = f"{some} take {time(mean(steady, 'wall_ns') or 0)} each on average"
    lead += f"; outlying: {', '.join(map(str, sorted(outlying)))}." if outlying else "."
    if len(devices) > 1:
        lead += f" The chart shows {_device_name(sidecar, chosen[0])}; the table has {len(devices) - 1} more."
    chart = charts.stacked("steps", lead, bars, y="step", x_title="time (ms)", parts=dict(parts.values()))
    return Section("Steps", lead, [chart], table(sidecar, "steps", "Figures of each step"))


_MOST_JOINED = 8  #: parts of the recording, of which a step that is longer shows a shape of its own
_TURN = 15  #: points of the time in which a device is busy: less is no turn of its curve
_ABOUT = 0.05  #: of a step, by which joined parts may differ from whole ones
_GREATEST = ("queued_count", "allocated_bytes", "reserved_bytes")
_MOST_DEVICES = len(charts.COLOURS)
_QUEUED = (
    "Work launched and not yet started, from the start of its launch call on; each kernel of a graph counts, work "
    "launched before the recording does not. At 0 nothing waits behind what the device runs"
)
_CURVES: tuple[tuple[str, str, str, Callable[[Row], float | None], Callable[[Row], str]], ...] = (
    (
        "busy_over_time",
        "Share of the time in which the device ran work",
        "busy (%)",
        lambda row: busy_percent(row),
        lambda row: f"{row['busy_ns']:,} of {row['dur_ns']:,} ns ({percent(row['busy_ns'] / (row['dur_ns'] or 1))})",
    ),
    (
        "queue_over_time",
        _QUEUED,
        "queued",
        lambda row: row["queued_count"],
        lambda row: f"{row['queued_count']:,} queued, {row['launch_count']:,} launches",
    ),
    (
        "memory_over_time",
        "Memory allocated on the device",
        "allocated (GB)",
        lambda row: None if row["allocated_bytes"] is None else row["allocated_bytes"] / 1e9,
        lambda row: f"{size(row['allocated_bytes'])} ({row['allocated_bytes']:,} bytes)",
    ),
)


def over_time(sidecar: Sidecar) -> Section:
    """Charts of one axis of time each, of the devices with most work."""
    rows = [row for row in rows_of(sidecar, "activity_over_time") if row["busy_ns"] is not None]

    def label(row: Row) -> str:
        rank = "" if row["rank"] is None else f"rank {row['rank']} "
        return f"{rank}{_device_name(sidecar, row)}"

    busy = totals(rows, label, "busy_ns")
    chosen = sorted(sorted(busy, key=lambda label: -busy[label][0])[:_MOST_DEVICES])
    colours = dict(zip(chosen, charts.COLOURS, strict=False))
    shown: Sequence[Row] = [row for row in rows if label(row) in colours]
    if not shown:
        return Section("Over time")
    steps = sorted({row["start_ns"] for row in rows_of(sidecar, "steps") if row["device"] == shown[0]["device"]})
    shown, period = _joined(shown, [later - start for start, later in pairwise(steps)])
    parts = len({row["start_ns"] for row in shown})
    lead = f"From the first launch or {_accelerator(sidecar)} work to the last, in {parts} equal parts{period}; for "
    lead += "queues and memory, the greatest value of each part."
    if len(busy) > len(chosen):
        lead += f" Shown are the {len(chosen)} of {len(busy)} devices with most work."
    folded = table(sidecar, "activity_over_time", "Each part", folded=True)
    drawn = []
    edges = [min(row["start_ns"] for row in shown) / 1e6, max(row["start_ns"] for row in shown) / 1e6]
    for name, text, y, value, exact in _CURVES:
        points = [
            {"x": row["start_ns"] / 1e6, "y": value(row), "kind": label(row), "exact": exact(row)}
            | ({"low": row["range"][0], "high": row["range"][-1]} if "range" in row and name == _CURVES[0][0] else {})
            for row in shown
            if value(row) is not None
        ]
        if any(point["y"] for point in points):
            drawn.append(charts.over_time(name, text, points, y=y, colours=colours, period=edges))
    return Section("Over time", lead, drawn, folded)


def _joined(rows: Sequence[Row], steps: Sequence[int]) -> tuple[Sequence[Row], str]:
    """The parts, where steps are few parts long, joined so that each is about as long as some steps, and how many, in
    words; else, where the curve only goes up and down, joined until it does not: a comb's teeth tell nothing. Joined
    parts have the ``range`` of those within, %."""
    length = median(steps) / (rows[0]["dur_ns"] or 1) if steps else 0
    words = ""
    if 1 < length < _MOST_JOINED:
        times = range(2, _MOST_JOINED + 1)
        joined = min(times, key=lambda count: (max(abs(count / length - (round(count / length) or 1)), _ABOUT), count))
        words = f", each about as long as {counted(round(joined / length) or 1, 'step')}"
    else:
        joined = next((count for count in range(1, _MOST_JOINED) if not is_comb(rows, count)), _MOST_JOINED)
    if joined == 1:
        return rows, ""
    last = max((1 + max(row["part"] for row in rows)) // joined - 1, 0)
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["rank"], row["device"], min(row["part"] // joined, last)].append(row)
    made: list[Row] = []
    for each in groups.values():
        sums = {name: sum(row[name] for row in each) for name in ("dur_ns", "busy_ns", "launch_count")}
        most = {name: max((row[name] for row in each if row[name] is not None), default=None) for name in _GREATEST}
        made.append({**each[0], **sums, **most, "range": sorted(map(busy_percent, each))[:: max(len(each) - 1, 1)]})
    return made, f"{words}; the line is the mean of each, the band reaches from the least to the greatest within it"


def busy_percent(row: Row) -> float:
    """The share of a part in which the device had work, %."""
    return float(100 * row["busy_ns"] / (row["dur_ns"] or 1))


def is_comb(rows: Sequence[Row], joined: int) -> bool:
    """Whether a device's curve, of so many parts joined, turns in every third of them."""
    for device in {(row["rank"], row["device"]) for row in rows}:
        busy = [busy_percent(row) for row in rows if (row["rank"], row["device"]) == device]
        means = [sum(busy[at : at + joined]) / joined for at in range(0, len(busy) - joined + 1, joined)]
        moves = [after - before for before, after in pairwise(means) if abs(after - before) >= _TURN]
        if sum(before * after < 0 for before, after in pairwise(moves)) > len(means) / 3:
            return True
    return False


def _device_name(sidecar: Sidecar, row: Row) -> str:
    is_only = len({each["device"] for each in rows_of(sidecar, "temporal_breakdown")}) <= 1
    return device_label(_accelerator(sidecar), row["device"], is_only)


def _accelerator(sidecar: Sidecar) -> str:
    """What a device is called; metrics of earlier versions do not say."""
    return str(sidecar.get("source", {}).get("accelerator") or "GPU")


_SAVINGS = "critical_path_operators"
#: what the kinds of the path are called in the other charts
_ON_PATH = {
    "cpu_operator": "operators on the host",
    "runtime_call": "runtime calls",
    "data_loading": "fetches of batches",
    "outside_operators": "the host outside operators (Python)",
    "thread_handover": "handover between threads",
    "launch_delay": "delay from launch to start",
    "kernel_computation": "computing",
    "kernel_communication": "communication",
    "kernel_memory": "copies",
    "kernel_gap": "between kernels",
    "sync": "waiting for the device",
}
_LEAST = 0.0005  #: shares of the path below this are not drawn


def critical_path(sidecar: Sidecar) -> Section:
    """What the path consists of, and what would shorten it."""
    steady = {row["step"] for row in in_steady_steps(sidecar, "steps")}
    rows = [row for row in rows_of(sidecar, "critical_path") if not steady or row["step"] in steady]
    sums = totals(rows, lambda row: row["bound_by"], "time_ns", "device_busy_ns")
    whole = sum(ns for ns, _ in sums.values())
    if not whole:
        return Section("Critical path")
    order = sorted(sums.items(), key=lambda each: -each[1][0])
    bars = [
        charts.bar(_ON_PATH.get(kind, kind), 0.0, ns / 1e6, charts.BLUE, f"{ns:,.0f} ns", percent(ns / whole))
        for kind, (ns, _) in order
        if ns >= _LEAST * whole
    ]
    accelerator, (most, (ns, busy)) = _accelerator(sidecar), order[0]
    lead = "The critical path is the chain of work and waits that nothing else hides. Shortening anything beside it "
    lead += f"changes nothing. Shares are of this chain, not of the {accelerator}'s time. "
    lead += f"{bars[0]['shown']} of the path is {bars[0]['label']}."
    if most in ("cpu_operator", "runtime_call", "outside_operators") and 2 * busy > ns:
        lead += f" The {accelerator} works for {percent(busy / ns)} of that time: the host may be waiting for it."
    drawn = [charts.waterfall("critical_path", lead, bars, x_title="time on the path (ms)")] if len(bars) > 1 else []
    columns = ("step", "name", "bound_by", "count", "time_ns", "time_ratio", "saved_ns", "slack_ns")
    of_steps = bool(steady - {None})
    title = f"How much shorter {'one step' if of_steps else 'the recording'} would be, if a name took no time in it"
    names = [{**row, "bound_by": _ON_PATH.get(row["bound_by"], row["bound_by"])} for row in rows_of(sidecar, _SAVINGS)]
    times = Counter((row["step"], row["saved_ns"]) for row in names)
    saved = {ns for _, ns in times}
    if any(count > 1 and ns for (_, ns), count in times.items()):
        lead += " Names that would save the same reach the same limit: other work takes as long."
    if not saved - {0}:
        lead += " No name on it would save anything alone: what runs beside it takes as long."
    elif of_steps:
        lead += " The table takes a name's time, not its launches, out of one step; findings are of the mean step."
    savings = [made_table(_SAVINGS, title, names, by="saved_ns", columns=columns)] if len(saved) > 1 else []
    return Section("Critical path", lead, drawn, savings)


_MOST_LEAVES = 120
_MOST_POINTS = 150
#: of computing families, and of what else kernels do, as in the other charts
_FAMILIES = (charts.BLUE, charts.SKY, charts.GREEN, charts.TEAL, charts.INDIGO, charts.PALE)
_OTHER_TYPES = {"COMMUNICATION": charts.VERMILION, "MEMORY": charts.PURPLE}
_BOUNDS = {"compute": charts.BLUE, "memory": charts.ORANGE, "latency": charts.GREY}


def kernels(sidecar: Sidecar) -> Section:
    """Kernels by family and name, operators, and how near each is to its roof."""
    rows = [row for row in rows_of(sidecar, "kernel_breakdown") if row["sum_ns"]]
    if not rows:
        return Section("Kernels and operators")
    families = totals(rows, lambda row: row.get("family") or row["kernel_type"], "sum_ns")
    whole = sum(ns for (ns,) in families.values()) or 1
    order = sorted(families, key=lambda family: -families[family][0])
    named = ", ".join(f"{family.replace('_', ' ')} {percent(families[family][0] / whole)}" for family in order[:3])
    lead = f"Most {_accelerator(sidecar)} time: {named}."
    computing = [family for family in order if family.upper() not in _OTHER_TYPES]
    places = {family: place for place, family in enumerate(computing)}
    nodes: list[Row] = [{"id": "all", "parent": None}]
    nodes += [{"id": f"family {family}", "parent": "all"} for family in order]
    largest = sorted(rows, key=lambda row: -row["sum_ns"])
    for place, row in enumerate(largest[:_MOST_LEAVES]):
        family = row.get("family") or row["kernel_type"]
        colour = _OTHER_TYPES.get(row["kernel_type"]) or _FAMILIES[min(places.get(family, 0), len(_FAMILIES) - 1)]
        exact = f"{row['sum_ns']:,} ns in {row['count']:,} calls"
        label = f"{family}: {short(row['name'])}" + (f", {row['source']}" if row.get("source") else "")
        nodes.append(charts.leaf(str(place), f"family {family}", row["sum_ns"], colour, label, exact))
    rest = sum(row["sum_ns"] for row in largest[_MOST_LEAVES:])
    if rest:
        label = f"{len(rows) - _MOST_LEAVES} more kernels"
        nodes.append(charts.leaf("rest", "all", rest, charts.GREY, label, f"{rest:,} ns"))
    treemap = charts.treemap("kernels_by_family", "Kernels as areas, by family.", nodes)
    drawn = [treemap, *_roofline(rows_of(sidecar, "roofline"))]
    tables = [
        *table(sidecar, "kernel_family_breakdown", "By kind of work", by="sum_ns"),
        *table(sidecar, "kernel_breakdown", "Kernels", by="sum_ns"),
        *table(sidecar, "source_lines", "Lines of the program", by="gpu_ns"),
        *table(sidecar, "operator_breakdown", "Operators", by="self_gpu_ns"),
        *table(sidecar, "roofline", "Operators against their device's peak, the most lost time first", by="lost_ns"),
    ]
    return Section("Kernels and operators", lead, drawn, tables)


def _roofline(rows: Sequence[Row]) -> list[Chart]:
    usable = [
        row for row in rows if row.get("intensity") and row.get("achieved_tflops") and row.get("bound") in _BOUNDS
    ]
    if len(usable) < 2:  # the table says as much
        return []
    largest = sorted(usable, key=lambda row: -row["time_ns"])[:_MOST_POINTS]
    points = []
    for row in largest:
        label = f"{short(row['operator'] or 'no operator')} {row['number'] or ''} {short(row['shapes'] or '')}"
        share = percent(row["roof_ratio"] or 0)
        exact = f"{row['achieved_tflops']:.4g} TFLOP/s, {share} of its roof, {time(row['time_ns'])}"
        at = row["intensity"], row["achieved_tflops"]
        points.append(charts.point(*at, row["bound"], row["time_ns"] / 1e6, label, exact))
    used = {bound: colour for bound, colour in _BOUNDS.items() if any(point["kind"] == bound for point in points)}
    xs = [point["x"] for point in points]
    # The roof of each type of number: the memory's bandwidth up to the peak of the operations
    low = min(xs) / 3
    high = max(xs) * 3
    memory = [
        row["size_bytes"] / row["roof_ns"]
        for row in rows
        if row["bound"] == "memory" and row.get("roof_ns") and row.get("size_bytes")
    ]
    bandwidth = sorted(memory)[len(memory) // 2] if memory else None  # GB/s: bytes per ns
    lines: list[Row] = []
    for number in dict.fromkeys(row["number"] for row in rows):
        compute = [
            row["flops"] / row["roof_ns"] / 1e3
            for row in rows
            if row["bound"] == "compute" and row["number"] == number and row.get("roof_ns") and row.get("flops")
        ]
        if not compute:
            continue
        peak = sorted(compute)[len(compute) // 2]
        name = f"peak of {number or 'its numbers'}, {peak:.4g} TFLOP/s"
        if bandwidth:
            knee = peak * 1e3 / bandwidth
            start = min(low, knee / 2)
            lines.append({"x": start, "y": start * bandwidth / 1e3, "line": name})
            lines.append({"x": knee, "y": peak, "line": name})
            lines.append({"x": max(high, knee * 2), "y": peak, "line": name, "shown": name})
        else:
            lines += [{"x": low, "y": peak, "line": name}, {"x": high, "y": peak, "line": name, "shown": name}]
    if bandwidth and not lines:
        name = f"memory bandwidth, {bandwidth:,.0f} GB/s"
        lines.append({"x": low, "y": low * bandwidth / 1e3, "line": name})
        lines.append({"x": high, "y": high * bandwidth / 1e3, "line": name, "shown": name})
    text = "Operators: operations per byte, and TFLOP/s; the area is time" + (
        "; the dashed lines are what the device can do." if lines else "."
    )
    return [charts.scatter("roofline", text, points, x="operations per byte", y="TFLOP/s", colours=used, lines=lines)]


_LEAST_MODULES = 0.01  #: of the GPU time: less is not drawn
_LEAST_BOX = 0.002  #: shares below this are not drawn
_CHARACTERS = 130  #: so many characters fit into the width of the chart
_IN_PASS: dict[str, Callable[[Row], int]] = {
    "all": lambda row: row["gpu_ns"],
    "forward": lambda row: row["gpu_ns"] - (row["backward_gpu_ns"] or 0),
    "backward": lambda row: row["backward_gpu_ns"] or 0,
}


def modules(sidecar: Sidecar) -> Section:
    """GPU time of modules within modules, forward and backward."""
    every = [row for row in rows_of(sidecar, "gpu_time_by_module") if row["gpu_ns"]]
    rows = [row for row in every if row["module"]]
    if not rows:
        return Section("Modules")
    backward = sum(row["backward_gpu_ns"] or 0 for row in rows if "/" not in row["module"])
    whole = sum(row["gpu_ns"] for row in rows if "/" not in row["module"])
    share = whole / max(whole + sum(row["gpu_ns"] for row in every if not row["module"]), 1)
    lead = f"{percent(share)} of the GPU time is of recorded modules"
    lead += f", {percent(backward / whole)} of that in the backward pass." if backward else "."
    passes = {"forward": "Forward pass", "backward": "Backward pass"} if backward else {"all": "GPU time"}
    passes = passes if share >= _LEAST_MODULES else {}
    drawn = []
    for name, title in passes.items():
        boxes = _boxes(rows, _IN_PASS[name])
        depth = 1 + max((box["depth"] for box in boxes), default=0)
        chart = "modules" if name == "all" else f"modules_{name}"
        text = f"{title}: modules within modules; the width is time of the GPU."
        drawn.append(charts.flame(chart, text, boxes, depth))
    return Section("Modules", lead, drawn, table(sidecar, "gpu_time_by_module", "Modules", by="gpu_ns"))


def _boxes(rows: Sequence[Row], time_of: Callable[[Row], int]) -> list[dict[str, Any]]:
    """The rectangle of each module: its share of the GPU time, within that of the module around it. Siblings are in
    the order of their time in all, so that all charts have them in one order."""
    time: dict[str, int] = defaultdict(int)
    whole_time: dict[str, int] = defaultdict(int)
    for row in rows:
        time[row["module"]] += time_of(row)
        whole_time[row["module"]] += row["gpu_ns"]
    inner: dict[str, list[str]] = defaultdict(list)
    for path in time:
        parent = path.rpartition("/")[0]
        while parent and parent not in time:
            parent = parent.rpartition("/")[0]
        inner[parent].append(path)
    whole = sum(time[path] for path in inner[""]) or 1
    boxes: list[dict[str, Any]] = []
    pending = [("", 0.0, 0)]
    while pending:
        parent, at, depth = pending.pop()
        for path in sorted(inner[parent], key=lambda name: -whole_time[name]):
            share = time[path] / whole
            if share >= _LEAST_BOX:
                name = path.rpartition("/")[2]
                room = int(share * _CHARACTERS)
                shown = name if len(name) <= room else name[: room - 1] + "…" if room > 3 else ""
                box = {"x": 100 * at, "x2": 100 * (at + share), "depth": depth, "label": path, "shown": shown}
                boxes.append({**box, "exact": f"{time[path]:,} ns, {percent(share)}"})
                pending.append((path, at, depth + 1))
            at += share
    return boxes


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


_IDLE = {"host_wait": "waiting for the host", "kernel_wait": "between kernels", "other": "reasons not recorded"}


def idle(sidecar: Sidecar) -> Section:
    """Why streams were idle."""
    rows = rows_of(sidecar, "idle_time_breakdown")
    colours = (charts.ORANGE, charts.YELLOW, charts.GREY, charts.SKY)
    parts = dict(zip((*_IDLE.values(), "another stream busy"), colours, strict=True))
    bars = []
    for row in rows:
        others = row.get("other_stream_busy_ns") or 0
        label = _stream(sidecar, row)
        for part, ns in ((_IDLE.get(row["category"], ""), row["idle_ns"] - others), ("another stream busy", others)):
            if ns and part in parts:
                bars.append(charts.part(label, part, ns))
    if not bars:
        return Section("Idle time")
    waits = totals(rows, partial(_stream, sidecar), "device_host_wait_ns")
    stream, (host,) = max(waits.items(), key=itemgetter(1))
    waited = (
        f"From its first to its last work, {stream} waited {time(host)} for the host while nothing ran on the device"
    )
    lead = f"{waited}; steps count what they wait before and after, too." if host else ""
    text, x_title = "Idle time of each stream by cause", "idle time (ms)"
    chart = charts.stacked("idle", text, bars, y="stream", x_title=x_title, parts=parts)
    folded = table(sidecar, "idle_time_breakdown", "Idle time by cause", by="idle_ns", folded=True)
    return Section("Idle time", lead, [chart], folded)


def _stream(sidecar: Sidecar, row: Row) -> str:
    return f"{_device_name(sidecar, row)} stream {row['stream']}"


def launches(sidecar: Sidecar) -> Section:
    """Launches and queues of streams."""
    rows = rows_of(sidecar, "launch_statistics")
    if not rows:
        return Section("Launches and queues")
    count, calls, short_kernels = (
        sum(row.get(name) or 0 for row in rows) for name in ("launch_count", "call_count", "short_kernel_count")
    )
    shorter = f"shorter than the call{', which may be that of a whole graph' * (2 * calls < count)}"
    lead = f"{counted(calls, 'call')} launched {counted(count, 'piece')} of work, {short_kernels:,} {shorter}."
    tables = [
        *table(sidecar, "launch_statistics", "Launches of each stream", by="launch_count"),
        *table(sidecar, "queue_length", "Operations launched and not yet started", by="mean"),
        *table(sidecar, "frequent_kernel_patterns", "Sequences of kernels that recur", by="kernel_ns", folded=True),
    ]
    return Section("Launches and queues", lead, (), tables)


def memory(sidecar: Sidecar) -> Section:
    """The peak, and what held it."""

    def where(row: Row) -> str:
        return str(row["device_type"]) if row["device"] is None else _device_name(sidecar, row)

    def owner(row: Row) -> str:
        return f"{short(row['outer_operator'] or row['operator'] or row['origin'])} ({where(row)})"

    rows = [row for row in rows_of(sidecar, "memory_at_peak") if row["bytes"]]
    profile = rows_of(sidecar, "memory_profile")
    if not profile:
        return Section("Memory")
    peak = max(profile, key=lambda row: row["peak_allocated_bytes"] or 0)
    lead = f"At most {size(peak['peak_allocated_bytes'] or 0)} were allocated on {where(peak)}."
    sums = totals(rows, owner, "bytes")
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


_LEAST_HELD = 0.0005  #: of what is allocated: less is no bar


def memory_snapshot(sidecar: Sidecar) -> Section:
    """The moment of the verdict in a memory snapshot: the last out of memory, else the peak; and who held what then."""
    rows = rows_of(sidecar, "memory_snapshot")
    levels = [row for row in rows if row["by"] == "level" and row["name"] == "allocated"]
    if not levels:
        return Section("Memory snapshot")
    failed = [row for row in levels if row["moment"] == "oom"]
    peaks = [row for row in levels if row["moment"] == "peak"] or levels
    moment = max(failed, key=lambda row: row["at_ns"] or 0) if failed else max(peaks, key=lambda row: row["bytes"])
    here = [row for row in rows if all(row[name] == moment[name] for name in ("device", "moment", "at_ns"))]
    level = {row["name"]: row["bytes"] for row in here if row["by"] == "level"}
    what = {"oom": "Out of memory", "peak": "The peak"}.get(moment["moment"], "The end")
    if "requested" in level:
        what += f": {sizes(level['requested'])} requested"
    points = [
        {
            "x": row["start_ns"] / 1e6,
            "y": row[name] / 1e9,
            "kind": kind,
            "exact": f"{size(row[name])} ({row[name]:,} bytes)",
        }
        for row in rows_of(sidecar, "activity_over_time")
        if row["device"] == moment["device"]
        for name, kind in (("allocated_bytes", "allocated"), ("reserved_bytes", "reserved"))
        if row[name] is not None
    ]
    drawn = []
    if points:
        text = f"Memory of GPU {moment['device']} from the first action of the snapshot on, the greatest of each part"
        colours = {"reserved": charts.ORANGE, "allocated": charts.BLUE}
        edges = [points[0]["x"], max(points[-1]["x"], (moment["at_ns"] or 0) / 1e6)]
        mark = None if moment["at_ns"] is None else (moment["at_ns"] / 1e6, what)
        drawn = [charts.over_time("snapshot", text, points, y="GB", colours=colours, period=edges, mark=mark)]
    holders = [row for row in here if row["by"] == "line" and (row["allocated_ratio"] or 0) >= _LEAST_HELD]
    known = [row["name"] for row in holders if row["name"] != BEFORE]
    bars = [
        charts.bar(
            row["name"], 0, row["bytes"] / 1e9,
            charts.VERMILION if row["name"] == known[0] else charts.GREY if row["name"] == BEFORE else charts.BLUE,
            f"{row['bytes']:,} bytes in {row['count']:,} allocations",
            f"{size(row['bytes'])}, {percent(row['allocated_ratio'] or 0)}",
        )
        for row in holders
    ] if known else []  # fmt: skip
    lead = f"{what} on GPU {moment['device']}, with {size(moment['bytes'])} allocated"
    lead += f" of {size(level['reserved'])} reserved." if "reserved" in level else "."
    if bars:
        text = "Who held the allocated memory then, by line of code"
        drawn.append(charts.waterfall("holders", text, bars, x_title="GB"))
    return Section("Memory snapshot", lead, drawn, table(sidecar, "memory_snapshot", "At each moment", folded=True))
