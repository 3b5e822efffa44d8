"""The text of a Kineto file: header, events and footer, laid out as libkineto's ``output_json.cpp`` does.

Event texts are ``%`` templates: ``TIME`` takes whole microseconds and the nanoseconds left, ids take ``%d``. What is
not a placeholder must have gone through :func:`plain`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache

from simulator.options import GPUS, JobOptions
from simulator.parallel import place_of

TIME = "%d.%03d"
BASE_TIME_NS = 1735689600000000000
DEVICES_A_NODE = 8
_SLICE = (
    '  {\n    "ph": "X", "cat": "CAT", "name": NAME, "pid": PID, "tid": TID,\n'
    f'    "ts": {TIME}, "dur": {TIME},\n    "args": {{\n      ARGS\n    }}\n  }},\n'
)
_FLOW = (
    '  {\n    "ph": "PH", "id": %d, "pid": PID, "tid": TID, "ts": '
    + TIME
    + ',\n    "cat": "CAT", "name": "CAT"TAIL\n  },\n'
)
_MEMORY = (
    '  {\n    "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]",\n    "pid": PID, "tid": TID,\n'
    f'    "ts": {TIME},\n    "args": {{\n      ARGS\n    }}\n  }},\n'
)


def plain(text: str) -> str:
    """``text`` with nothing in it that a ``%`` template would read."""
    return text.replace("%", "%%")


def slice_text(category: str, name: str, pid: int | str, tid: int | str, args: str) -> str:
    """An ``X`` event: slots are ts, dur and what ``args`` (already a template) wants; so is ``name``."""
    text = _SLICE.replace("CAT", category, 1).replace("PID", str(pid), 1).replace("TID", str(tid), 1)
    return text.replace("ARGS", args).replace("NAME", json.dumps(name), 1)


@cache
def flow_text(phase: str, category: str, pid: int | str, tid: int | str) -> str:
    """A flow's start (``s``) or finish (``f``): slots are id and ts."""
    text = _FLOW.replace("CAT", category).replace("PH", phase, 1).replace("PID", str(pid), 1)
    return text.replace("TID", str(tid), 1).replace("TAIL", ', "bp": "e"' if phase == "f" else "")


def memory_text(pid: int | str, tid: int | str, args: str) -> str:
    """A ``[memory]`` instant: slots are ts and what ``args`` wants."""
    return _MEMORY.replace("PID", str(pid), 1).replace("TID", str(tid), 1).replace("ARGS", args)


def one_key_a_line(text: str) -> str:
    """Events as the libkineto of PyTorch 2.13 lays them out."""
    text = re.sub(r', (?="(?:cat|name|pid|tid|ts|dur|id|s)": )', ",\n    ", text)
    text = re.sub(r'("dur": [^,\n]+),\n(?=    "args")', r"\1\n    ,\n", text)
    text = re.sub(r'("name": "(?:ac2g|fwdbwd)")(, "bp": "e")?\n', r"\1\n    \2\n", text)
    return re.sub(
        r'"name": ("\w+"),\n    "ph": "M",',
        r'"ph": "M",\n    "name": \1,',
        re.sub(', "ph": "M"', ',\n    "ph": "M"', text),
    )


def whole_us(text: str) -> str:
    """Times as the Kineto of 2021 wrote them."""
    return re.sub(r'("(?:ts|dur)": \d+)\.\d{3}', r"\1", text)


