"""Writes a report: as one self-contained HTML page (style, script, charts and numbers in one file that needs no
network), as Markdown for a pull request or a ticket, and its charts as files for papers and slides.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import msgspec

from augment.core.output_files import replacing
from augment.core.text import COLUMN_WORDS, counted, percent, period, spaced
from augment.diagnosis.wording import heading as in_words
from augment.errors import InputError, UsageError
from augment.history.store import Store, is_store
from augment.results.report import of_diff, of_job, of_trace, sections, trend
from augment.results.report.health import trace_of
from augment.results.sidecars import Sidecar, is_sidecar, read_sidecar, sidecars_in

_SEVERITIES = ("high", "warning", "info")
_DEVICES = ("GPU", "NPU", "MTIA device")
_SUMMED = (*_DEVICES, "rank", "ranks", "recorded", "step", "steps")
_BRIEF = 80  #: characters of a fact below the title


def page(document: sections.Document) -> str:
    """The page.

    Raises:
        UsageError: this is a checkout whose page script was not made.
    """
    data = {
        "charts": {
            chart.name: {**chart.spec, "description": chart.text}
            for section in document.sections
            for chart in section.charts
        },
        "tables": {table.name: _columns(table) for section in document.sections for table in section.tables},
    }
    embedded = msgspec.json.encode(data).decode()
    for mark in ("<", "\u2028", "\u2029"):  # JSON that may stand within a script element
        embedded = embedded.replace(mark, f"\\u{ord(mark):04x}")
    diagnostics = ""
    if document.diagnostics:
        items = "".join(f"<li>{html.escape(text)}</li>" for text in sections.doubts(document.diagnostics))
        diagnostics = (
            '<section aria-labelledby="doubts"><h2 id="doubts">What was repaired, left out or is doubtful</h2>'
        )
        diagnostics += f"<ul>{items}</ul></section>"
    cards, hidden = "".join(_findings(document)), '<h2 id="findings" class="hidden">Findings</h2>'
    # the facts that fit a line below the title
    summary = [
        text if name in (*_DEVICES, "ranks", "recorded") else f"{name} {text}"
        for name, text in document.facts
        if name in _SUMMED and len(text) <= _BRIEF
    ]
    charts, script = _charts_script() if data["charts"] else "", _resource("page.js")
    digests = [hashlib.sha256(each.encode()) for each in (charts, script)]  # the policy lets no other script run
    return Template(_resource("page.html")).substitute(
        scripts=" ".join(f"'sha256-{base64.b64encode(each.digest()).decode()}'" for each in digests),
        title=html.escape(document.title),
        heading=re.sub(r"(?<=[_.-])(?=\w)", "<wbr>", html.escape(document.title)),
        style=_resource("page.css"),
        summary=html.escape(" · ".join(summary)),
        headline='<p class="headline {1}">{0}</p>'.format(*map(_text, document.headline)) * bool(document.headline[0]),
        parts=_parts(document),
        verdict="".join(f"<p>{_text(text)}</p>" for text in said(document)),
        facts="".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in document.facts),
        subject=html.escape(document.subject),
        contents="".join(
            f'<li><a href="#{each.anchor}">{html.escape(each.title)}</a></li>' for each in document.sections
        ),
        findings=f'<section aria-labelledby="findings">{hidden}{cards}</section>' if cards else "",
        sections="".join(_section(each) for each in document.sections),
        diagnostics=diagnostics,
        data=embedded,
        charts=charts,
        script=script,
    )


_LEADS = 6


def markdown(document: sections.Document) -> str:
    """Verdict, findings and what each section says first, as Markdown."""
    lines = [f"### {sections.plain(document.title)}", "", *map(sections.plain, said(document))]
    rows = [row for row in document.findings if row.get("status", "found") == "found" and row.get("title")]
    if rows or document.cures:
        lines.append("")
    lines += [sections.plain(f"- **What to do**: {cure}.") for cure in document.cures]
    for row in rows:
        advice = f" {row['advice']}." if row.get("advice") else ""
        lines.append(sections.plain(f"- **{sections.severity_of(row)}**: {sections.heading(row)}.{advice}"))
    leads = [sections.plain(f"- {section.title}: {section.lead}") for section in document.sections if section.lead][
        :_LEADS
    ]
    caveats = [sections.plain(f"- {text}") for text in sections.doubts(document.diagnostics)]
    if leads:
        lines += ["", *leads]
    if caveats:
        lines += ["", f"<details><summary>{counted(len(caveats), 'caveat')}</summary>", "", *caveats, "", "</details>"]
    return "\n".join(lines) + "\n"


_STATIC_WIDTH = 800


def write_charts(document: sections.Document, folder: Path) -> Iterator[Path]:
    """Write each chart of ``document`` as SVG and as PNG; the paths.

    Raises:
        UsageError: vl-convert is not installed.
    """
    try:
        import vl_convert
    except ImportError as error:
        raise UsageError("--static needs vl-convert: pip install 'kineto-augment[charts]'") from error
    folder.mkdir(parents=True, exist_ok=True)
    for chart in (chart for section in document.sections for chart in section.charts):
        spec = dict(chart.spec)
        if "vega-lite" in spec["$schema"]:
            svg = vl_convert.vegalite_to_svg({**spec, "width": _STATIC_WIDTH, "background": "white"})
        else:
            svg = vl_convert.vega_to_svg({**spec, "width": _STATIC_WIDTH, "signals": [], "background": "white"})
        for path, content in ((".svg", svg.encode()), (".png", vl_convert.svg_to_png(svg, scale=2))):
            target = folder / f"{chart.name}{path}"
            with replacing(target) as file:
                file.write(content)
            yield target


def said(document: sections.Document) -> Sequence[str]:
    """The verdict; without one, what the first sections say."""
    return document.verdict or [section.lead for section in document.sections if section.lead][:2]


#: options, the tools of vendors, and periods: a line would end at their hyphens; lines of files
_UNBROKEN = r"(?<![\w-])--?[a-z][\w-]*|\b[a-z]+-smi\b|\b\d+\.\d+-\d+\.\d+\b|[\w.]+:\d+\b"


def _text(text: str) -> str:
    """A sentence in HTML; what is between backticks is code, and no line ends between a number and its unit, or within
    what is :data:`_UNBROKEN`."""
    whole = re.sub(r"(?<=\d) (?=(?:%|[nµm]?s|[kMG]?B)\b|%)", "\N{NO-BREAK SPACE}", html.escape(text))
    whole = re.sub(_UNBROKEN, r"<span class=whole>\g<0></span>", whole)
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", whole)


def _parts(document: sections.Document) -> str:
    """A bar of what a step goes into, with its legend."""
    if not document.parts:
        return ""
    named = [
        (name if colour == sections.HATCHED else f"{percent(share)} {name}", share, colour)
        for name, share, colour in document.parts
    ]
    # a sum below 1 would leave a part of the frame empty
    bar = "".join(f'<span style="flex:{1000 * share:.1f};background:{colour}"></span>' for _, share, colour in named)
    legend = "".join(f'<li><i style="background:{colour}"></i>{html.escape(text)}</li>' for text, _, colour in named)
    label = html.escape(", ".join(text for text, _, _ in named))
    return f'<div class="parts" role="img" aria-label="{label}">{bar}</div><ul class="legend">{legend}</ul>'


def _section(section: sections.Section) -> str:
    parts = [f'<section aria-labelledby="{section.anchor}"><h2 id="{section.anchor}">{html.escape(section.title)}</h2>']
    if section.lead:
        parts.append(f'<p class="lead">{_text(section.lead)}</p>')
    for chart in section.charts:
        text = html.escape(chart.text)
        caption = "" if section.lead.startswith(chart.text) else f"<figcaption>{text}</figcaption>"
        place = f'<div class="chart" id="chart-{html.escape(chart.name)}"></div>'
        parts.append(f"<figure>{caption}{place}</figure>")
    for table in section.tables:
        title = html.escape(table.title)
        rows = f"{table.total:,} row{'s' if table.total != 1 else ''}"
        if table.total > len(table.rows):
            rows = f"the first {len(table.rows):,} of {rows}; all are in the metrics file"
        opened = "" if table.folded else " open"
        summary = f"<summary>{title} <small>({rows})</small></summary>"
        parts.append(f'<details class="table"{opened} id="table-{html.escape(table.name)}">{summary}</details>')
    return "".join(parts) + "</section>"


def _findings(document: sections.Document) -> Iterator[str]:
    """Cards of what was found, then lists of what is fine and of what was not recorded."""
    shown = [row for row in document.findings if row.get("status", "found") == "found" and row.get("title")]
    if document.cures:
        items = "".join(f"<li>{_text(cure)}.</li>" for cure in document.cures)
        yield f'<article class="finding info"><h3>What to do</h3><ul>{items}</ul></article>'
    for row in shown:
        severity = sections.severity_of(row)
        title = f'<h3><span class="badge">{html.escape(severity)}</span> {_text(sections.short_heading(row))}</h3>'
        yield f'<article class="finding {severity if severity in _SEVERITIES else "info"}">{title}'
        if row.get("rule") and sections.needs_title(row):
            yield f"<p>{_text(row['title'])}.</p>"
        if row.get("advice"):
            yield f"<p><strong>What to do:</strong> {_text(row['advice'])}.</p>"
        evidence = [_text(str(each)) for each in row.get("evidence") or ()]
        if evidence:
            yield f"<ul>{''.join(f'<li>{each}</li>' for each in evidence)}</ul>"
        yield f'<p class="small">{" · ".join(_where(row, document.opened))}</p></article>'
    for status, title in (("fine", "Checked, and little to save"), ("no_data", "Cannot be told from this trace")):
        rows = [row for row in document.findings if row.get("status") == status]
        if rows:
            items = "".join(f"<li>{_text(said)}</li>" for said in sections.unfound(rows))
            yield f"<details><summary>{title} ({len(rows)})</summary><ul>{items}</ul></details>"


def _where(row: Any, opened: str) -> Iterator[str]:
    """What a finding rests on, and how to look at it in the trace ``opened``."""
    if row.get("rule"):
        yield f"rule <code>{html.escape(row['rule'])}</code>"
    if row.get("confidence"):
        yield f"confidence {html.escape(str(row['confidence']))}"
    if row.get("overlaps"):
        yield f"overlaps with {html.escape(', '.join(map(in_words, row['overlaps'])))}: do not add the savings"
    if sections.has_place(row):
        yield f"{html.escape(sections.place_of(row))}, {row['start_ns'] / 1e6:,.3f} ms after the first event"
        if opened:
            at = period(row["start_ns"], row.get("dur_ns") or 0)
            yield f"<code>augment open {html.escape(shlex.quote(opened))} <span class=whole>--at {at}</span></code>"


def _columns(table: sections.ReportTable) -> dict[str, Any]:
    names = list(table.rows[0]) if table.rows else []
    rows, about = [[row.get(name) for name in names] for row in table.rows], table.about
    columns = {"columns": names, "headings": [*map(_heading, names)], "about": [about.get(name) for name in names]}
    return {**columns, "rows": rows}


def _heading(column: str) -> str:
    stem, _, unit = column.rpartition("_")
    if unit != "ratio":  # each cell says its unit
        return COLUMN_WORDS.get(column) or spaced(stem if unit in ("ns", "gbps", "tflops") else column)
    words = COLUMN_WORDS.get(column) or spaced(stem) + (" share" if stem in ("time", "gpu") else "")
    return words if stem.endswith(("time", "gpu", "meanwhile")) else f"{words} (%)"


def _charts_script() -> str:
    try:
        return _resource("vega.js").replace("</script", "<\\/script")
    except FileNotFoundError:
        raise UsageError("the script that draws charts was not made: run python -m building.charts") from None


def _resource(name: str) -> str:
    return resources.files("augment.results.report").joinpath(name).read_text(encoding="utf-8")


Analyse = Callable[[str], Mapping[str, Any]]  #: makes the sidecar of a trace


def document_of(path: str, analyse: Analyse, given: str | None = None) -> sections.Document:
    """The report of a metrics file, of a trace, or of a history. Commands say the ``given`` path, else a name."""
    if is_store(path):
        return trend_of(path)
    sidecar = read_sidecar(path) if is_sidecar(path) else analyse(path)
    return document_of_metrics(sidecar, trace_of(given) if given else None)


def trend_of(folder: str, labels: Mapping[str, str] | None = None) -> sections.Document:
    """The report of many runs.

    Args:
        folder: the store of a history (also a URL), or a folder of runs: a run is a folder with metrics, or a metrics
            file beside others.
        labels: only runs of the history that have all of these.

    Raises:
        InputError: there are fewer than two runs.
        UsageError: there are labels, but no history.
    """
    if is_store(folder):
        runs_of_history = Store(folder).runs(labels)
        if len(runs_of_history) < 2:
            raise InputError(folder, f"holds {counted(len(runs_of_history), 'such run')}; a trend needs two")
        return trend.document_of_history(runs_of_history, _name(folder))
    if labels:
        raise UsageError("--label chooses runs of a history: name the folder that augment history add wrote")
    runs: dict[str, list[Sidecar]] = {}
    for sidecar in sidecars_in([folder]):
        if "control" not in sidecar.content and "world_size" not in sidecar.content["source"]:
            runs.setdefault(sidecar.run, []).append(sidecar)
    if len(runs) == 1:
        runs = {sidecar.trace: [sidecar] for sidecars in runs.values() for sidecar in sidecars}
    if len(runs) < 2:
        raise InputError(folder, "holds the metrics of fewer than two runs; give a folder with a folder for each run")
    named = [(name, [sidecar.content for sidecar in sidecars]) for name, sidecars in sorted(runs.items())]
    return trend.document_of_runs(named, _name(folder))


def _name(folder: str) -> str:
    return folder.rstrip("/").rpartition("/")[2] if "://" in folder else os.path.basename(os.path.abspath(folder))


def document_of_metrics(sidecar: Mapping[str, Any], path: str | None = None) -> sections.Document:
    """The report of a comparison's metrics, of a job's, or of a trace's; ``path`` is that of the trace, if known."""
    if "control" in sidecar:
        return of_diff.document(sidecar)
    return of_job.document(sidecar) if "world_size" in sidecar["source"] else of_trace.document(sidecar, path)
