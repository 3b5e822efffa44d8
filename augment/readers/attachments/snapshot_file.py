"""Reads CUDA memory snapshots: the pickle of ``torch.cuda.memory._dump_snapshot`` (PyTorch 2.1 on, protocols 2 to 5),
or of ``torch.cuda.memory_snapshot()``, a bare list of segments.

Values become columns without any dict of them (``pickles.py``). A key that is absent is unknown, never zero.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import numpy as np

from augment.arrays import Bools, Int32s, Int64s
from augment.core.attachments import ACTIONS, STATES, MemorySnapshot, Stacks
from augment.errors import UnknownFormat
from augment.facts.memory.held import SIGNS, signs_of, trimmed
from augment.kernels import pickle_scan as scan
from augment.readers.attachments.pickles import Pickled
from augment.readers.limits import UNLIMITED, Limits

_OPERATOR = re.compile(r"at::_ops::(\w+?)::(?:call|redispatch)\b")
#: files of Python that are not the user's own
_LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python3|^<|importlib|/torch/|runpy\.py")
_LIBRARYS, _USERS = 1, 2  #: whose code a Python frame is
_MOST_FRAMES = 2 << 20  #: frames of stacks that are looked at at a time
_MOST_ACTIONS = 1 << 20  #: actions that become columns at a time


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
    is_known = listed >= 0 and data.kinds[listed] == scan.LIST and (len(segments) > 0 or not is_list)
    if not is_known or any(value < 0 for value in np.concatenate(first).tolist()):
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
    action_kind, addr, action_size, action_stream, ts, frames, compiled = _actions(data, actions)
    del actions
    has_times = bool(len(ts)) and bool((ts > 0).all())
    texts = data.texts
    lists, stack = np.unique(np.concatenate([_of_history(data, history, block_frames), frames]), return_inverse=True)
    stack = stack - int(len(lists) > 0 and lists[0] < 0)
    lists = lists[lists >= 0]
    marks = data.children(-1 if is_list else data.field(data.root, "external_annotations"))
    stage, mark_name, mark_us, mark_device = data.fields(marks, ("stage", "name", "time_us", "device"))
    begins = np.flatnonzero((_numbered(data.codes(stage), texts, ("START",)) == 0) & (data.ints(mark_us) > 0))
    mark_codes = data.codes(mark_name)[begins].tolist()
    stacks, labels = _stacks(data, lists, texts)
    named = [code for code in np.unique(compiled).tolist() if code >= 0 and texts[code] not in ("N/A", "")]
    number_of = {code: len(labels) + at for at, code in enumerate(named)}
    compiled_of = np.array([number_of.get(code, -1) for code in range(len(texts))] + [-1], np.int32)
    labels += [texts[code] for code in number_of]
    settings = None if is_list else data.plain(data.field(data.root, "allocator_settings"))
    # a number of each pair of ids: 0 for the default pool
    numbers = {(0, 0): 0}
    pairs = [tuple(data.ints(data.children(node)).tolist()) or (0, 0) for node in pool.tolist()]
    return MemorySnapshot(
        name=os.path.basename(path),
        segment_device=data.ints(device, 0),
        segment_address=data.ints(address),
        segment_size=data.ints(size, 0),
        segment_stream=data.ints(stream, 0),
        segment_pool=np.array([numbers.setdefault(pair, len(numbers)) for pair in pairs], np.int64),
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
        action_addr=addr,
        action_size=action_size,
        action_stream=action_stream,
        action_ts=ts if has_times else np.zeros(len(ts), np.int64),
        action_stack=stack[len(blocks) :].astype(np.int32),
        action_compiled=compiled_of[compiled],
        mark_name=[texts[code] if code >= 0 else "" for code in mark_codes],
        mark_ts=1000 * np.minimum(data.ints(mark_us)[begins], 1 << 53),
        mark_device=data.ints(mark_device, 0)[begins],
        stacks=stacks,
        settings=settings if isinstance(settings, dict) else {},
        has_times=has_times,
    )


def _actions(data: Pickled, actions: Int32s) -> tuple[Int64s, Int64s, Int64s, Int64s, Int64s, Int32s, Int32s]:
    """Of each action its kind, address, size, stream and time (ns, 0 without), the node of its frames, and the number
    of the text that says what was compiled (-1: none)."""
    names = ["action", "addr", "size", "stream", "time_us", "frames", "compile_context", "device_free"]
    kind, addr, size, stream, ts = (np.empty(len(actions), np.int64) for _ in range(5))
    frames, compiled = (np.empty(len(actions), np.int32) for _ in range(2))
    for first in range(0, len(actions), _MOST_ACTIONS):  # with the nodes of all fields it would take twice the memory
        part = slice(first, first + _MOST_ACTIONS)
        what, at, of_bytes, of_stream, time_us, frames[part], context, free = data.fields(actions[part], names)
        kind[part] = _numbered(data.codes(what), data.texts, ACTIONS)
        addr[part] = np.where(kind[part] == ACTIONS.index("oom"), data.ints(free), data.ints(at))
        size[part], stream[part] = data.ints(of_bytes, 0), data.ints(of_stream, 0)
        times = data.ints(time_us, 0)
        ts[part] = np.where((times > 0) & (times < 1 << 53), 1000 * times, 0)
        compiled[part] = data.codes(context)
    return kind, addr, size, stream, ts, frames, compiled


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


def _stacks(data: Pickled, lists: Int32s, texts: Sequence[str]) -> tuple[Stacks, list[str]]:
    """What the frames of each of these lists say; innermost frames come first."""
    stacks = np.full((4, len(lists)), -1, np.int32)
    labels: dict[str, int] = {}
    number_of = np.full(len(data.kinds), -1, np.int32)  # of frames
    of_frames: Int32s = np.empty((3, 0), np.int32)
    before = np.cumsum(data.lengths(lists)) if len(lists) else np.empty(0, np.int64)
    low = 0
    while low < len(lists):
        done = int(before[low - 1]) if low else 0
        high = max(low + 1, int(np.searchsorted(before, done + _MOST_FRAMES, "right")))
        frames, count = data.lists(lists[low:high])
        new = np.unique(frames[number_of[frames] < 0])
        if len(new):
            number_of[new] = np.arange(len(new)) + of_frames.shape[1]
            of_frames = np.concatenate([of_frames, _frames(data, new, texts, labels)], axis=1)
        label, whose, signs = of_frames[:, number_of[frames]]
        operator = _first(signs & SIGNS["operator"] > 0, count)
        line = _first(whose == _USERS, count)
        for weaker in (_first(whose > 0, count), operator):
            line = np.where(line >= 0, line, weaker)
        of_stacks = stacks[:, low:high]
        for row, places in enumerate((line, _first(signs & SIGNS["forward"] > 0, count), operator)):
            of_stacks[row, places >= 0] = label[places[places >= 0]]
        full = count > 0
        of_stacks[3] = 0
        if full.any():
            of_stacks[3, full] = np.bitwise_or.reduceat(signs, (np.cumsum(count) - count)[full])
        low = high
    names = [*labels]
    return Stacks(stacks[0], stacks[1], stacks[2], stacks[3], names), names


def _first(chosen: Bools, count: Int64s) -> Int64s:
    """Of each stack, of so many frames, the place of the first chosen frame; -1 without."""
    places = np.flatnonzero(chosen)
    begin = np.cumsum(count) - count
    nearest = np.append(places, len(chosen))[np.searchsorted(places, begin)]
    return np.where(nearest < begin + count, nearest, -1)


def _frames(data: Pickled, frames: Int32s, texts: Sequence[str], labels: dict[str, int]) -> Int32s:
    """Of each frame the number of its label, whose code it is, and its signs: a row each."""
    name, file, line = data.fields(frames, ("name", "filename", "line"))
    rows = []
    codes = zip(data.codes(name).tolist(), data.codes(file).tolist(), data.ints(line, 0).tolist(), strict=True)
    for name_code, file_code, number in codes:
        function = texts[name_code] if name_code >= 0 else ""
        path = texts[file_code].replace("\\", "/") if file_code >= 0 else ""
        operator = _OPERATOR.search(function)
        is_python = path.endswith(".py")
        text = f"{trimmed(path)}:{number} {function}" if is_python else function or path
        text = f"aten::{operator[1]}" if operator else text
        whose = 0 if not is_python else _LIBRARYS if _LIBRARY.search(path) else _USERS
        signs = signs_of(function, path) | (SIGNS["operator"] if operator else 0)
        rows.append((labels.setdefault(text, len(labels)), whose, signs))
    columns: Int32s = np.array(rows, np.int32).reshape(-1, 3).T
    return columns
