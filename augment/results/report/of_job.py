"""The report of a job of many ranks, from its ``job.metrics.json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from augment.core.text import capitalized, counted, parallelism, percent, ranges_text, short, size, three_digits, time
from augment.results.report import charts
from augment.results.report.sections import (
    Chart,
    Document,
    Row,
    Section,
    made_table,
    not_possible,
    others,
    rows_of,
    table,
    totals,
)

Sidecar = Mapping[str, Any]
_Parts = Mapping[str, tuple[str, str]]  #: the label and colour of each figure
_MOST_BARS = 40
#: parts of what a rank is charged with in the verdict
_CHARGED = {
    "compute": ("computing", charts.BLUE),
    "copies": ("copying", charts.PURPLE),
    "host": ("its host", charts.ORANGE),
    "queued": ("work queued", charts.YELLOW),
    "before_recording": ("before the recording", charts.SKY),
    "unknown": ("unknown", charts.GREY),
}
_LEAST_PART = 0.005  #: of what a rank is charged with: less is not drawn
_CURED = ("saved", charts.GREEN)
_LEAST_SPREAD = 0.1  #: of the longest time: a map of more equal ones has one colour
_NO_DEVICE = "No work of a device was recorded, so that nothing is known of computing, waiting and idling."
_LEAST_SHARE = 0.01  #: of the longest step: a map of times that are all shorter would paint nothing deep red
_MOST_BEYOND = 2.0  #: times the longest of later steps: a first step above that does not stretch the colours
_MOST_CELLS = 16_384  #: ranks x steps of the heat map
ON_PATH = {
    "compute_ns": ("computing", charts.BLUE),
    "communication_ns": ("communicating", charts.VERMILION),
    "transfer_ns": ("moving data of collectives", charts.SKY),
    "memory_ns": ("copying", charts.PURPLE),
    "idle_ns": ("idle", charts.ORANGE),
}
_IN_STEP = {
    "compute_ns": ("computing", charts.BLUE),
    "exposed_wait_ns": ("waiting for other ranks", charts.VERMILION),
    "exposed_transfer_ns": ("moving data of collectives", charts.SKY),
    "exposed_unmatched_ns": ("collectives of ranks without traces", charts.GREY),
    "exposed_memory_ns": ("copying", charts.PURPLE),
    "idle_ns": ("idle", charts.ORANGE),
}
BUBBLE = {
    "theory_ns": ("bubble of the schedule", charts.SKY),
    "imbalance_ns": ("stages differ", charts.BLUE),
    "late_ns": ("late sends", charts.VERMILION),
    "host_ns": ("host", charts.ORANGE),
    "rest_ns": ("rest", charts.GREY),
}


def document(sidecar: Sidecar) -> Document:
    """All sections that have something to say."""
    makers = (stragglers, heat, path, communication, dimensions, pipeline, sharding, clocks)
    sections = [maker(sidecar) for maker in makers]
    shown = {each.name for section in sections for each in section.tables}
    verdict = sidecar.get("verdict", {})
    unsure = verdict.get("confidence") == "low"
    return Document(
        title=sidecar["source"]["name"],
        subject="job",
        verdict=verdict.get("text", ()),
        facts=list(facts(sidecar)),
        sections=[section for section in (*sections, others(sidecar, {*shown, "aggregates"})) if section],
        findings=verdict.get("rows", ()),
        cures=verdict.get("cures", ()),
        diagnostics=sidecar["diagnostics"],
        headline=(verdict.get("label", ""), "possible" if unsure else verdict.get("severity", "high")),
    )


def facts(sidecar: Sidecar) -> Iterator[tuple[str, str]]:
    """The lines of the header."""
    source = sidecar["source"]
    ranks = source.get("ranks") or []
    world = source.get("world_size")
    yield "ranks", f"{len(source.get('traces', ranks))} traces" + (f" of {world} ranks" if world else "")
    yield from not_possible(sidecar)
    yield "made by", f"{sidecar['tool']['name']} {sidecar['tool']['version']}"


def stragglers(sidecar: Sidecar) -> Section:
    """Who comes late, in the verdict's figures; how long others waited for each rank is in the table."""
    rows = [row for row in rows_of(sidecar, "stragglers") if row["after_the_others_ns"]]
    judged = sidecar.get("verdict", {}).get("rows", ())
    named = [row for row in judged if row.get("figures", {}).get("causes_ns")]
    is_shared = any(row.get("cause") == "shared" for row in judged)
    drawn = list(_in_steps(sidecar))
    waits, folded = "How long others waited for each rank alone, in all steps together", bool(named or drawn)
    tables = [made_table("stragglers", waits, rows, by="after_the_others_ns", folded=folded)] if rows else []
    if not named:
        why = "what others waited for each is small, or no cure would save it"
        why = f"all wait for their own hosts{', while their devices idle' * bool(drawn)}" if is_shared else why
        lead = f"No rank alone holds the job up: {why}." if rows or is_shared else ""
        return Section("Who comes late", lead, drawn, tables)
    bars: list[Row] = []
    said = []
    for row in named:
        steps = row["figures"].get("step_count") or 1
        who = f"ranks {ranges_text(row['ranks'])}" if row.get("ranks") else _rank(row)
        bars += [
            charts.part(who, _CHARGED[cause][0], ns / steps)
            for cause, ns in row["figures"]["causes_ns"].items()
            if abs(ns) > _LEAST_PART * row["charged_ns"]
        ]
        gain = (row["gain_ns"] or 0) / steps
        bars += [charts.part(f"a fix of {who} saves", _CURED[0], gain)] if gain > 0 else []
        saved = f"; at the median's speed that would save {three_digits(gain)}" if gain > 0 else ""
        said.append(f"{who} by {three_digits(row['charged_ns'] / steps)}{saved}")
    per_step = " per step" if named[0]["figures"].get("step_count") else ""
    lead = f"Late{per_step}: {', '.join(said)}."
    text = "How much longer a late rank's own work takes than its peers', by cause, and what fixing it would save"
    text += "; left of 0: what takes it less long." if any(bar["value"] < 0 for bar in bars) else "."
    parts, x_title = dict((*_CHARGED.values(), _CURED)), f"time{per_step} (ms)"
    chart = charts.stacked("causes_of_delay", text, bars, y="rank", x_title=x_title, parts=parts)
    return Section("Who comes late", lead, [*drawn, chart], tables)


