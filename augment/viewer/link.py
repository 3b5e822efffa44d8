"""The link that opens a trace in the Perfetto UI with a useful first view."""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Iterable, Sequence

from augment.viewer.view import Added, View

_PIN = "dev.perfetto.PinTracksByRegex"
_EXPAND = "dev.perfetto.ExpandTracksByRegex"
_DRAW = "dev.perfetto.AddDebugSliceTrack"
_UNIT = r"( \S+)?"  #: of a counter of a Chrome trace, behind its name

#: a row of slices of a Chrome trace; the UI has it twice under one name, as a thread and what lies in it, and would pin
#: both, the thread as an empty line. Drawn anew it is there once.
_SLICES = "select s.ts, s.dur, s.name from slice s join thread_track t on t.id = s.track_id join thread using (utid)"


def ui_link(ui: str, trace_url: str, view: View) -> str:
    """The link to the UI at ``ui`` with the trace: added tracks pinned, devices expanded, zoomed in."""
    arguments = {"url": trace_url, "startupCommands": json.dumps(commands(view), separators=(",", ":"))}
    if view.window:
        arguments["visStart"], arguments["visEnd"] = map(str, view.window)
    return f"{ui}/#!/?{urllib.parse.urlencode(arguments, quote_via=urllib.parse.quote)}"


def commands(view: View) -> list[dict[str, object]]:
    """The commands that the UI runs once the trace is loaded; links may use all of them."""
    made = _pin(view.work)
    by_name: list[str] = []
    for one in view.added:
        if one.tid is None:
            by_name.append(one.name)
            continue
        made += _pin(by_name)
        by_name = []
        made.append({"id": _DRAW, "args": [f"{_SLICES} where thread.tid = {one.tid}", _title(one, view)]})
    made += _pin(by_name)
    if view.pattern:
        made.append({"id": _PIN, "args": [view.pattern]})
    if view.groups:
        made.append({"id": _EXPAND, "args": [exactly(view.groups)]})
    if view.group_pattern:
        made.append({"id": _EXPAND, "args": [view.group_pattern]})
    return made


def _title(one: Added, view: View) -> str:
    """The track's name, with the process's name where several tracks share it."""
    alike = [other for other in view.added if other.name == one.name and other.tid is not None]
    return f"{one.name}, {one.process}" if len(alike) > 1 else one.name


def _pin(names: Sequence[str]) -> list[dict[str, object]]:
    return [{"id": _PIN, "args": [exactly(names, _UNIT)]}] if names else []


def exactly(names: Iterable[str], then: str = "") -> str:
    """A JavaScript regular expression that matches exactly these names, each followed by ``then``."""
    escaped = (re.sub(r"[\\^$.*+?()[\]{}|/]", r"\\\g<0>", name) for name in dict.fromkeys(names))
    return f"^({'|'.join(escaped)}){then}$"
