"""The display of a result in a notebook: a heading, the verdict, a bar for each device, the analyses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

#: the parts of a device's time, their labels, and colours distinguishable on light and dark, also by the colour-blind
PARTS = (
    ("compute_ns", "compute", "#2f7ed8"),
    ("exposed_communication_ns", "exposed communication", "#e8871e"),
    ("exposed_memory_ns", "exposed copies", "#8c6bb1"),
    ("idle_ns", "idle", "#9a9a9a"),
)
_BAR = "display:flex;height:1.1em;width:100%;max-width:48em;border-radius:3px;overflow:hidden"
_SWATCH = "display:inline-block;width:.8em;height:.8em;border-radius:2px;vertical-align:-.05em"


class Share(Struct, frozen=True):
    """A device and its temporal breakdown: ns by column of :data:`PARTS`, which add up to ``span_ns``."""

    label: str
    span_ns: int
    parts: Mapping[str, int]


def share_of(row: Any) -> Share:
    """The share of a row of ``temporal_breakdown``."""
    rank = "" if row.rank is None else f"rank {row.rank}, "
    return Share(f"{rank}device {row.device}", row.span_ns, {name: getattr(row, name) for name, _, _ in PARTS})


def page(title: str, verdict: Sequence[str], shares: Iterable[Share], outcomes: Mapping[str, str]) -> str:
    """The HTML of a result; ``outcomes`` are texts by analysis."""
    import html

    said = "".join(f"<p style='margin:.2em 0'>{html.escape(text)}</p>" for text in verdict)
    bars = "".join(map(_bar, shares))
    items = "".join(
        f"<tr><td style='text-align:left'><code>{html.escape(name)}</code></td>"
        f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
        for name, text in outcomes.items()
    )
    table = f"<table><tbody>{items}</tbody></table>"
    listed = f"<details><summary>{len(outcomes)} analyses</summary>{table}</details>" if outcomes else ""
    return f"<div><p style='margin:.2em 0'><b>{html.escape(title)}</b></p>{said}{bars}{listed}</div>"


def _bar(share: Share) -> str:
    import html

    known = [(word, colour, share.parts[name]) for name, word, colour in PARTS if share.parts.get(name)]
    text = ", ".join(f"{word} {100 * ns / share.span_ns:.1f} %" for word, _, ns in known)
    pieces = "".join(
        f"<span style='width:{100 * ns / share.span_ns:.3f}%;background:{colour}' title='{word}: {ns:,} ns'></span>"
        for word, colour, ns in known
    )
    legend = " ".join(
        f"<span style='white-space:nowrap'><span style='{_SWATCH};background:{colour}'></span> "
        f"{word} {100 * ns / share.span_ns:.1f} %</span>&ensp;"
        for word, colour, ns in known
    )
    label = html.escape(f"{share.label}, {share.span_ns / 1e6:,.3f} ms")
    spoken = html.escape(f"{share.label}: {text}")
    return (
        f"<div style='margin:.4em 0'><div>{label}</div>"
        f"<div role='img' aria-label='{spoken}' style='{_BAR}'>{pieces}</div>"
        f"<div style='font-size:90%'>{legend}</div></div>"
    )
