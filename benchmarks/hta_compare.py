"""HTA beside our own figures in HTA's frames, for the traces of a folder: equal, different and why, or HTA failed.

    python benchmarks/hta_compare.py FOLDER [--hta PYTHON] [--all] [--timeout 300]

Every trace below FOLDER is read by both, alone. HTA comes from the package index, into a virtual environment of its
own (with pandas 2, which it was made for), which is made at the first run and kept with the traces of bench.py;
``--hta`` names a Python that has it already.
A figure is equal if it differs by less than the rounding of a frame, or by 0.01 %. Why the others differ stands in
docs/hta.md; the reasons here are those that a look at the trace confirms.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import venv
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from bench import ROOT, cache

from augment.arrays.types import NO_INDEX

sys.path.insert(0, str(ROOT))

from augment.core.trace import Category, Trace
from augment.errors import AugmentError
from augment.facts.gpu.gpu_work import gpu_work

#: runs in either Python: the frames of every method as {method: {key of a row: {column: value}}}, or an error
FIGURES = """
import json, logging, sys, tempfile, warnings
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
if sys.argv[1] == "hta":
    from hta.trace_analysis import TraceAnalysis
else:
    from augment.hta import TraceAnalysis

def rows(frame, *keys):
    if frame is None:
        return {}
    frame = frame.reset_index() if keys and keys[0] not in frame.columns else frame
    key_of = lambda one: "/".join(str(one[key]) for key in keys)
    return {key_of(one): {str(k): v for k, v in one.items() if k not in (*keys, "index")}
            for one in frame.to_dict("records")}

def summary(frame):
    if frame is None:
        return {}
    flat = frame.copy()
    flat.columns = [column[-1] for column in flat.columns]
    return {"/".join(map(str, index)): row.to_dict() for index, row in flat.iterrows()}

def launches(frame):
    return {"all": {"count": len(frame), **{column: float(frame[column].sum()) for column in frame.columns[1:]}}}

def sequences(t, out):
    return rows(t.get_frequent_cuda_kernel_sequences("aten::", out, 1), "pattern")

methods = {
    "temporal_breakdown": lambda t: rows(t.get_temporal_breakdown(visualize=False), "rank"),
    "comm_comp_overlap": lambda t: rows(t.get_comm_comp_overlap(visualize=False), "rank"),
    "idle_time_breakdown": lambda t: rows(t.get_idle_time_breakdown(visualize=False)[0], "stream", "idle_category"),
    "kernel_types": lambda t: rows(t.get_gpu_kernel_breakdown(visualize=False)[0], "kernel_type"),
    "kernels": lambda t: rows(t.get_gpu_kernel_breakdown(visualize=False)[1], "kernel_type", "name"),
    "user_annotations": lambda t: rows(t.get_gpu_user_annotation_breakdown(False, False), "name"),
    "launch_stats": lambda t: launches(t.get_cuda_kernel_launch_stats(visualize=False)[0]),
    "aten_op_delays": lambda t: rows(t.get_aten_op_kernels_and_delay()[0], "aten_op_name", "kernel_sequence"),
    "queue_length": lambda t: summary(t.get_queue_length_summary()),
    "memory_bw": lambda t: summary(t.get_memory_bw_summary()),
    "sequences": lambda t: sequences(t, tempfile.mkdtemp()),
    "profiler_steps": lambda t: {"steps": {str(step): 1 for step in t.get_profiler_steps()}},
    "cupti_counters": lambda t: {"all": {"kernels": sum(map(len, t.get_cupti_counter_data_with_operators()))}},
}
try:
    if sys.argv[1] == "hta":
        import plotly.basedatatypes
        plotly.basedatatypes.BaseFigure.show = lambda *_, **__: None
    t = TraceAnalysis(trace_files={0: sys.argv[2]})
except BaseException as error:
    print(json.dumps({"error": repr(error)[:200]}))
    sys.exit()
found = {}
for name, method in methods.items():
    try:
        found[name] = method(t)
    except BaseException as error:
        found[name] = {"error": f"{type(error).__name__}: {error}"[:120]}
