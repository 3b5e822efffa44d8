"""Makes a smaller trace of a file, of each rank of a folder, or of a merged timeline: the source's own bytes without
the other events."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from augment.arrays import Bools, Int64s
from augment.batch.inputs import Input
from augment.core import AugmentedTrace, Trace, output_files
from augment.errors import InputError, UnknownFormat, UsageError
from augment.facts.source.cut_mark import MEMBER, mark, marked
from augment.facts.source.several_ranks import rank_of_track
from augment.facts.steps import window
from augment.readers import read
from augment.readers.limits import UNLIMITED, Limits
from augment.writers import perfetto
from augment.writers.compression import GzipWriter
from augment.writers.perfetto.several import parts, write_parts


class CutChoice(Struct, frozen=True):
    """What to keep: ``steps``, both included, a ``period`` in ms since the first event, no event of the ``dropped``
    categories. Empty ones keep all."""

    steps: tuple[int, int] | None = None
    period: tuple[float, float] | None = None
    dropped: Sequence[str] = ()

    def __bool__(self) -> bool:
        return self.steps is not None or self.period is not None or bool(self.dropped)


def cut_trace(trace: Trace, out: Path, choice: CutChoice) -> tuple[int, int]:
    """Write a part of a trace; how many events were kept, and of how many.

    Raises:
        UsageError: there are no such steps or categories, nothing would be left, or ``out`` names no format.
    """
    keep = np.ones(len(trace.events), np.bool_)
    if choice.steps is not None:
        keep &= window.chosen(trace, *window.limits_of(trace, *choice.steps), around=True)
    limits = None
    if choice.period is not None:  # on the clock of the events, ns
        first = int(trace.events.ts[0]) if len(trace.events) else 0
        start, end = (first + round(1e6 * ms) for ms in choice.period)
        limits = start, end
        keep &= window.chosen(trace, *limits, around=True)
    if choice.dropped:
        keep &= window.without(trace, choice.dropped)
    keep = window.whole(trace, keep)
    if not keep.any():
        raise UsageError(f"{trace.source.path}: no event would be left")
    members = trace.source.metadata
    write_cut(trace, keep, out, mark(members, choice.steps, choice.period, choice.dropped, limits_ns=limits))
    return int(np.count_nonzero(keep)), len(keep)


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
        out = folder / (item.basename if plain else f"{output_files.stem(item.basename)}.pftrace")
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
    with output_files.replacing(out, str(path)) as file:
        write_parts(path, names, file)
    return names


_SPACE = np.zeros(256, np.bool_)
_SPACE[list(b" \t\r\n")] = True
_BETWEEN = b", \t\r\n"  #: the bytes between elements


def write_cut(trace: Trace, keep: Bools, path: Path, mark: Mapping[str, Any]) -> None:
    """Write the events in ``keep`` to ``path``. The name selects Chrome JSON (if the source is Chrome JSON) or the
    native format.

    In Chrome JSON everything that is not an event of the table stays, such as names of threads and members of the outer
    object. The ``mark``, a member of that object, says what was kept.

    Raises:
        UsageError: the name selects neither format.
        OutputError: ``path`` cannot be written.
    """
    if path.name.endswith(".pftrace"):
        perfetto.write(AugmentedTrace(marked(window.only(trace, keep), mark), {}), path)
    elif path.name.endswith((".json", ".json.gz")) and trace.source.insert_at is not None:
        pieces = _without_dangling_comma(_kept_text(trace, keep))
        if not any(
            each.code == "trailing_text" for each in trace.diagnostics
        ):  # an array's end would not be the text's
            pieces = _marked(pieces, mark)
        with output_files.replacing(path, trace.source.path) as file:
            if path.name.endswith(".gz"):
                packed = GzipWriter(file)
                for piece in pieces:
                    packed.write(piece)
                packed.finish()
            else:
                for piece in pieces:
                    file.write(piece)
    else:
        may = ".json.gz, .json or .pftrace" if trace.source.insert_at is not None else ".pftrace, as the source is none"
        raise UsageError(f"-o {path}: the name must end in {may}")


def _marked(pieces: Iterable[bytes], mark: Mapping[str, Any]) -> Iterator[bytes]:
    """The text with the mark as first member. An array becomes the ``traceEvents`` of an object."""
    name, again = b'"%s":' % MEMBER.encode(), b'"%sEarlier":' % MEMBER.encode()
    head, rest = b"", iter(pieces)
    for piece in rest:
        head += piece
        if len(head.lstrip()) > len(name):
            break
    at = min((place for place in map(head.find, (b"{", b"[")) if place >= 0), default=0)
    member = name + json.dumps(mark).encode() + b","
    if array := head[at : at + 1] == b"[":
        yield head[:at] + b"{" + member + b'"traceEvents":' + head[at:]
    else:
        behind = head[at + 1 :]
        if behind.startswith(name):  # of two equal names, the last one would count
            behind = again + behind[len(name) :]
        yield head[: at + 1] + member + behind
    yield from rest
    yield b"}" if array else b""


def _kept_text(trace: Trace, keep: Bools) -> Iterator[tuple[bytes, bool]]:
    """The text in pieces, without the removed events, and for each piece whether it lies after the last event."""
    source = trace.source
    insert_at = source.insert_at or 0
    gone = np.flatnonzero(~keep)
    order = np.argsort(trace.events.offset[gone], kind="stable")
    start = trace.events.offset[gone[order]]
    end = start + trace.events.length[gone[order]]
    rest, at = b"", 0  # the part of the text that is not written yet, and where it begins
    for chunk in source.text.chunks():
        data = rest + bytes(chunk[: max(0, insert_at - at - len(rest))])
        last = at + len(rest) + len(chunk) >= insert_at
        text = np.frombuffer(data, np.uint8)
        first, stop = np.searchsorted(start, (at, at + len(data))).tolist()
        place = _behind_space(text, end[first:stop] - at)
        is_comma = text[np.minimum(place, len(text) - 1)] == ord(",")
        begins, ends = start[first:stop] - at, _behind_space(text, place + (is_comma & (place < len(text))))
        open_ones = np.flatnonzero(ends >= len(data))
        limit = len(data) if last or not len(open_ones) else int(begins[open_ones[0]])
        depth = np.zeros(limit + 1, np.int32)  # how many of the removed events each byte is in
        np.add.at(depth, begins[begins < limit], 1)
        np.add.at(depth, np.minimum(ends[begins < limit], limit), -1)
        yield bytes(text[:limit][np.cumsum(depth[:-1]) == 0].tobytes()), False
        rest, at = data[limit:], at + limit
        if last:
            break
    if source.closing is not None:
        yield source.closing, True
        return
    seen = 0
    for part in source.text.chunks():
        seen += len(part)
        if seen > insert_at:
            yield bytes(part[max(0, insert_at - seen + len(part)) :]), True


def _behind_space(text: npt.NDArray[np.uint8], place: Int64s) -> Int64s:
    place = place.copy()
    moving = np.arange(len(place))
    while len(moving):
        moving = moving[place[moving] < len(text)]
        moving = moving[_SPACE[text[place[moving]]]]
        place[moving] += 1
    return place


def _without_dangling_comma(pieces: Iterable[tuple[bytes, bool]]) -> Iterator[bytes]:
    """The text without the comma before the last events, if these were removed."""
    held, behind = b"", False
    for piece, is_behind in pieces:
        if is_behind and not behind:
            yield held.replace(b",", b"")
            held, behind = b"", True
        if behind:
            yield piece
            continue
        content = piece.rstrip(_BETWEEN)
        if content:
            yield held + content
            held = b""
        held += piece[len(content) :]
    yield held