def time_text(ns: int) -> str:
    """A time as a file has it: microseconds with three decimals."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def header(options: JobOptions, rank: int) -> str:
    """Everything before the first event."""
    gpu = GPUS[options.gpu]
    device = (
        '    {{\n      "id": {id}, "name": "{name}", "totalGlobalMem": {memory},\n'
        '      "computeMajor": {major}, "computeMinor": {minor},\n'
        '      "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048,\n'
        '      "regsPerBlock": 65536, "warpSize": 32,\n'
        '      "sharedMemPerBlock": 49152, "numSms": {sms}\n    , "regsPerMultiprocessor": 65536, '
        '"sharedMemPerBlockOptin": 232448, "sharedMemPerMultiprocessor": 233472\n    }}'
    )
    devices = ",\n".join(
        device.format(
            id=i,
            name=gpu.name,
            memory=gpu.memory_bytes,
            major=gpu.compute[0],
            minor=gpu.compute[1],
            sms=gpu.multiprocessors,
        )
        for i in range(min(options.ranks, DEVICES_A_NODE))
    )
    groups = [
        {
            "pg_name": group.name,
            "pg_desc": group.about,
            "backend_config": "cuda:nccl",
            "pg_size": len(group.ranks),
            "ranks": list(group.ranks),
        }
        for group in place_of(options, rank).groups
    ]
    job = {
        "backend": "nccl",
        "rank": rank,
        "world_size": options.ranks,
        "pg_count": len(groups),
        "pg_config": groups,
        "nccl_version": "2.21.5",
    }
    flags = "".join(
        f'  "{flag}": 1,\n'
        for flag, wanted in (
            ("record_shapes", True),
            ("with_stack", options.stacks),
            ("profile_memory", options.memory),
        )
        if wanted
    )
    distributed = "" if options.collectives == "none" else f'  "distributedInfo": {json.dumps(job)},\n'
    return (
        '\n{\n  "schemaVersion": 1,\n  "deviceProperties": [\n' + devices + "\n  ],\n"
        '  "cupti_version": 24,\n  "cuda_runtime_version": 12060,\n  "cuda_driver_version": 12080,\n'
        + distributed
        + flags
        + f'  "trace_id": "{options.seed:016X}{rank:016X}",\n'
        f'  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": {BASE_TIME_NS},\n  "traceEvents": [\n'
    )


def _metadata(name: str, ts_ns: int, pid: int, tid: int, value: str) -> str:
    return (
        f'  {{\n    "name": "{name}", "ph": "M", "ts": {time_text(ts_ns)}, "pid": {pid}, "tid": {tid},\n'
        f'    "args": {{\n      {value}\n    }}\n  }},\n'
    )


def names(start_ns: int, pid: int, threads: Sequence[tuple[int, str]], device: int, streams: Sequence[int]) -> str:
    """Names and order of processes, threads and streams."""
    out = []
    for number, name, label, order in (
        (pid, "python", "CPU", pid),
        (device, "python", f"GPU {device}", 5000000 + device),
    ):
        out.append(_metadata("process_name", start_ns, number, 0, f'"name": "{name}"'))
        out.append(_metadata("process_labels", start_ns, number, 0, f'"labels": "{label}"'))
        out.append(_metadata("process_sort_index", start_ns, number, 0, f'"sort_index": {order}'))
    for stream in streams:
        out.append(_metadata("thread_name", start_ns, device, stream, f'"name": "stream {stream} "'))
        out.append(_metadata("thread_sort_index", start_ns, device, stream, f'"sort_index": {stream}'))
    for tid, name in threads:
        out.append(_metadata("thread_name", start_ns, pid, tid, f'"name": "thread {tid} ({name})"'))
        out.append(_metadata("thread_sort_index", start_ns, pid, tid, f'"sort_index": {tid}'))
    return "".join(out)


def footer(trace_name: str, start_ns: int, end_ns: int) -> str:
    """The profiler's own span, and what follows the last event."""
    first, last = time_text(start_ns), time_text(end_ns)
    return (
        f'  {{\n    "ph": "X", "cat": "Trace", "ts": {first}, "dur": {time_text(end_ns - start_ns)},\n'
        '    "pid": "Spans", "tid": "PyTorch Profiler",\n    "name": "PyTorch Profiler (0)",\n'
        '    "args": {\n      "Op count": 0\n    }\n  },\n'
        f'  {{\n    "name": "process_sort_index", "ph": "M", "ts": {first},\n    "pid": "Spans", "tid": 0,\n'
        '    "args": {\n      "sort_index": 536870912\n    }\n  },\n'
        '  {\n    "name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g",\n'
        f'    "pid": "Traces", "tid": "Trace PyTorch Profiler", "ts": {first}\n  }},\n'
        '  {\n    "name": "Record Window End", "ph": "i", "s": "g",\n'
        f'    "pid": "", "tid": "", "ts": {last}\n  }}\n  ],\n  "traceName": {json.dumps(trace_name)}\n}}\n'
    )
