"""Converts Chrome JSON that augment wrote to the native format: added rows lie below their device, names do not repeat,
and Perfetto drops nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from augment.arrays.types import Bools
from augment.core.findings import AugmentedTrace
from augment.core.trace import GPU_WORK, Trace, Track
from augment.facts.names.name_masks import starting
from augment.facts.steps.window import only
from augment.writers import writer_named

_DEVICE = re.compile(r" device (\S+)$")


def native_of(trace: Trace, folder: Path) -> tuple[Trace, Path]:
    """The source of an augmented Chrome file, without the added tracks, and the whole file in native format."""
    added = _added(trace)
    writer = writer_named("perfetto")
    path = folder / f"{trace.source.name.split('.', 1)[0] or 'trace'}{writer.SUFFIX}"
    writer.write(AugmentedTrace(_placed(trace, added), {}), path)
    return only(trace, ~added), path


def _added(trace: Trace) -> Bools:
    """Which rows augment added."""
    is_ours = starting(trace, "augment.")
    added: Bools = is_ours[trace.events.category_name[:]]
    return added


def _placed(trace: Trace, added: Bools) -> Trace:
    """The trace with added threads as plain tracks below the devices that their names contain."""
    moved = set(np.unique(trace.events.track[added & (trace.events.phase == ord("X"))]).tolist())
    devices = list(_of_devices(trace))
    tracks = [_home(track, devices) if index in moved else track for index, track in enumerate(trace.tracks)]
    return trace.changed(tracks=tuple(tracks))


def _of_devices(trace: Trace) -> Iterator[Track]:
    """The tracks of streams, those with most work first."""
    rows = trace.events.slices_of(*GPU_WORK)
    for index, _ in Counter(trace.events.track[rows].tolist()).most_common():
        yield trace.tracks[index]


def _home(added: Track, devices: list[Track]) -> Track:
    """An added thread as a plain track, below its device if its process has one."""
    wanted = _DEVICE.search(added.thread_name or "")
    device = next(
        (of.device for of in devices if of.pid == added.pid and (not wanted or str(of.device) == wanted[1])), None
    )
    return replace(added, device=device, tid=f"augment {added.tid}")