def _in_steps(sidecar: Sidecar) -> Iterator[Chart]:
    """What the device of each rank does in a mean step by which the job is judged; of many, those that idle longest."""
    rows = rows_of(sidecar, "job_step_efficiency")
    judged = judged_of(sidecar, rows)
    spent = totals([row for row in rows if row["step"] in judged], _rank, *_IN_STEP)
    if any(computed for computed, *_ in spent.values()):
        text = f"What the device of each rank does in a {'mean ' * (len(judged) > 1)}step"
        text += f", of the {_MOST_BARS} that idle longest" if len(spent) > _MOST_BARS else ""
        text += "; what computing hides is not drawn."
        longest = {*sorted(spent, key=lambda rank: -spent[rank][-1])[:_MOST_BARS]}
        mean = {
            rank: [ns / len(judged) * (ns > _LEAST_PART * sum(of)) for ns in of]
            for rank, of in spent.items()
            if rank in longest
        }
        yield _by_rank("steps_of_ranks", text, mean, _IN_STEP, "time of a step (ms)")


def _by_rank(name: str, text: str, spent: Mapping[str, Sequence[float]], parts: _Parts, x_title: str) -> Chart:
    """A bar for each rank, of the parts of its time."""
    labels = dict(parts.values())
    bars = [charts.part(rank, *part) for rank, ns in spent.items() for part in zip(labels, ns, strict=True) if part[1]]
    return charts.stacked(name, text, bars, y="rank", x_title=x_title, parts=labels)


