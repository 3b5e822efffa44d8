"""Makes a smaller trace of a file, of each rank of a folder, or of a merged timeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from augment.batch.inputs import Input
from augment.core import Trace
from augment.errors import InputError, UnknownFormat, UsageError
from augment.facts.source.cut_mark import mark
from augment.facts.source.several_ranks import rank_of_track
from augment.facts.steps import window
from augment.readers import read
from augment.readers.limits import UNLIMITED, Limits
from augment.writers.cut_file import write_cut
from augment.writers.files import replacing, stem
from augment.writers.perfetto.several import parts, write_parts


class CutChoice(Struct, frozen=True):
    """What to keep: ``steps``, both included, a ``period`` in ms since the first event, no event of the ``dropped``
    categories. Empty ones keep all."""

    steps: tuple[int, int] | None = None
    period: tuple[float, float] | None = None
    dropped: Sequence[str] = ()

    def __bool__(self) -> bool:
        return self.steps is not None or self.period is not None or bool(self.dropped)


def cut(name: str, out: Path, choice: CutChoice) -> tuple[int, int]:
    """Write a part of the trace ``name``; how many events were kept, and of how many.

    Raises:
        UsageError: there are no such steps or categories, nothing would be left, or ``out`` names no format.
    """
    return cut_trace(read(name), out, choice)


def cut_trace(trace: Trace, out: Path, choice: CutChoice) -> tuple[int, int]:
    """Write a part of a trace, as :func:`cut` does."""
    keep = np.ones(len(trace.events), np.bool_)
    if choice.steps is not None:
        keep &= window.chosen(trace, *window.limits_of(trace, *choice.steps), around=True)
    limits = _limits(trace, choice)
    if limits is not None:
        keep &= window.chosen(trace, *limits, around=True)
    if choice.dropped:
        keep &= window.without(trace, choice.dropped)
    keep = window.whole(trace, keep)
    if not keep.any():
        raise UsageError(f"{trace.source.path}: no event would be left")
    members = trace.source.metadata
    write_cut(trace, keep, out, mark(members, choice.steps, choice.period, choice.dropped, limits_ns=limits))
    return int(np.count_nonzero(keep)), len(keep)


def _limits(trace: Trace, choice: CutChoice) -> tuple[int, int] | None:
    """The chosen period on the clock of the events, ns."""
    if choice.period is None:
        return None
    first = int(trace.events.ts[0]) if len(trace.events) else 0
    start, end = (first + round(1e6 * ms) for ms in choice.period)
    return start, end


def cut_each(inputs: Sequence[Input], folder: Path, choice: CutChoice, stage: Callable[[str], None]) -> list[Path]:
    """Write a part of each input into ``folder``, under its own name; of a source that is no Chrome JSON, as
    ``.pftrace``."""
    outs: dict[Path, str] = {}
    for item in inputs:
        stage(f"reading {item.path}")
        try:
            trace = read(item.path)
        except UnknownFormat:
            if item.named:
                raise
            continue  # a folder may hold anything
        plain = trace.source.insert_at is not None and item.basename.endswith((".json", ".json.gz"))
        out = folder / (item.basename if plain else f"{stem(item.basename)}.pftrace")
        if out in outs or out.resolve() == Path(item.path).resolve():
            other = outs.get(out, "the input itself")
            raise UsageError(f"{item.path}: would be written to {out}, as {other}; cut them one by one")
        outs[out] = item.path
        stage(f"writing {out}")
        folder.mkdir(parents=True, exist_ok=True)
        cut_trace(trace, out, choice)
    if not outs:
        raise InputError(str(folder), "nothing was written: no input is a trace")
    return list(outs)


def part(
    name: str, folder: Path, ranks: Sequence[range], stage: Callable[[str], None], limits: Limits = UNLIMITED
) -> list[Path]:
    """Write each rank of a file with several, as other tools merge them, to ``rankN.json.gz`` in ``folder``.

    Args:
        name: of the file.
        folder: made if it is not there.
        ranks: only these; none: all.
        stage: called with the current activity.
        limits: how much of the file is read.

    Raises:
        UsageError: the file does not tell of several ranks, or has none of these.
    """
    if Path(name).is_file() and (merged := parts(Path(name))):
        hint = f"augment cut {name} --ranks N keeps ranks of it; its traces are what to convert"
        raise UsageError(f"{name}: is a timeline of {len(merged)} ranks that augment merged: {hint}")
    stage(f"reading {name}")
    trace = read(name, limits=limits)
    of_track = rank_of_track(trace)
    there = np.unique(of_track[of_track >= 0])
    if not len(there):
        raise UsageError(
            f"{name}: does not tell of several ranks: neither an arg rank nor process ids such as [TP3] 42"
        )
    wanted = [rank for rank in there.tolist() if not ranks or any(rank in some for some in ranks)]
    if not wanted:
        raise UsageError(f"--ranks: {name} has none of these, only {', '.join(map(str, there.tolist()))}")
    of_event = of_track[trace.events.track[:]]
    suffix = ".json.gz" if trace.source.insert_at is not None else ".pftrace"
    outs = []
    for rank in wanted:
        out = folder / f"rank{rank}{suffix}"
        stage(f"writing {out}")
        folder.mkdir(parents=True, exist_ok=True)
        write_cut(trace, of_event == rank, out, mark(trace.source.metadata, rank=rank))
        outs.append(out)
    return outs


def cut_timeline(path: Path, out: Path, ranks: Sequence[range]) -> list[str]:
    """Write some ranks of a merged timeline, byte for byte as they are; their names.

    Raises:
        UsageError: the file does not say where its ranks are, or has none of these.
    """
    if out.suffix != ".pftrace":
        raise UsageError(f"-o {out}: ranks of a timeline stay in its format; the name must end in .pftrace")
    there = [name for name, _, _ in parts(path)]
    if not there:
        raise UsageError(f"{path}: does not say where its ranks are; give --ranks to augment run --merge")
    wanted = {f"rank {rank}" for some in ranks for rank in some}
    names = [name for name in there if name in wanted]
    if not names:
        raise UsageError(f"--ranks: {path} has none of these, only {', '.join(there)}")
    with replacing(out, str(path)) as file:
        write_parts(path, names, file)
    return names
