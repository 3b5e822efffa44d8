"""The names that older versions and other vendors use for Kineto's categories, to be extended here; and what Ascend's
trace_view omits.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence

import numpy as np

from augment.arrays import Bools, Bytes, Int32s, Int64s, touched, union
from augment.core import Category, Identity
from augment.readers.raw import Place, RawEvents, TrackNames

#: prefixes that forks of Kineto put before categories: their vendor's name
_OF_A_FORK = {
    "runtime": Category.CUDA_RUNTIME,
    "driver": Category.CUDA_DRIVER,
    "memcpy": Category.GPU_MEMCPY,
    "memset": Category.GPU_MEMSET,
    "user_annotation": Category.GPU_USER_ANNOTATION,
    "sync": Category.CUDA_SYNC,
    "profiler_range": Category.CUDA_PROFILER_RANGE,
}

#: category of the file, lower case → ours. Kineto's own names first, then 2020's, then other vendors'.
CATEGORIES: dict[str, Category] = {
    **{category.name.lower(): category for category in Category if category},
    "operator": Category.CPU_OP,
    "runtime": Category.CUDA_RUNTIME,
    "driver": Category.CUDA_DRIVER,
    "memcpy": Category.GPU_MEMCPY,
    "memset": Category.GPU_MEMSET,
    "async": Category.AC2G,
    "async_cpu_to_gpu": Category.AC2G,
    "forward_backward": Category.FWDBWD,
    "hip_runtime": Category.CUDA_RUNTIME,
    "hip_driver": Category.CUDA_DRIVER,
    "xpu_runtime": Category.CUDA_RUNTIME,
    "xpu_driver": Category.CUDA_DRIVER,
    "privateuse1_runtime": Category.CUDA_RUNTIME,
    "privateuse1_driver": Category.CUDA_DRIVER,
    "mtia_runtime": Category.CUDA_RUNTIME,
    "mtia_ccp_events": Category.KERNEL,
    # Ascend's. HostToDevice begins at the call of the runtime, async_npu at the operator. PyTorch puts operators on a
    # queue (enqueue), and another thread executes them (dequeue).
    "hosttodevice": Category.AC2G,
    "enqueue": Category.CPU_OP,
    "dequeue": Category.CPU_OP,
    "hpu_op": Category.CUDA_RUNTIME,
    "glow_runtime": Category.CUDA_RUNTIME,
    # forks of Kineto for Cambricon's, Enflame's and Moore Threads' devices
    **{f"{vendor}_{name}": category for vendor in ("mlu", "gcu", "musa") for name, category in _OF_A_FORK.items()},
    # rocprofv3's
    "kernel_dispatch": Category.KERNEL,
    "memory_copy": Category.GPU_MEMCPY,
    "hip_api": Category.CUDA_RUNTIME,
    "hsa_api": Category.CUDA_DRIVER,
    "marker_api": Category.USER_ANNOTATION,
}

#: the process of an Ascend device, whose work has no category; the processes that hold its collectives, older first;
#: how the threads end on which those are whole, and how the others are called, with the tasks that they consist of
ASCEND_DEVICE = "Ascend Hardware"
ASCEND_CALL = "AscendCL@"  #: how the calls of its runtime begin, which have no category, either
ASCEND_TASK = "Dequeue@"  #: how tasks begin that a thread took from a queue
#: the process that these calls lie in, with the tids of the program's threads; and the program's process
ASCEND_CALLS, ASCEND_PROGRAM = "CANN", "Python"
ASCEND_COLLECTIVES = ("HCCL", "Communication")
ASCEND_COLLECTIVES_THREAD = ("Communication", "Communication Kernel")
ASCEND_PLANE = re.compile(r"Plane \d+")
MTIA_DEVICE = "mtia_ccp_events"  #: the category of the tasks of an MTIA device, of which some are no work, either
MTIA_SYNCS = ("event_wait", "event_record")
#: tasks of an Ascend device that are not work: a stream waits, or signals others
ASCEND_SYNC = re.compile(
    r"(?:(?:REMOTE_)?(?:EVENT|NOTIFY|CAPTURE)[_ ](?:WAIT|RECORD|RESET)|PLACE_HOLDER|WRITE[_ ]VALUE|MAINTENANCE"
    r"|PROFIL(?:ER_TRACE|ING_ENABLE|ING_DISABLE)\w*|STREAM_(?:SWITCH|ACTIVE)\w*|LABEL_\w+)(?:_SQE)?",
    re.IGNORECASE,
)

#: tasks that collectives consist of, beside those: copies between devices, which may add
ASCEND_TRANSFER = re.compile(r"(?:MEMCPY_ASYNC|REDUCE_ASYNC|SDMA|PCIE_DMA|RDMA)\w*")
ASCEND_UNNAMED = re.compile("Other")  #: a task that msprof knows nothing of

#: name → category of events of that name without one (Kineto of 2021 gives its memory instants none)
UNCATEGORISED_NAMES: dict[str, Category] = {"[memory]": Category.CPU_INSTANT_EVENT}

#: where a file name gives the rank; in SGLang's ``ID-TP-3-DP-0`` it is the TP's, unless there are pipeline stages
RANK_IN_NAME = re.compile(r"(?:^|[^a-zA-Z])rank[-_]?(\d{1,9})(?!\d)|-TP-(\d{1,9})(?!\d)(?!.*-PP-[1-9])", re.IGNORECASE)
_RANK_FOLDER = re.compile(r"rank[-_]?(\d{1,9})", re.IGNORECASE)
#: beside the folder of its exports torch_npu names the rank in a file, where there are several
ASCEND_EXPORTS, _ASCEND_RANK = "ASCEND_PROFILER_OUTPUT", re.compile(r"profiler_info_(\d{1,9})\.json")


def rank_in_path(path: str) -> tuple[int | None, str | None]:
    """The rank in the name of a file, else that of a folder ``rank_3`` that it is in, else that of torch_npu's file
    ``profiler_info_3.json`` beside its folder, and which says so; None without. The rank among all processes is
    preferred to a ``local_rank``."""
    folder, name = os.path.split(os.path.abspath(path))
    matches = list(RANK_IN_NAME.finditer(name))
    of_all = (match_ for match_ in matches if not name[: match_.start()].lower().endswith("local"))
    if match := next(of_all, matches[0] if matches else None):
        return int(match[1] or match[2]), "file name"
    above, last = os.path.split(folder)
    if match := _RANK_FOLDER.fullmatch(last):
        return int(match[1]), "folder name"
    if last == ASCEND_EXPORTS:
        beside = map(os.path.basename, glob.glob(os.path.join(glob.escape(above), "profiler_info_*.json")))
        stated = [match for name in beside if (match := _ASCEND_RANK.fullmatch(name))]
        if len(stated) == 1:
            return int(stated[0][1]), stated[0][0]
    return None, None


# In Ascend's trace_view events of devices have no category. A process is a device and its threads are streams, but
# collectives lie in a separate process. So do the calls of the runtime: a thread lies in two processes under one tid.


def categorise(raw: RawEvents, category: Bytes) -> None:
    """Set the ``category`` of rows without one: events that an Ascend device executed, and calls of Ascend's
    runtime; and of what a stream of an MTIA device only waits for.
    """
    without = np.array([not string for string in raw.strings], np.bool_)
    called = np.array([string.startswith(ASCEND_CALL) for string in raw.strings], np.bool_)
    if called.any():
        category[without[raw.category] & called[raw.name]] = Category.CUDA_RUNTIME
    on_mtia, syncs = (
        np.array([string.lower() in known for string in raw.strings], np.bool_)
        for known in ((MTIA_DEVICE,), MTIA_SYNCS)
    )
    if on_mtia.any():
        category[on_mtia[raw.category] & syncs[raw.name]] = Category.CUDA_SYNC
    names = raw.names
    if ASCEND_DEVICE not in names.processes.values():
        return
    of_device = np.array([names.processes.get(place[0]) == ASCEND_DEVICE for place in raw.places], np.bool_)
    whole = np.array([place_of_collectives(place, names) is not None for place in raw.places], np.bool_)
    executed = (of_device | whole)[raw.place] & without[raw.category]
    category[executed] = Category.KERNEL
    rows = np.flatnonzero(executed)
    waits = no_work(raw.place[rows], raw.name[rows], raw.strings, whole, raw.ts[rows], raw.dur[rows])
    category[rows[waits]] = Category.CUDA_SYNC


def no_work(place: Int32s, name: Int32s, strings: Sequence[str], whole: Bools, ts: Int64s, dur: Int64s) -> Bools:
    """Which tasks of an Ascend device are no work, but waits and signals; or what collectives consist of, where those
    are recorded as a whole, too (at the ``whole`` places): all tasks of streams that only wait for others and transfer,
    or of whose tasks nothing is known but that they begin during collectives. ``place``, ``name`` (into ``strings``),
    ``ts`` and ``dur`` (ns) are of each task."""
    syncs, transfers, unnamed = (
        np.array([pattern.fullmatch(string) is not None for string in strings], np.bool_)[name]
        for pattern in (ASCEND_SYNC, ASCEND_TRANSFER, ASCEND_UNNAMED)
    )
    first, stop = touched(ts, ts + 1, union(ts[whole[place]], (ts + dur)[whole[place]]))
    unnamed &= stop > first
    kinds = (~(syncs | transfers | unnamed), syncs | unnamed, transfers | unnamed)
    others, waits, moves = (np.bincount(place, chosen, len(whole)) for chosen in kinds)
    inside: Bools = syncs | (whole.any() & (others == 0) & (waits > 0) & (moves > 0))[place]
    return inside


def place_of_collectives(place: Place, names: TrackNames) -> tuple[Identity, Identity] | None:
    """The device and stream of the collectives at ``place``; None if there are no collectives there, or the device is
    ambiguous.
    """
    pid, tid, *_ = place
    thread = names.threads.get((pid, tid), "")
    if names.processes.get(pid) not in ASCEND_COLLECTIVES or not thread.endswith(ASCEND_COLLECTIVES_THREAD):
        return None
    devices = [pid for pid, name in names.processes.items() if name == ASCEND_DEVICE]
    return (devices[0], thread) if len(devices) == 1 else None


def programs_of_threads(raw: RawEvents) -> dict[tuple[Identity, Identity], Identity]:
    """The pid of the program by (pid, tid) of each thread that called the runtime from there."""
    names = raw.names
    programs: dict[Identity, list[Identity]] = {}
    calling = []
    for pid, tid in dict.fromkeys((place[0], place[1]) for place in raw.places):
        if names.processes.get(pid) == ASCEND_PROGRAM:
            programs.setdefault(tid, []).append(pid)
        elif names.processes.get(pid) == ASCEND_CALLS:
            calling.append((pid, tid))
    return {(pid, tid): programs[tid][0] for pid, tid in calling if len(programs.get(tid, ())) == 1}