def heat(sidecar: Sidecar) -> Section:
    """Rank x step: the time that a rank had to wait."""
    rows = rows_of(sidecar, "step_heat")
    if len({(row["step"], row["rank"]) for row in rows}) < 2:
        return Section("Ranks and steps")
    judged = judged_of(sidecar, rows)
    cells = [row for row in rows if row["step"] in judged][:_MOST_CELLS] or rows[:_MOST_CELLS]
    step_count = len({row["step"] for row in cells})
    maps, least = [], _LEAST_SHARE * max(row.get("wall_ns") or 0 for row in rows) / 1e6
    computed = any(row["compute_ns"] for row in rows)  # without devices and collectives nothing is known of idle time
    names = {"wait_ns": "waits within collectives", "compute_ns": "computation"}
    names |= {"idle_ns": "idle"} if computed else {}
    for name, title in names.items():
        values = [
            {"rank": row["rank"], "step": row["step"], "value": row[name] / 1e6, "exact": f"{row[name]:,} ns"}
            for row in cells
            if row.get(name) is not None
        ]
        spent = [value["value"] for value in values] or [0.0]
        if step_count > 1 and max(spent) - min(spent) > _LEAST_SPREAD * max(spent) > _LEAST_SPREAD * least:
            hidden = ", hidden by computing or not" * (computed and name == "wait_ns")
            text, first = f"Time of each rank in each step: {title}{hidden} (ms)", values[0]["step"]
            later = max(value["value"] for value in values if value["step"] != first)
            is_beyond = max(spent) > _MOST_BEYOND * later > 0  # a slow first step would leave one colour to the others
            text += f"; step {first} is beyond the scale" if is_beyond else ""
            most = later if is_beyond else max(spent)
            maps.append(charts.heat(f"heat_{name}", text, values, title=f"{title} (ms)", most=most))
    longest = max(cells, key=lambda row: row["wait_ns"] or 0)
    waited = f"{time(longest['wait_ns'] or 0)} within collectives"
    for row in rows_of(sidecar, "job_step_efficiency"):
        if (row["trace"], row["step"]) == (longest["trace"], longest["step"]):
            # only the wait in which the rank computes nothing makes the step longer
            waited += f", of which {time(row['exposed_wait_ns'])} without computing"
            break
    lead = f"The longest wait in a step is that of {_rank(longest)} in step {longest['step']}: {waited}."
    lead = lead if longest["wait_ns"] else "No rank waits within collectives." if computed else _NO_DEVICE
    late = next((row["rank"] for row in sidecar.get("verdict", {}).get("rows", ()) if row["rank"] is not None), None)
    waits = dict[Any, int]()
    for row in cells:
        waits[row["rank"]] = waits.get(row["rank"], 0) + (row["wait_ns"] or 0)
    if late is not None and late in waits and step_count > 1 and waits[late] == min(waits.values()):
        lead += f" The pale row is rank {late}, which waits least: the others wait for it."
    tables = [
        *table(sidecar, "step_heat", "Each rank in each step", by="wait_ns", folded=step_count > 1),
        *(table(sidecar, "load_imbalance", "Balance of computation") if computed else ()),
        *table(sidecar, "job_step_efficiency", "Where each step went", by="exposed_wait_ns", folded=True),
    ]
    return Section("Ranks and steps", lead, maps, tables)


def judged_of(sidecar: Sidecar, rows: Sequence[Row]) -> Sequence[Any]:
    """The steps of ``rows`` by which the job is judged: what warms up or overlaps comes before them."""
    numbers = sorted({row["step"] for row in rows if row["step"] is not None})
    of_verdict = sidecar.get("verdict", {}).get("rows", ())
    return numbers[-max((row.get("figures", {}).get("step_count") or 0 for row in of_verdict), default=0) :]


