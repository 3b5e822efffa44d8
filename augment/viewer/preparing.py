"""Prepares the file to show from the file that the user named."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from augment import facts
from augment.core import GPU_WORK, AugmentedTrace, Skipped, Trace, output_files
from augment.errors import InputError, UnknownFormat, UsageError, expect_regular
from augment.pipeline import augment
from augment.readers import read
from augment.viewer.view import UNKNOWN, View, timeline_view, view_of
from augment.writers import WRITERS, write_all, writer_named
from augment.writers.perfetto.several import first_view, is_of_several

#: bytes of Kineto text that, with augment's additions, fit into the 4 GB of Perfetto's 32-bit engine (measured: v52)
BROWSER_TEXT_BYTES = 1_600_000_000
_BEST_FIRST = ("perfetto", "chrome", "bundle")  #: names of writers, best display in the UI first
Report = Callable[[str], None]  #: called with one line of text for the user


class Prepared(Struct, frozen=True):
    """The file to show, and how."""

    path: Path
    view: View


def prepare(name: str, folder: Path, say: Report, stage: Report, *, whole: bool = False) -> Prepared:
    """The file to show for ``name``: the file itself if augment wrote it, else its augmented trace.

    The augmented trace is made in ``folder``, unless a newer one lies next to the raw trace. If the raw trace is too
    large for a browser, only some steps are shown, unless ``whole`` is set.

    Raises:
        InputError: the file cannot be read.
        UsageError: the file holds metrics.
    """
    if name.endswith(output_files.METRICS_SUFFIX):
        raise UsageError(f"{name}: holds metrics, not a trace; augment show prints them")
    if os.path.isdir(name):
        raise UsageError(f"{name}: is a folder; name one trace in it")
    path = Path(name)
    if not path.exists():
        raise InputError(name, "no such file")
    expect_regular(name)
    if is_of_several(path):
        return Prepared(path, timeline_view(first_view(path)))
    if not (
        output_files.is_output(name) or path.name.endswith(tuple(writer.SUFFIX for writer in WRITERS))
    ):  # not augment's
        made = newer_beside(path)
        if made is None:
            # Augment into ``folder``
            stage(f"reading {name}")
            recorded = read(name)
            fitting = recorded if whole else _fitting(recorded, say)
            left_out_ns = int(fitting.events.ts[0] - recorded.events.ts[0]) if len(fitting.events) else 0
            del recorded
            augmented = augment(fitting, progress=lambda analysis, _done, _of: stage(analysis))
            if not len(fitting.events) and not augmented.annotations:  # a log, or a dump of the flight recorder
                raise InputError(name, f"has nothing to draw; what is in it: augment diagnose {shlex.quote(name)}")
            stage("writing")
            prepared = augmented_into(augmented, folder)
            say(f"augmented {os.path.basename(name)} into a temporary folder; augment run keeps what it makes")
            for line in what_is_missing(augmented):
                say(line)
            return replace(prepared, view=prepared.view.since(left_out_ns))
        say(f"opening {made.name}, which is next to {path.name} and newer")
        path = made
    stage(f"reading {path}")
    try:
        trace = read(str(path))
    except UnknownFormat:
        return Prepared(path, UNKNOWN)
    if partial := trace.partial or _partial_of_source(path):
        say(f"{path.name} is not whole: {partial}")
    if trace.source.insert_at is None:
        return Prepared(path, view_of(trace))
    source, native = native_of(trace, folder)
    say(f"showing {path.name} in Perfetto's own format, from a temporary folder")
    return Prepared(native, view_of(source))


def newer_beside(path: Path) -> Path | None:
    """The best augmented trace next to a raw one that is not older than it."""
    changed = path.stat().st_mtime_ns
    for writer in map(writer_named, _BEST_FIRST):
        output = output_files.output_path(path.name, path.parent, writer.SUFFIX)
        if output.exists() and output.stat().st_mtime_ns >= changed:
            return output
    return None


_DEVICE = re.compile(r" device (\S+)$")


def native_of(trace: Trace, folder: Path) -> tuple[Trace, Path]:
    """The source of an augmented Chrome file, without the added tracks, and the whole file in native format: added
    threads are plain tracks below the devices that their names contain, and Perfetto drops nothing.
    """
    events = trace.events
    added = facts.names.starting(trace, "augment.")[events.category_name[:]]
    streams = Counter(events.track[events.slices_of(*GPU_WORK)].tolist())
    devices = [trace.tracks[index] for index, _ in streams.most_common()]  # those with most work first
    tracks = list(trace.tracks)
    for index in np.unique(events.track[added & (events.phase == ord("X"))]).tolist():
        track = tracks[index]
        wanted = _DEVICE.search(track.thread_name or "")
        known = (of.device for of in devices if of.pid == track.pid and (not wanted or str(of.device) == wanted[1]))
        tracks[index] = replace(track, device=next(known, None), tid=f"augment {track.tid}")
    writer = writer_named("perfetto")
    path = folder / f"{trace.source.name.split('.', 1)[0] or 'trace'}{writer.SUFFIX}"
    writer.write_seamed(AugmentedTrace(trace.changed(tracks=tuple(tracks)), {}), path)
    return facts.steps.window.only(trace, ~added), path


def _partial_of_source(path: Path) -> str | None:
    """Why the source of an output was not whole, from the sidecar next to it; None if it was whole or is unknown."""
    suffix = next((writer.SUFFIX for writer in WRITERS if path.name.endswith(writer.SUFFIX)), None)
    if suffix is None:
        return None
    try:
        sidecar = json.loads(path.with_name(path.name.removesuffix(suffix) + output_files.METRICS_SUFFIX).read_bytes())
        partial = sidecar["source"]["partial"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return partial if isinstance(partial, str) else None


def _fitting(trace: Trace, say: Report) -> Trace:
    """The trace, or as many of its middle steps as fit into a browser."""
    size = trace.source.text_bytes
    if size <= BROWSER_TEXT_BYTES:
        return trace
    known = facts.steps.recorded(trace).number.tolist()
    gigabytes = f"{trace.source.label}: {size / 1e9:.1f} GB of text"
    if len(known) < 2:
        say(f"{gigabytes}, more than most browsers hold; augment cut --time makes a smaller trace")
        return trace
    count = max(1, len(known) * BROWSER_TEXT_BYTES // size)
    first = (len(known) - count) // 2
    shown = known[first : first + count]
    numbers = f"{shown[0]}-{shown[-1]}" if count > 1 else shown[0]
    say(f"{gigabytes}: showing {'step' if count == 1 else 'steps'} {numbers}; --whole for all")
    limits = facts.steps.window.limits_of(trace, shown[0], shown[-1])
    part = facts.steps.window.only(
        trace, facts.steps.window.whole(trace, facts.steps.window.chosen(trace, *limits, around=True))
    )
    return facts.source.marked(part, facts.source.mark(trace.source.metadata, (shown[0], shown[-1])))


def augmented_into(augmented: AugmentedTrace, folder: Path) -> Prepared:
    """An augmented trace, written into ``folder``."""
    path = write_all(augmented, folder, _BEST_FIRST[:1])[0]
    return Prepared(path, view_of(augmented.trace))


def what_is_missing(augmented: AugmentedTrace) -> list[str]:
    """Notes to read before the trace: that it is not whole, and which analyses were not possible."""
    trace, name = augmented.trace, augmented.trace.source.label
    lines = [f"{name} is not whole: {trace.partial}"] if trace.partial else []
    if len(trace.events.slices_of(*GPU_WORK)) or not len(trace.events):
        return lines
    skipped = Counter(outcome.reason for outcome in augmented.outcomes.values() if isinstance(outcome, Skipped))
    done = len(augmented.outcomes) - skipped.total()
    reasons = "; ".join(f"{count}: {reason}" for reason, count in skipped.most_common(3))
    return [*lines, f"no GPU work in {name}: {done} of {len(augmented.outcomes)} analyses were possible ({reasons})"]
