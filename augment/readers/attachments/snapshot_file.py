"""Reads CUDA memory snapshots: the pickle of ``torch.cuda.memory._dump_snapshot`` (PyTorch 2.1 on, protocols 2 to 5),
or of ``torch.cuda.memory_snapshot()``, a bare list of segments.

Values become columns without any dict of them (``pickles.py``). A key that is absent is unknown, never zero.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import numpy as np

from augment.arrays.types import Int32s, Int64s
from augment.core.attachments import ACTIONS, STATES, MemorySnapshot, Stacks
from augment.errors import UnknownFormat
from augment.facts.memory.held import SIGNS, signs_of, trimmed
from augment.kernels import pickle_scan as scan
from augment.readers.attachments.pickles import Pickled
from augment.readers.limits import UNLIMITED, Limits

_OPERATOR = re.compile(r"at::_ops::(\w+?)::(?:call|redispatch)\b")
#: files of Python that are not the user's own
_LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python3|^<|importlib|/torch/|runpy\.py")
_MOST_FRAMES = 32 << 20  #: frames of stacks that are looked at at a time


def memory_snapshot(path: str, limits: Limits = UNLIMITED) -> MemorySnapshot:
    """The snapshot at ``path``, plain or compressed.

    Raises:
        InputError: the file cannot be read, is damaged, or larger than ``limits`` allow.
        UnknownFormat: it is a pickle of something else.
    """
    data = Pickled(path, limits)
    is_list = data.kinds[data.root] == scan.LIST
    listed = data.root if is_list else data.field(data.root, "segments")
    segments = data.children(listed)
    first = data.fields(segments[:1], ("address", "total_size"))
    if listed < 0 or data.kinds[listed] != scan.LIST or (is_list and not (len(segments) and min(map(max, first)) >= 0)):
        raise UnknownFormat(path, "a pickle, but not a memory snapshot: it has no segments of memory")
    traces = data.children(-1 if is_list else data.field(data.root, "device_traces"))

    names = ["device", "address", "total_size", "stream", "segment_pool_id", "segment_type", "is_expandable", "blocks"]
    device, address, size, stream, pool, kind, expandable, blocks = data.fields(segments, names)
    blocks, block_count = data.lists(blocks)
    names = ["address", "size", "requested_size", "state", "frames", "history"]
    block_address, block_size, requested, state, block_frames, history = data.fields(blocks, names)
    of_segment = np.repeat(np.arange(len(segments)), block_count)
    block_sizes = data.ints(block_size, 0)
    # old files give no addresses of blocks: they follow each other from that of the segment on
    before = np.cumsum(block_sizes) - block_sizes
    at_first = np.append(before, 0)[np.cumsum(block_count) - block_count]
    block_at = data.ints(block_address)
    block_at = np.where(block_at < 0, data.ints(address)[of_segment] + before - at_first[of_segment], block_at)

    per_device = [data.children(trace) for trace in traces.tolist()]
    limits.expect_events(path, sum(map(len, per_device)))
    actions = np.concatenate([np.empty(0, np.int32), *per_device])
    if len(actions) > len(data.kinds):
        raise UnknownFormat(path, "a pickle that repeats its values; not a recording")
    names = ["action", "addr", "size", "stream", "time_us", "frames", "compile_context", "device_free"]
    action, addr, action_size, action_stream, time_us, frames, compiled, device_free = data.fields(actions, names)
    texts = data.texts
    action_kind = _numbered(data.codes(action), texts, ACTIONS)
    times = data.ints(time_us, 0)
    times = np.where((times > 0) & (times < 1 << 53), times, 0)
    has_times = bool(len(times)) and bool((times > 0).all())
    lists, stack = np.unique(np.concatenate([_of_history(data, history, block_frames), frames]), return_inverse=True)
    stack = stack - int(len(lists) > 0 and lists[0] < 0)
    lists = lists[lists >= 0]
    marks = data.children(-1 if is_list else data.field(data.root, "external_annotations"))
    stage, mark_name, mark_us, mark_device = data.fields(marks, ("stage", "name", "time_us", "device"))
    begins = np.flatnonzero((_numbered(data.codes(stage), texts, ("START",)) == 0) & (data.ints(mark_us) > 0))
    mark_codes = data.codes(mark_name)[begins].tolist()
    free = data.ints(device_free)
    stacks, labels = _stacks(data, lists, texts)
    compiled_codes = data.codes(compiled)
    plain = {code for code in np.unique(compiled_codes).tolist() if code < 0 or texts[code] in ("N/A", "")}
    number_of = {code: len(labels) + at for at, code in enumerate(set(np.unique(compiled_codes).tolist()) - plain)}
    compiled_of = np.array([number_of.get(code, -1) for code in range(len(texts))] + [-1], np.int32)
    labels += [texts[code] for code in number_of]
    settings = None if is_list else data.plain(data.field(data.root, "allocator_settings"))
    return MemorySnapshot(
        name=os.path.basename(path),
        segment_device=data.ints(device, 0),
        segment_address=data.ints(address),
        segment_size=data.ints(size, 0),
        segment_stream=data.ints(stream, 0),
        segment_pool=_pools(data, pool),
        segment_is_large=1 - (_numbered(data.codes(kind), texts, ("small",)) == 0).astype(np.int64),
        segment_is_expandable=np.maximum(data.ints(expandable, 0), 0),
        block_segment=of_segment,
        block_address=block_at,
        block_size=block_sizes,
        block_requested=np.where(data.ints(requested) >= 0, data.ints(requested), block_sizes),
        block_state=np.maximum(_numbered(data.codes(state), texts, STATES), 0),
        block_stack=stack[: len(blocks)].astype(np.int32),
        action_device=np.repeat(np.arange(len(per_device)), [len(each) for each in per_device]).astype(np.int64),
        action_kind=action_kind,
        action_addr=np.where(action_kind == ACTIONS.index("oom"), free, data.ints(addr)),
        action_size=data.ints(action_size, 0),
        action_stream=data.ints(action_stream, 0),
        action_ts=1000 * times if has_times else np.zeros(len(times), np.int64),
        action_stack=stack[len(blocks) :].astype(np.int32),
        action_compiled=compiled_of[compiled_codes],
        mark_name=[texts[code] if code >= 0 else "" for code in mark_codes],
        mark_ts=1000 * np.minimum(data.ints(mark_us)[begins], 1 << 53),
        mark_device=data.ints(mark_device, 0)[begins],
        stacks=stacks,
        settings=settings if isinstance(settings, dict) else {},
        has_times=has_times,
    )


def _numbered(codes: Int32s, texts: Sequence[str], known: Sequence[str]) -> Int64s:
    """Of each text its place in ``known``; -1 for others."""
    place = {text: at for at, text in enumerate(known)}
    return np.array([place.get(text, -1) for text in texts] + [-1], np.int64)[codes]


def _of_history(data: Pickled, history: Int32s, frames: Int32s) -> Int32s:
    """The frames of blocks; of the oldest files those of the newest entry of their history."""
    old = np.flatnonzero((frames < 0) & (history >= 0))
    if not len(old):
        return frames
    newest = np.array([children[0] if len(children := data.children(node)) else -1 for node in history[old].tolist()])
    frames = frames.copy()
    frames[old] = data.fields(newest.astype(np.int32), ("frames",))[0]
    return frames


def _pools(data: Pickled, pool: Int32s) -> Int64s:
    """A number of each pair of ids: 0 for the default pool."""
    numbers = {(0, 0): 0}
    pairs = [tuple(data.ints(data.children(node)).tolist()) or (0, 0) for node in pool.tolist()]
    return np.array([numbers.setdefault(pair, len(numbers)) for pair in pairs], np.int64)


def _stacks(data: Pickled, lists: Int32s, texts: Sequence[str]) -> tuple[Stacks, list[str]]:
    """What the frames of each of these lists say; innermost frames come first."""
    columns: list[list[Int32s]] = [[], [], [], []]
    labels: dict[str, int] = {}
    known: dict[int, tuple[int, int, int]] = {}
    lengths = data.lists(lists)[1] if len(lists) else np.empty(0, np.int64)
    cuts = np.searchsorted(np.cumsum(lengths), np.arange(0, int(lengths.sum()) + _MOST_FRAMES, _MOST_FRAMES))
    for low, high in zip([0, *cuts[1:].tolist()], [*cuts[1:].tolist(), len(lists)], strict=True):
        if low >= high:
            continue
        frames, count = data.lists(lists[low:high])
        different, which = np.unique(frames, return_inverse=True)
        label, origin, signs = (np.array(column, np.int32) for column in _frames(data, different, texts, labels, known))
        first = np.cumsum(count) - count
        label, origin, signs = label[which], origin[which], signs[which]
        is_python = origin > 0
        line = _first(np.where(origin == 2, np.arange(len(origin)), -1), first, count)
        line = np.where(line >= 0, line, _first(np.where(is_python, np.arange(len(origin)), -1), first, count))
        operator = _first(np.where(signs & SIGNS["operator"] > 0, np.arange(len(origin)), -1), first, count)
        line = np.where(line >= 0, line, operator)
        module = _first(np.where(signs & SIGNS["forward"] > 0, np.arange(len(origin)), -1), first, count)
        full = count > 0
        seen = np.zeros(len(count), np.int32)
        if full.any():
            seen[full] = np.bitwise_or.reduceat(signs, first[full])
        for column, values in zip(columns, (line, module, operator), strict=False):
            column.append(
                np.where(values >= 0, label[np.maximum(values, 0)] if len(label) else -1, -1).astype(np.int32)
            )
        columns[3].append(seen)
    line_, module_, operator_, seen_ = (np.concatenate([np.empty(0, np.int32), *column]) for column in columns)
    names = [*labels]
    return Stacks(line_, module_, operator_, seen_, names), names


def _first(places: Int64s, first: Int64s, count: Int64s) -> Int64s:
    """Of each stack the first place that is not negative; -1 without."""
    places_of = np.full(len(count), -1, np.int64)
    full = np.flatnonzero(count > 0)
    if len(full):
        least = np.minimum.reduceat(np.where(places >= 0, places, np.iinfo(np.int64).max), first[full])
        places_of[full] = np.where(least == np.iinfo(np.int64).max, -1, least)
    return places_of


def _frames(
    data: Pickled, frames: Int32s, texts: Sequence[str], labels: dict[str, int], known: dict[int, tuple[int, int, int]]
) -> tuple[list[int], list[int], list[int]]:
    """Of each frame the number of its label; 2 for the user's own code, 1 for other Python, else 0; and its signs."""
    new = np.array([frame for frame in frames.tolist() if frame not in known], np.int32)
    name, file, line = data.fields(new, ("name", "filename", "line"))
    codes = zip(
        new.tolist(), data.codes(name).tolist(), data.codes(file).tolist(), data.ints(line, 0).tolist(), strict=True
    )
    for frame, name_code, file_code, number in codes:
        function = texts[name_code] if name_code >= 0 else ""
        path = texts[file_code].replace("\\", "/") if file_code >= 0 else ""
        signs = signs_of(function, path)
        operator = _OPERATOR.search(function)
        if operator:
            text = f"aten::{operator[1]}"
        elif path.endswith(".py"):
            text = f"{trimmed(path)}:{number} {function}"
        else:
            text = function or path
        origin = 0 if not path.endswith(".py") else 1 if _LIBRARY.search(path) else 2
        known[frame] = labels.setdefault(text, len(labels)), origin, signs | (SIGNS["operator"] if operator else 0)
    rows = [known[frame] for frame in frames.tolist()]
    return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