print("\\n" + json.dumps(found, default=lambda value: value.item()))
"""

Frames = dict[str, Any]


def hta_python(named: str | None) -> str:
    """A Python that has HTA."""
    if named:
        return named
    home = cache() / "hta-venv"
    python = home / "bin" / "python"
    if not python.exists():
        print(f"installing HTA into {home} …", file=sys.stderr)
        venv.create(home, with_pip=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", "HolisticTraceAnalysis", "pandas<3"], check=True
        )
    return str(python)


def frames_of(python: str, whose: str, path: Path, timeout: float) -> Frames:
    """The frames of one side; ``{"error": …}`` where the trace could not be opened at all."""
    command = [python, "-c", FIGURES, whose, str(path)]
    try:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"error": f"nothing after {timeout:.0f} s"}
    lines = ended.stdout.strip().splitlines()
    if ended.returncode or not lines:
        last = ended.stderr.strip().splitlines()[-1:] or ["?"]
        return {"error": f"exit {ended.returncode}: {last[0][:150]}"}
    frames: Frames = json.loads(lines[-1])
    return frames


def number(value: Any) -> bool:
    """Whether it can be compared by how much it differs."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def same(left: Any, other: Any) -> bool:
    """Equal up to the rounding of frames."""
    if number(left) and number(other):
        return (math.isnan(left) and math.isnan(other)) or math.isclose(left, other, rel_tol=1e-4, abs_tol=0.0051)
    return bool(left == other)


def differences(expected: Frames, actual: Frames) -> Iterator[tuple[str, str, Any, Any]]:
    """Rows and columns whose values differ; None for a row that a side lacks."""
    for key in {**expected, **actual}:
        left, right = expected.get(key), actual.get(key)
        if left is None or right is None:
            if any(number(value) and value and not math.isnan(value) for value in (left or right).values()):
                yield key, "", left and "a row", right and "a row"
            continue
        for column in left:
            if column in right and not same(left[column], right[column]):
                yield key, column, left[column], right[column]


Facts = dict[str, bool]


def facts_of(trace: Trace) -> Facts:
    """What is in the trace that HTA is known to take otherwise."""
    events, work = trace.events, gpu_work(trace)
    streams = [stream for stream in work.streams if stream.stop > stream.start]
    end = np.maximum.accumulate(work.end) if len(work) else work.end
    overlapping = any(
        bool((work.ts[stream.places][1:] < np.maximum.accumulate(work.end[stream.places])[:-1]).any())
        for stream in streams
    )
    kernels = work.row[events.category[work.row] == Category.KERNEL]
    names = set(trace.names_of(kernels)) if len(kernels) else set()
    steps = events.slices_of(Category.GPU_USER_ANNOTATION)
    launch = work.launch[work.launch != NO_INDEX]
    return {
        STEPS: any(name.startswith("ProfilerStep") for name in trace.names_of(steps)),
        HOST_STREAMS: any("stream" in args for args in trace.args_of(events.slices_of(Category.CPU_OP))),
        "fractions of a microsecond": bool((events.ts % 1000).any() or (events.dur % 1000).any()),
        "cuda_sync slices": bool(len(events.slices_of(Category.CUDA_SYNC))),
        "work without launch": len(launch) < len(work),
        "several devices": len(work.devices) > 1,
        "streams that are no number": any(not isinstance(stream.stream, int) for stream in streams),
        "overlapping kernels on a stream": overlapping and len(end) > 0,
        "several pieces of one launch": len(np.unique(launch)) < len(launch),
        "names that HTA takes for another type": any(map(misnamed, names)),
        "stream 0": any(stream.stream == 0 for stream in streams),
        "another vendor": not any(name.startswith(("cuda", "cu")) for name in trace.strings),
        "call of another name": any(name.startswith(("cuLaunch", "hip", "cudaGraph")) for name in trace.strings),
        "blocking copies": "cudaMemcpy" in trace.strings,
    }


def misnamed(name: str) -> bool:
    """Whether a kernel's name leads HTA's patterns astray."""
    low = name.lower()
    return name.startswith("hip") or any(
        text in low for text in ("sync", "dma", "memcpy", "memset", "rccl", "reduce_1stage")
    )