def path(sidecar: Sidecar) -> Section:
    """The critical path over all ranks."""
    rows = rows_of(sidecar, "cross_rank_critical_path")
    steps = [row for row in rows if row["step"] is not None]
    numbers = sorted({row["step"] for row in steps})
    judged = judged_of(sidecar, steps)
    judged = judged if len(judged) < len(numbers) else []
    chosen = [row for row in rows if row["step"] in (judged or [None])] or rows
    spent = totals(chosen, _rank, "path_ns", *ON_PATH)
    whole = sum(ns for ns, *_ in spent.values())
    if not whole:
        return Section("Critical path of the job")
    order = sorted(spent, key=lambda rank: -spent[rank][0])[:_MOST_BARS]
    done = f"steps {judged[0]} to {judged[-1]} were" if len(judged) > 1 else "the job was"
    lead = f"{percent(spent[order[0]][0] / whole)} of the path that decided when {done} done is on {order[0]}."
    rows = chosen if judged else rows  # as the sentence says
    shown = steps if len(numbers) == 1 else [row if row["step"] is not None else {**row, "step": "all"} for row in rows]
    tables = [
        made_table("cross_rank_critical_path", "The path by step and rank", shown, by="path_ns"),
        *table(sidecar, "cross_rank_handovers", "Where it moves from rank to rank", by="wait_ns"),
    ]
    chart = _by_rank("job_path", lead, {rank: spent[rank][1:] for rank in order}, ON_PATH, "time on the path (ms)")
    return Section("Critical path of the job", lead, [chart], tables)


def communication(sidecar: Sidecar) -> Section:
    """Wait and transfer of collectives, and bandwidth over size with the fit."""
    rows = rows_of(sidecar, "job_collectives")
    if not rows:
        return Section("Communication")
    parts = {"wait for late ranks": charts.VERMILION, "transfer": charts.SKY}
    order = sorted(rows, key=lambda row: -(row["time_ns"] or 0))[:20]
    labels = [row["kind"] for row in order]
    if len(set(labels)) < len(labels):
        labels = [f"{row['kind']} {short(str(row['description'] or row['group']))}" for row in order]
    bars = [
        charts.part(label, part, ns or 0)
        for label, row in zip(labels, order, strict=True)
        for part, ns in zip(parts, (row["wait_ns"], row["transfer_ns"]), strict=True)
    ]
    wait, whole = (sum(row[name] or 0 for row in rows) for name in ("wait_ns", "time_ns"))
    how = "" if any(row["by_arrival_count"] for row in rows) else ", by their durations"
    lead = f"{percent(wait / (whole or 1))} of the {time(whole)} in collectives of all ranks is waiting for late ranks"
    lead = f"{'At least ' * any(row['ranks_seen'] < row['group_size'] for row in rows)}{lead}{how}."
    x_title = "time of all ranks (ms)"
    drawn = [charts.stacked("wait_and_transfer", lead, bars, y="collective", x_title=x_title, parts=parts)]
    tables = [
        *table(sidecar, "job_collectives", "Collectives by group and kind", by="time_ns"),
        *table(sidecar, "collective_sizes", "By size", by="size_bytes", folded=True),
    ]
    rows = [row for row in rows_of(sidecar, "collective_sizes") if row.get("bus_gbps") and row.get("size_bytes")]
    if len(rows) > 1:
        kinds = list(dict.fromkeys(row["kind"] for row in rows))
        colours = dict(zip(kinds, charts.COLOURS * len(kinds), strict=False))
        points = []
        for row in rows:
            label = f"{row['kind']}, group {row['group']}, {size(row['size_bytes'])}"
            exact = f"{row['bus_gbps']:.4g} GB/s, median {row['median_ns']:,.0f} ns of {row['count']:,}"
            points.append(charts.point(row["size_bytes"], row["bus_gbps"], row["kind"], row["count"], label, exact))
        fits = [
            {
                "x": row["size_bytes"],
                "y": row["bus_gbps"] * row["median_ns"] / row["fitted_ns"],
                "line": f"fit of {row['kind']}, group {row['group']}",
            }
            for row in sorted(rows, key=lambda row: row["size_bytes"])
            if row.get("fitted_ns")
        ]
        text = "Bus bandwidth over message size; dashed: time = α + size / β, fitted to these collectives."
        y = "bus bandwidth (GB/s)"
        drawn.append(charts.scatter("bandwidth", text, points, x="bytes", y=y, colours=colours, lines=fits))
    return Section("Communication", lead, drawn, tables)


