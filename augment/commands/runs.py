"""The traces of one run of a comparison: a file, or a folder with one file per rank."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from augment.errors import InputError, UnknownFormat

if TYPE_CHECKING:
    from augment.commands.terminal import Bar
    from augment.trace import Trace


def traces_of(path: str, shown: Bar) -> list[Trace]:
    """The trace at ``path``, or those in the folder ``path``; other files in it are passed over.

    Raises:
        InputError: there is no trace.
    """
    from augment.readers import read

    traces = []
    for name, named in _files(path):
        shown.stage(f"reading {name}")
        try:
            traces.append(read(name))
        except UnknownFormat:
            if named:
                raise
    if not traces:
        raise InputError(path, "holds no trace")
    return traces


def label_of(path: str) -> str:
    """The name of a run: its file's STEM, or its folder's name."""
    from augment.writers.files import stem

    real = os.path.abspath(path)
    return os.path.basename(real) if os.path.isdir(real) else stem(real)


def _files(path: str) -> Iterator[tuple[str, bool]]:
    """The files, and whether the user named them."""
    if not os.path.isdir(path):
        yield path, True
        return
    from augment.batch.inputs import plan

    made = plan([path], None)
    for _, error in made.refused:
        raise error
    for item in made.inputs:
        yield item.path, item.named
