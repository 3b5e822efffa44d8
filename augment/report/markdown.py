"""The short form of a report, for a pull request or a ticket."""

from __future__ import annotations

from augment.report.document import Document
from augment.report.html import said
from augment.units import counted

_LEADS = 6


def markdown(document: Document) -> str:
    """Verdict, findings and what each section says first, as Markdown."""
    lines = [f"### {document.title}", "", *said(document), ""]
    for row in document.findings:
        if row.get("status", "found") == "found" and row.get("title"):
            advice = f" {row['advice']}." if row.get("advice") else ""
            lines.append(f"- **{row.get('severity') or 'info'}**: {row['title']}.{advice}")
    leads = [f"- {section.title}: {section.lead}" for section in document.sections if section.lead][:_LEADS]
    doubts = [f"- {row['count']:,} {row['message']}" for row in document.diagnostics]
    if leads:
        lines += ["", *leads]
    if doubts:
        lines += ["", f"<details><summary>{counted(len(doubts), 'caveat')}</summary>", "", *doubts, "", "</details>"]
    return "\n".join(lines) + "\n"