def dimensions(sidecar: Sidecar) -> Section:
    """Communication by parallel dimension."""
    rows = rows_of(sidecar, "communication_by_dimension")
    if not rows:
        return Section("Parallel dimensions")
    parts = {"wait": charts.VERMILION, "transfer": charts.SKY, "unmatched": charts.GREY}
    bars = [charts.part(row["dimension"], part, row[f"{part}_ns"] or 0) for row in rows for part in parts]
    largest = max(rows, key=lambda row: row["exposed_ns"] or 0)
    exposed = time(largest["exposed_ns"] or 0)
    unknown = largest["dimension"] == "unknown"
    name = parallelism(largest["dimension"])
    which = "Collectives of unknown dimension have" if unknown else f"{capitalized(name)} has"
    lead = f"{which} the most exposed communication: {exposed}, all ranks together."
    titles = {
        "parallel_dimensions": "Dimensions, and how they are known",
        "communication_by_dimension": "Communication of each",
        "dimension_groups": "Groups against each other",
        "dimension_links": "Links",
        "rank_coordinates": "Ranks",
        "expert_parallel": "All-to-alls: what each rank receives",
    }
    folded = ("dimension_groups", "rank_coordinates")
    tables = [each for name, title in titles.items() for each in table(sidecar, name, title, folded=name in folded)]
    chart = charts.stacked("dimensions", lead, bars, y="dimension", x_title="time of all ranks (ms)", parts=parts)
    return Section("Parallel dimensions", lead, [chart], tables)


def pipeline(sidecar: Sidecar) -> Section:
    """The bubble of each stage, divided by cause."""
    rows = rows_of(sidecar, "pipeline")
    drawn = [(row, name) for row in rows[:_MOST_BARS] for name in BUBBLE if row.get(name)]
    if not drawn:
        return Section("Pipeline", "", (), table(sidecar, "pipeline", "Bubbles"))
    bars, parts = [charts.part(_rank(row), BUBBLE[name][0], row[name]) for row, name in drawn], dict(BUBBLE.values())
    chart = charts.stacked("pipeline", "The bubble of each rank by cause", bars, y="rank", x_title="ms", parts=parts)
    return Section("Pipeline", "", [chart], table(sidecar, "pipeline", "Bubbles"))


def sharding(sidecar: Sidecar) -> Section:
    """FSDP's units and DDP's buckets."""
    tables = [
        *table(sidecar, "sharding", "Sharded units: late gathers first", by="late_ns"),
        *table(sidecar, "ddp_buckets", "Buckets of DDP", by="exposed_ns"),
    ]
    return Section("Sharding and buckets", "", (), tables)


def clocks(sidecar: Sidecar) -> Section:
    """How well the clocks of ranks are known."""
    rows = rows_of(sidecar, "clock_alignment")
    known = [row["uncertainty_ns"] for row in rows if row.get("uncertainty_ns") is not None]
    lead = f"Times of different ranks can be compared to {time(max(known))}." if known else ""
    apart = [row for row in rows if row["status"] not in ("kept", "corrected", "reference")]
    if apart and len(apart) == len(rows):
        lead = "Times of different ranks cannot be compared."
    elif apart:
        lead += f" Those of {counted(len(apart), 'rank')} cannot be compared with others'."
    return Section("Clocks", lead, (), table(sidecar, "clock_alignment", "Clocks of the ranks", folded=len(rows) > 16))


def _rank(row: Row) -> str:
    return f"rank {row['rank']}" if row.get("rank") is not None else str(row.get("trace", "?"))
