"""The short form of a report, for a pull request or a ticket."""

from __future__ import annotations

from augment.core.text import counted
from augment.results.report.document import Document
from augment.results.report.html import doubts, said

_LEADS = 6


def markdown(document: Document) -> str:
    """Verdict, findings and what each section says first, as Markdown."""
    lines = [f"### {document.title}", "", *said(document)]
    rows = [row for row in document.findings if row.get("status", "found") == "found" and row.get("title")]
    advice = [f" {row['advice']}." if row.get("advice") else "" for row in rows]
    if rows:
        lines.append("")
    lines += [
        f"- **{row.get('severity') or 'info'}**: {row['title']}.{what}" for row, what in zip(rows, advice, strict=True)
    ]
    leads = [f"- {section.title}: {section.lead}" for section in document.sections if section.lead][:_LEADS]
    caveats = [f"- {text}" for text in doubts(document)]
    if leads:
        lines += ["", *leads]
    if caveats:
        lines += ["", f"<details><summary>{counted(len(caveats), 'caveat')}</summary>", "", *caveats, "", "</details>"]
    return "\n".join(lines) + "\n"