ROUNDING = "fractions of a microsecond"
HOST_STREAMS = "host events with a stream"
STEPS = "steps of the device"  #: which HTA takes for the host's, so that all or part of the last stays in
#: the facts that can explain a difference, the likeliest first; and what always differs
REASONS: dict[str, tuple[str, ...]] = {
    "temporal_breakdown": (
        HOST_STREAMS, "cuda_sync slices", "several devices", "names that HTA takes for another type", "stream 0",
        "another vendor", "streams that are no number", "several pieces of one launch", ROUNDING, "work without launch",
    ),
    "comm_comp_overlap": (
        HOST_STREAMS, "names that HTA takes for another type", "several devices", "another vendor", "stream 0",
        ROUNDING,
    ),
    "idle_time_breakdown": (
        "overlapping kernels on a stream", "several devices", "several pieces of one launch", "work without launch",
        "another vendor", "stream 0", ROUNDING,
    ),
    "kernel_types": (
        HOST_STREAMS, "names that HTA takes for another type", "several devices", "another vendor", "stream 0",
        "several pieces of one launch", ROUNDING, "cuda_sync slices", "work without launch",
    ),
    "user_annotations": (ROUNDING,),
    "launch_stats": (
        "blocking copies", "call of another name", "several pieces of one launch", "another vendor", ROUNDING,
    ),
    "aten_op_delays": ("another vendor", "call of another name"),
    "sequences": ("cuda_sync slices", ROUNDING, "several pieces of one launch", "work without launch"),
}  # fmt: skip
ALWAYS = {
    "kernels": "HTA's statistics of sums (beyond num_kernels)",
    "queue_length": "HTA describes events, not time",
    "memory_bw": "HTA describes events, not time, and takes the recorded bandwidth, not bytes over duration",
    "aten_op_delays": "HTA leaves out copies and memsets, and asks other threads, too",
    "sequences": "HTA orders kernels by start, not by launch",
    "idle_time_breakdown": "HTA's window joins unlinked kernels to the first event",
    "cupti_counters": "HTA knows cudaLaunchKernel alone",
}


def reason(method: str, facts: Facts) -> str:
    """Why the figures of ``method`` differ, as far as the trace confirms it."""
    facts_ = [fact for fact in (STEPS, *REASONS.get(method, ())) if facts.get(fact)][:2]
    if method not in REASONS or not facts_:
        facts_.append(ALWAYS.get(method, "?"))
    return ", ".join(facts_)


def compare(path: Path, python: str, timeout: float) -> Iterator[tuple[str, str, str]]:
    """Method, verdict (equal, different, HTA failed, we failed), and a word on it."""
    from augment.readers import read

    actual = frames_of(sys.executable, "augment", path, timeout)
    if "error" in actual:
        yield "opening", "we failed", str(actual["error"])
        return
    expected = frames_of(python, "hta", path, timeout)
    if "error" in expected:
        yield "opening", "HTA failed", str(expected["error"])
        return
    facts = facts_of(read(str(path)))
    for method, frame in actual.items():
        other = expected.get(method, {})
        if "error" in frame:
            yield method, "we failed", str(frame["error"])
        elif "error" in other:
            yield method, "HTA failed", str(other["error"])
        elif unequal := list(differences(other, frame)):
            key, column, left, right = unequal[0]
            example = f"{key[:40]} {column}: {left} there, {right} here"
            yield method, "different", f"{reason(method, facts)} ({len(unequal)} values; {example})"
        else:
            yield method, "equal", ""


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hta", metavar="PYTHON", help="a Python that has HTA")
    parser.add_argument("--all", action="store_true", help="also list what is equal")
    parser.add_argument("--timeout", type=float, default=300, metavar="SECONDS", help="for a trace and a side")
    chosen = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    python = hta_python(chosen.hta)
    counts: Counter[str] = Counter()
    folder = chosen.folder.resolve()  # of relative paths either side would take another folder
    paths = [folder] if folder.is_file() else sorted(folder.rglob("*.json*"))
    for path in paths:
        print(path.name)
        try:
            for method, verdict, word in compare(path, python, chosen.timeout):
                counts[verdict] += 1
                if chosen.all or verdict != "equal":
                    print(f"  {method:20} {verdict:10} {word}")
        except AugmentError as error:
            print(f"  no trace: {error}")
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))
    return 1 if counts["we failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
