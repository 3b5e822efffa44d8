"""Prepares the file to show from the file that the user named."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from augment.errors import InputError, UnknownFormat, UsageError, expect_regular
from augment.pipeline import augment
from augment.readers import chrome, read
from augment.trace import Trace
from augment.viewer.view import TIMELINE, UNKNOWN, View, chrome_view, native_view
from augment.writers import WRITERS, Writer, write_all
from augment.writers.files import METRICS_SUFFIX, is_output, output_path
from augment.writers.perfetto.several import is_of_several

_BEST_FIRST = ("perfetto", "chrome", "bundle")  #: names of writers, by how well their files look in the UI

Report = Callable[[str], None]  #: called with one line of text for the user


@dataclass(frozen=True, slots=True)
class Prepared:
    """The file to show, and how."""

    path: Path
    view: View


def prepare(name: str, folder: Path, say: Report, stage: Report) -> Prepared:
    """What to show for the file ``name``: itself, if augment wrote it; else its augmented trace, made in ``folder``
    unless there is a newer one beside it.

    Raises:
        InputError: it cannot be read.
        UsageError: it holds metrics.
    """
    if name.endswith(METRICS_SUFFIX):
        raise UsageError(f"{name}: holds metrics, not a trace; augment show prints them")
    if os.path.isdir(name):
        raise UsageError(f"{name}: is a folder; name one trace in it")
    path = Path(name)
    if not path.exists():
        raise InputError(name, "no such file")
    expect_regular(name)
    if is_of_several(path):
        return Prepared(path, TIMELINE)
    if not is_augmented(name):
        made = newer_beside(path)
        if made is None:
            return _augmented(name, folder, say, stage)
        say(f"opening {made.name}, which lies beside {path.name} and is newer")
        path = made
    stage(f"reading {path}")
    return Prepared(path, _view(path))


def is_augmented(name: str) -> bool:
    """Whether augment writes traces of such a name."""
    return is_output(name) or os.path.basename(name).endswith(tuple(one.SUFFIX for one in WRITERS))


def newer_beside(path: Path) -> Path | None:
    """The augmented trace beside a raw one, if it is not older; the best one."""
    changed = path.stat().st_mtime_ns
    for writer in _writers():
        beside = output_path(path.name, path.parent, writer.SUFFIX)
        if beside.exists() and beside.stat().st_mtime_ns >= changed:
            return beside
    return None


def _writers() -> list[Writer]:
    known = [one for one in WRITERS if one.NAME in _BEST_FIRST]
    return sorted(known, key=lambda one: _BEST_FIRST.index(one.NAME))


def _augmented(name: str, folder: Path, say: Report, stage: Report) -> Prepared:
    """Augment into ``folder``."""
    stage(f"reading {name}")
    augmented = augment(read(name), progress=lambda analysis, _done, _of: stage(analysis))
    stage("writing")
    form = _writers()[0].NAME
    path = write_all(augmented, folder, (form,))[0]
    say(f"augmented {os.path.basename(name)} into a temporary folder; augment run keeps what it makes")
    if form == "perfetto":
        return Prepared(path, native_view(augmented.trace, augmented.annotations))
    return Prepared(path, _view(path))


def _view(path: Path) -> View:
    """The view of a file that augment wrote."""
    try:
        trace: Trace = read(str(path))
    except UnknownFormat:
        return UNKNOWN
    return chrome_view(trace) if trace.source.format == chrome.NAME else native_view(trace, None)
