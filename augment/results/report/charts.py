"""Charts as Vega-Lite specifications. Every mark has a tooltip with the exact number; colours differ also in lightness.

Colours are those of Okabe and Ito (2008), which the colour-blind tell apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from augment.results.report.sections import Chart, Row

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#56B4E9", "#D55E00", "#CC79A7", "#F0E442", "#999999")
BLUE, ORANGE, GREEN, SKY, VERMILION, PURPLE, YELLOW, GREY = COLOURS
#: more colours that differ from these, for parts of a kind
INDIGO, TEAL, PALE = "#7B6BC9", "#44AA99", "#BDD7E7"
_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
Spec = dict[str, Any]
_WORDS_SHARE = 0.3  #: of the width: changes that are nearer than this could have overlapping words


def part(label: str, name: str, ns: float) -> Row:
    """A part of the bar ``label`` of :func:`stacked`, in ms."""
    return {"label": label, "part": name, "value": ns / 1e6, "exact": f"{ns:,.0f} ns"}


def bar(label: str, start: float, end: float, colour: str, exact: str, shown: str) -> Row:
    """A bar of :func:`waterfall`."""
    return {"label": label, "start": start, "end": end, "colour": colour, "exact": exact, "shown": shown}


def point(x: float, y: float, kind: str, size: float, label: str, exact: str) -> Row:
    """A point of :func:`scatter`."""
    return {"x": x, "y": y, "kind": kind, "size": size, "label": label, "exact": exact}


def leaf(name: str, parent: str, ns: float, colour: str, label: str, exact: str) -> Row:
    """An area of :func:`treemap` that has no areas within."""
    return {"id": name, "parent": parent, "value": ns, "colour": colour, "label": label, "exact": exact}


def stacked(name: str, text: str, rows: Sequence[Row], *, y: str, x_title: str, parts: Mapping[str, str]) -> Chart:
    """Horizontal stacked bars. A row has ``label`` (of the bar), ``part``, ``value`` and ``exact`` (the tooltip).

    Args:
        y: what a bar is.
        parts: the colour of each part, in the order of drawing; the legend has those that a row is of.
    """
    parts = {part: colour for part, colour in parts.items() if any(row["part"] == part for row in rows)}
    order = {part: place for place, part in enumerate(parts)}
    data = [{**row, "order": order[row["part"]]} for row in rows]
    bars = len({row["label"] for row in rows})
    encoding = {
        "y": {"field": "label", "type": "nominal", "title": None, "sort": None},
        "x": {"field": "value", "type": "quantitative", "title": x_title, "stack": "zero", "axis": _APART},
        "color": {"field": "part", "type": "nominal", "title": None, "scale": _domain(parts), "legend": _LEGEND},
        "order": {"field": "order"},
        "tooltip": [{"field": "label", "title": y}, {"field": "part"}, {"field": "exact", "title": "exactly"}],
    }
    return Chart(
        name, _spec(data, max(24 * bars, 48), mark={"type": "bar", "height": {"band": 0.8}}, encoding=encoding), text
    )


def waterfall(name: str, text: str, rows: Sequence[Row], *, x_title: str) -> Chart:
    """Bars from ``start`` to ``end``, each below its words, so that a phone has the same room for them. A row also has
    ``label``, ``colour``, ``exact`` (the tooltip) and ``shown`` (the figure before the label).
    """
    encoding: Spec = {
        "y": _BELOW_WORDS,
        "x": {"field": "start", "type": "quantitative", "title": x_title, "scale": {"nice": False}, "axis": _FEW_TICKS},
        "x2": {"field": "end"},
        "color": {"field": "colour", "type": "nominal", "scale": None},
        "tooltip": [{"field": "label"}, {"field": "exact", "title": "exactly"}],
    }
    bars = {"mark": {"type": "bar", "height": 12, "yOffset": 9}, "encoding": encoding}
    leading: Spec = {"mark": {"type": "rule", "color": GREY, "strokeDash": [1, 3], "yOffset": 9, "aria": False}}
    leading["encoding"] = {"y": _BELOW_WORDS, "x": {"field": "start", "type": "quantitative"}, "x2": {"datum": 0}}
    return Chart(name, _spec(_with_words(rows), _ROW * len(rows), layer=[leading, bars, _ROW_WORDS, _ZERO]), text)


def forest(name: str, text: str, rows: Sequence[Row], *, x_title: str, least: float) -> Chart:
    """A dot at ``at`` and a whisker from ``low`` to ``high`` (perhaps None) in each row, beside its words, and a line
    at zero. The axis reaches at least from -``least`` to ``least``. A row also has ``label``, ``colour``, ``exact`` and
    ``shown``.
    """
    ends = [row[end] for row in rows for end in ("low", "at", "high") if row[end] is not None]
    domain = [min(-least, *ends), max(least, *ends)]
    x = {"field": "at", "type": "quantitative", "title": x_title, "axis": _FEW_TICKS}
    x["scale"] = {"domain": domain, "nice": False, "padding": 6}
    lines = {"labelExpr": "split(datum.value, '  ')", "labelLimit": 190, "labelOffset": -6}
    lines |= {"domain": False, "ticks": False}
    encoding: Spec = {
        "y": {**_BELOW_WORDS, "field": "words", "axis": lines},
        "color": {"field": "colour", "type": "nominal", "scale": None},
        "tooltip": [{"field": "label"}, {"field": "exact", "title": "exactly"}],
    }
    whiskers = {"mark": {"type": "rule", "strokeWidth": 2, "aria": False}}
    whiskers["encoding"] = {**encoding, "x": {**x, "field": "low"}, "x2": {"field": "high"}}
    dots = {"mark": {"type": "point", "filled": True, "size": 60, "opacity": 1}, "encoding": {**encoding, "x": x}}
    zero = {"data": {"values": [{}]}, "mark": {"type": "rule", "color": GREY, "aria": False}}
    zero["encoding"] = {"x": {"datum": 0}}
    return Chart(name, _spec(_with_words(rows), _ROW * len(rows), layer=[zero, whiskers, dots]), text)


_APART = {"labelOverlap": "parity", "labelSeparation": 8}
_ROW = 36  #: height of a row with its words above it
#: words stand over the bars, through which no line goes; the last two labels do not touch
_FEW_TICKS = {"tickCount": 6, "grid": False, **_APART}
_BELOW_WORDS = {"field": "label", "type": "nominal", "title": None, "sort": None, "axis": None}
_ROW_WORDS: Spec = {
    "mark": {
        "type": "text",
        "align": "left",
        "baseline": "middle",
        "dx": 3,
        "dy": -5,
        "limit": {"expr": "width"},
        "aria": False,
    },
    "encoding": {"y": _BELOW_WORDS, "x": {"value": 0}, "text": {"field": "words"}},
}
_ZERO: Spec = {
    "mark": {"type": "tick", "color": GREY, "size": 20, "thickness": 1, "yOffset": 9, "aria": False},
    "encoding": {"x": {"datum": 0}, "y": _BELOW_WORDS},
}


def _with_words(rows: Sequence[Row]) -> list[Row]:
    return [{**row, "words": f"{row['shown']}  {row['label']}"} for row in rows]


def heat(name: str, text: str, rows: Sequence[Row], *, title: str, most: float) -> Chart:
    """A map of rank and step: ``rank``, ``step``, ``value``, ``exact``. What is above ``most`` has its colour."""
    ranks = len({row["rank"] for row in rows})
    labels = {"labelOverlap": True, "labelAngle": 0}
    legend = {"orient": "top", "gradientLength": 240}
    encoding = {
        "x": {"field": "step", "type": "ordinal", "title": "step", "axis": labels},
        "y": {"field": "rank", "type": "ordinal", "title": "rank", "axis": labels},
        "color": {
            "field": "value",
            "type": "quantitative",
            "title": title,
            "scale": {"scheme": "yelloworangered", "domainMin": 0, "domainMax": most, "clamp": True},
            "legend": legend,
        },
        "tooltip": [{"field": "rank"}, {"field": "step"}, {"field": "exact", "title": title}],
    }
    return Chart(name, _spec(rows, min(max(20 * ranks, 60), 560), mark={"type": "rect"}, encoding=encoding), text)


def scatter(
    name: str, text: str, rows: Sequence[Row], *, x: str, y: str, colours: Mapping[str, str], lines: Sequence[Row] = ()
) -> Chart:
    """Points on logarithmic axes: ``x``, ``y``, ``kind``, ``size``, ``label``, ``exact``; and ``lines``: ``x``, ``y``,
    ``line`` (which points belong together), ``shown`` (words at a point, perhaps)."""
    axis = {"type": "quantitative", "scale": {"type": "log"}, "axis": _APART}
    points = {
        "mark": {"type": "point", "filled": True, "opacity": 0.75},
        "encoding": {
            "x": {"field": "x", "title": x, **axis},
            "y": {"field": "y", "title": y, **axis},
            "size": {"field": "size", "type": "quantitative", "title": "size", "legend": None, "scale": _AREAS},
            "color": {"field": "kind", "type": "nominal", "title": None, "scale": _domain(colours), "legend": _LEGEND},
            "shape": {"field": "kind", "type": "nominal", "title": None, "scale": {"domain": list(colours)}},
            "tooltip": [{"field": "label"}, {"field": "kind"}, {"field": "exact", "title": "exactly"}],
        },
    }
    roof = {
        "data": {"values": list(lines)},
        "mark": {"type": "line", "strokeDash": [4, 3], "color": GREY},
        "encoding": {
            "x": {"field": "x", **axis},
            "y": {"field": "y", **axis},
            "detail": {"field": "line"},
            "tooltip": [{"field": "line"}],
        },
    }
    named = [row for row in lines if row.get("shown")]
    above = f"datum.y == {max((row['y'] for row in named), default=0)} ? -7 : 9"  # the highest line's words
    words: Spec = {
        "data": {"values": named},
        "mark": {"type": "text", "align": "right", "dy": {"expr": above}},
        "encoding": {"x": {"field": "x", **axis}, "y": {"field": "y", **axis}, "text": {"field": "shown"}},
    }
    layers: list[Spec] = [*([roof] if lines else []), points, *([words] if named else [])]
    return Chart(name, _spec(rows, 320, layer=layers), text)


class Curves(Struct, frozen=True):
    """What :func:`trend` draws. Points have ``x``, ``y``, ``kind``, ``exact`` and perhaps ``note``; levels ``x``,
    ``y``, ``kind`` and the ``stretch`` whose ends they are; changes ``x``, ``kind`` and ``text``."""

    points: list[Row]
    levels: list[Row]
    changes: list[Row]


def trend(name: str, text: str, curves: Curves, order: Sequence[str], *, y: str, colours: Mapping[str, str]) -> Chart:
    """A figure over runs, which are in the given order: a point for each, their levels (dashed), and a vertical line
    with words where the level changed."""
    axis = {"labelOverlap": True, "labelAngle": -35, "labelLimit": 110}
    x = {"field": "x", "type": "ordinal", "title": "run", "scale": {"domain": list(order)}, "axis": axis}
    # The changes with the ``row`` of their words, from 1 on, so that words of neighbours are not in the same, and the
    # side of their lines on which there is room
    changes = curves.changes
    places = {run: place for place, run in enumerate(order)}
    marks: list[dict[str, Any]] = []
    for change in sorted(changes, key=lambda each: places[each["x"]]):
        at = places[change["x"]] / len(order)
        taken = {each["row"] for each in marks if abs(at - each["at"]) < _WORDS_SHARE}
        row = next(row for row in itertools.count(1) if row not in taken)
        marks.append({**change, "at": at, "row": row, "height": 12 * row - 4, "align": "left" if at < 0.5 else "right"})
    heights = [row["y"] for row in curves.points]
    room = (max(heights) - min(heights) or abs(heights[0]) or 1.0) * 0.06
    domain = [min(heights) - room, max(heights) + room * (1 + max((row["row"] for row in marks), default=0))]
    vertical = {"field": "y", "type": "quantitative", "title": y, "scale": {"domain": domain, "nice": False}}
    legend = _LEGEND if len(colours) > 1 else None
    color = {"field": "kind", "type": "nominal", "title": None, "scale": _domain(colours), "legend": legend}
    tooltip = [{"field": "x", "title": "run"}, {"field": "exact", "title": "exactly"}]
    if len(colours) > 1:
        tooltip.insert(1, {"field": "kind", "title": "of"})
    if any("note" in row for row in curves.points):
        tooltip.append({"field": "note", "title": "about"})
    level = {"data": {"values": list(curves.levels)}, "mark": {"type": "line", "strokeDash": [6, 3], "opacity": 0.8}}
    level["encoding"] = {"x": x, "y": vertical, "color": color, "detail": {"field": "stretch"}}
    runs = {
        "mark": {"type": "line", "point": {"filled": True, "size": 45}, "strokeWidth": 1, "tooltip": True},
        "encoding": {"x": x, "y": vertical, "color": color, "tooltip": tooltip},
    }
    rule = {"data": {"values": marks}, "mark": {"type": "rule", "strokeWidth": 2, "strokeDash": [2, 2]}}
    rule["encoding"] = {"x": x, "color": color, "tooltip": [{"field": "text", "title": "changed at"}]}
    words = [_words([row for row in marks if row["align"] == align], x, align) for align in ("left", "right")]
    layers: list[Spec] = [level, runs, *([rule] if marks else []), *(each for each in words if each)]
    return Chart(name, _spec(curves.points, 240, layer=layers), text)


def _words(rows: Sequence[Row], x: Spec, align: str) -> Spec | None:
    """Words beside the vertical lines of :func:`trend`."""
    mark = {"type": "text", "align": align, "dx": 4 if align == "left" else -4, "fontWeight": "bold"}
    high = {"field": "height", "type": "quantitative", "scale": None}
    encoding = {"x": x, "y": high, "text": {"field": "text"}}
    return {"data": {"values": rows}, "mark": mark, "encoding": encoding} if rows else None


def over_time(
    name: str,
    text: str,
    rows: Sequence[Row],
    *,
    y: str,
    colours: Mapping[str, str],
    period: Sequence[float],
    mark: tuple[float, str] | None = None,
) -> Chart:
    """Steps over time: ``x`` (ms), ``y``, ``kind``, ``exact``, perhaps a band from ``low`` to ``high``; a value holds
    until the next. ``period`` is shown, and ``mark``: a moment, and words beside it."""
    at = {
        "type": "quantitative",
        "title": "time (ms)",
        "axis": _APART,
        "scale": {"domain": list(period), "nice": False},
    }
    encoding: Spec = {
        "x": {"field": "x", **at},
        "y": {"field": "y", "type": "quantitative", "title": y},
        "color": {"field": "kind", "type": "nominal", "title": None, "scale": _domain(colours), "legend": _LEGEND},
        "tooltip": [{"field": "x", "title": "ms"}, {"field": "kind"}, {"field": "exact", "title": "exactly"}],
    }
    layers: list[Spec] = [{"mark": {"type": "line", "interpolate": "step-after"}, "encoding": encoding}]
    if any("low" in row for row in rows):
        band = {**encoding, "y": {**encoding["y"], "field": "low"}, "y2": {"field": "high"}}
        layers.insert(0, {"mark": {"type": "area", "interpolate": "step-after", "opacity": 0.25}, "encoding": band})
    if mark:
        left = 2 * mark[0] < sum(period)
        words = {"type": "text", "align": "left" if left else "right", "baseline": "bottom"}
        rule: Spec = {"type": "rule", "color": VERMILION, "strokeWidth": 2}
        data = {"values": [{"x": mark[0], "words": mark[1]}]}
        layers.append({"data": data, "mark": rule, "encoding": {"x": {"field": "x", **at}}})
        shown = {"x": {"field": "x", **at}, "y": {"value": -3}, "text": {"field": "words"}}
        layers.append({"data": data, "mark": words, "encoding": shown})
    return Chart(name, _spec(rows, 120, layer=layers), text)


def flame(name: str, text: str, rows: Sequence[Row], depth: int) -> Chart:
    """Rectangles: ``x``, ``x2`` (shares), ``depth``, ``label``, ``shown`` (what fits into it), ``exact``."""
    vertical = {"field": "depth", "type": "ordinal", "axis": None}
    encoding = {
        "x": {"field": "x", "type": "quantitative", "title": "share of GPU time (%)", "scale": {"domain": [0, 100]}},
        "x2": {"field": "x2"},
        "y": vertical,
        "color": {"field": "depth", "type": "ordinal", "legend": None, "scale": {"range": [ORANGE, YELLOW]}},
        "tooltip": [{"field": "label", "title": "module"}, {"field": "exact", "title": "exactly"}],
    }
    boxes = {"mark": {"type": "rect", "stroke": "white", "strokeWidth": 0.5}, "encoding": encoding}
    words: Spec = {
        "mark": {"type": "text", "align": "left", "dx": 3, "color": "black", "fontSize": 10},
        "encoding": {"x": {"field": "x", "type": "quantitative"}, "y": vertical, "text": {"field": "shown"}},
    }
    return Chart(name, _spec(rows, 20 * depth, layer=[boxes, words]), text)


def treemap(name: str, text: str, rows: Sequence[Row]) -> Chart:
    """Areas within areas. A row has ``id``, ``parent`` (None for the root), ``value`` (of leaves), ``colour``,
    ``label``, ``exact``. This is Vega, which Vega-Lite lacks this for."""
    places = {"type": "stratify", "key": "id", "parentKey": "parent"}
    tree = {"name": "tree", "values": list(rows), "transform": [places, _TREEMAP]}
    coloured = {"type": "filter", "expr": "datum.value && datum.colour"}
    leaves = {"name": "leaves", "source": "tree", "transform": [coloured]}
    width = "isFinite(containerSize()[0]) ? containerSize()[0] : 800"
    spec: Spec = {
        "$schema": "https://vega.github.io/schema/vega/v6.json",
        "height": 320,
        "autosize": {"type": "fit", "contains": "padding"},
        "signals": [{"name": "width", "init": width, "on": [{"events": "window:resize", "update": width}]}],
        "data": [tree, leaves],
        "marks": [_AREA, _AREA_LABEL],
    }
    return Chart(name, spec, text)


_TREEMAP: Spec = {
    "type": "treemap",
    "field": "value",
    "sort": {"field": "value", "order": "descending"},
    "round": True,
    "paddingInner": 1,
    "size": [{"signal": "width"}, {"signal": "height"}],
}
_AREA: Spec = {
    "type": "rect",
    "aria": False,
    "from": {"data": "leaves"},
    "encode": {
        "enter": {"fill": {"field": "colour"}, "tooltip": {"signal": "datum.label + ': ' + datum.exact"}},
        "update": {"x": {"field": "x0"}, "x2": {"field": "x1"}, "y": {"field": "y0"}, "y2": {"field": "y1"}},
    },
}
_FITS = "datum.x1 - datum.x0 > 70 && datum.y1 - datum.y0 > 16"
_AREA_LABEL: Spec = {
    "type": "text",
    "aria": False,
    "interactive": False,
    "from": {"data": "leaves"},
    "encode": {
        "enter": {
            "fill": {"signal": f"indexof(['{BLUE}', '{INDIGO}'], datum.colour) >= 0 ? 'white' : 'black'"},
            "fontSize": {"value": 10},
            "baseline": {"value": "top"},
        },
        "update": {
            "x": {"field": "x0", "offset": 3},
            "y": {"field": "y0", "offset": 3},
            "text": {"signal": f"({_FITS}) ? datum.label : ''"},
            "limit": {"signal": "datum.x1 - datum.x0 - 6"},
        },
    },
}
_AREAS = {"range": [30, 900]}
#: of the page's width, not the plot's, which the legend itself changes
_COLUMNS = "max(1, floor((containerSize()[0] || width) / 200))"
_LEGEND = {"orient": "top", "labelLimit": 260, "columns": {"expr": _COLUMNS}}


def _domain(colours: Mapping[str, str]) -> Spec:
    return {"domain": list(colours), "range": list(colours.values())}


def _spec(rows: Sequence[Row], height: int, **what: Any) -> Spec:
    return {"$schema": _SCHEMA, "width": "container", "height": height, "data": {"values": list(rows)}, **what}
