"""Tiny traces made by hand, as the files that Kineto writes: times in µs, an event a line.

write_trace(
    tmp_path / "rank0.json.gz",
    step(0),
    launch("cudaLaunchKernel", 5, 3, correlation=1),
    kernel("gemm", 20, 10, correlation=1),
)
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]

HOST, THREAD = 100, 100
#: traces of simulated jobs that ship with the project
SIMULATED = sorted((Path(__file__).resolve().parents[2] / "examples" / "simulated").rglob("*.json.gz"))


def by_folder(path: Path | str) -> str:
    """A short name of a trace, for the names of tests."""
    return "/".join(Path(path).parts[-2:])


def event(category: str, name: str, ts: float, dur: float, pid: int | str, tid: int | str, **args: Any) -> Event:
    """A complete event."""
    return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, "pid": pid, "tid": tid, "args": args}


def kernel(
    name: str = "gemm", ts: float = 20, dur: float = 10, *, correlation: int = 1, device: int = 0, stream: int = 7
) -> Event:
    """A kernel on a stream."""
    args = {"device": device, "stream": stream, "correlation": correlation}
    return event("kernel", name, ts, dur, device, stream, **args)


def copy(
    name: str = "Memcpy HtoD (Pageable -> Device)", ts: float = 40, dur: float = 10, size: int = 4096, *,
    correlation: int = 2, device: int = 0, stream: int = 7,
) -> Event:  # fmt: skip
    """A copy on a stream."""
    args = {"device": device, "stream": stream, "correlation": correlation, "bytes": size}
    return event("gpu_memcpy", name, ts, dur, device, stream, **args)


def launch(name: str = "cudaLaunchKernel", ts: float = 5, dur: float = 3, *, correlation: int = 1) -> Event:
    """A call of the runtime."""
    return event("cuda_runtime", name, ts, dur, HOST, THREAD, correlation=correlation)


def op(name: str = "aten::mm", ts: float = 2, dur: float = 8, **args: Any) -> Event:
    """An operator on the host."""
    return event("cpu_op", name, ts, dur, HOST, THREAD, **args)


def step(number: int = 0, ts: float = 0, dur: float = 100) -> Event:
    """A profiler step."""
    return event("user_annotation", f"ProfilerStep#{number}", ts, dur, HOST, THREAD)


def some_work() -> list[Event]:
    """A step with an operator that launches a kernel and a copy."""
    return [step(), op(), launch(), launch("cudaMemcpyAsync", 12, 4, correlation=2), kernel(), copy()]


def trace_text(*events: Event, **members: Any) -> bytes:
    """The file's text; ``members`` stand beside ``traceEvents``. Without ``events``, :func:`some_work`."""
    lines = ",\n".join(json.dumps(event) for event in events or some_work())
    head = "".join(f"{json.dumps(name)}: {json.dumps(value)},\n" for name, value in members.items())
    return f'{{\n{head}"traceEvents": [\n{lines}\n]}}\n'.encode()


def write_trace(path: Path, *events: Event, **members: Any) -> Path:
    """Write a trace, compressed if the name ends in ``.gz``; its folder is made."""
    text = trace_text(*events, **members)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text, 1, mtime=0) if path.suffix == ".gz" else text)
    return path
