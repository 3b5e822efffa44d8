"""What does launching cost?

There is a row for each stream, over the launches of its work: how long the calls took on the host (``cpu_ns``), how
long the work took on the device (``gpu_ns``), and how long the work waited from the end of the call to its start
(``launch_delay_ns``; 0 where it began before the call returned). A launch is any call that shares the correlation of
the work: ``cudaLaunchKernel``, ``cuLaunchKernelEx``, cooperative launches, ``cudaMemcpyAsync``,
``hipExtModuleLaunchKernel``, … Three kinds of launches are counted as outliers:

- short kernels: the call took longer than the work.
- runtime outliers: the call took longer than ``runtime_cutoff_ns``.
- launch-delay outliers: the work waited longer than ``launch_delay_cutoff_ns``. The wait includes earlier work on the
  stream, so a long wait means that the host is ahead, which is good, or that a stream is congested.

`launch_outliers` lists them. Each piece of work counts as a launch. The pieces of a CUDA graph share one call, so each
counts with the whole call's ``cpu_ns``, and waits for the pieces before it. ``call_count`` is the number of calls.

**What to do**: many kernels shorter than their launch: CUDA graphs or fusion. Long calls: an allocator that asks the
driver, a full queue, or an interrupted host.

Options:
    runtime_cutoff_ns: a longer call is a runtime outlier.
    launch_delay_cutoff_ns: a longer wait is a launch-delay outlier.
    include_memory_events: whether copies and memsets count.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from augment import facts
from augment.arrays import Int64s, distinct, percentiles
from augment.core import GPU_WORK, LAUNCHES, Category, Findings, Identity, OfDevice, Skipped, Trace, column

NAME = "launch_statistics"
NEEDS = (GPU_WORK, LAUNCHES)


class Row(OfDevice, frozen=True):
    """One stream."""

    stream: Annotated[Identity, column("The stream.")]
    launch_count: Annotated[int, column("Number of pieces of work whose launch is known.", "count")]
    call_count: Annotated[int, column("Number of calls that launched them.", "count")]
    short_kernel_count: Annotated[int, column("Pieces of work that took less time than their call.", "count")]
    runtime_outlier_count: Annotated[int, column("Pieces of work whose call took longer than the cutoff.", "count")]
    launch_delay_outlier_count: Annotated[int, column("Pieces that waited longer, also behind others.", "count")]
    mean_cpu_ns: Annotated[float, column("Mean duration of the calls.", "ns")]
    p50_cpu_ns: Annotated[float, column("Median duration of the calls.", "ns")]
    p99_cpu_ns: Annotated[float, column("99th percentile of the durations of the calls.", "ns")]
    max_cpu_ns: Annotated[int, column("Greatest duration of a call.", "ns")]
    mean_gpu_ns: Annotated[float, column("Mean duration of the work.", "ns")]
    p50_gpu_ns: Annotated[float, column("Median duration of the work.", "ns")]
    p99_gpu_ns: Annotated[float, column("99th percentile of the durations of the work.", "ns")]
    max_gpu_ns: Annotated[int, column("Greatest duration of the work.", "ns")]
    mean_launch_delay_ns: Annotated[float, column("Mean time from the end of the call to the start of the work.", "ns")]
    p50_launch_delay_ns: Annotated[float, column("Median of these times.", "ns")]
    p99_launch_delay_ns: Annotated[float, column("99th percentile of these times.", "ns")]
    max_launch_delay_ns: Annotated[int, column("Greatest of these times.", "ns")]


def analyze(
    trace: Trace,
    *,
    runtime_cutoff_ns: int = 50_000,
    launch_delay_cutoff_ns: int = 100_000,
    include_memory_events: bool = True,
) -> Findings | Skipped:
    """Describe the launches of each stream."""
    work, delays = facts.gpu.work(trace), facts.gpu.delays(trace)
    if not include_memory_events:
        delays = delays.take(trace.events.category[work.row[delays.place]] == Category.KERNEL)
    if not len(delays):
        return Skipped("no GPU work whose correlation names a launch")
    bounds = np.searchsorted(delays.place, [0, *(stream.stop for stream in work.streams)]).tolist()
    rows = []
    for stream, start, stop in zip(work.streams, bounds, bounds[1:], strict=False):
        if stop > start:
            of_stream = delays.take(slice(start, stop))
            row = Row(
                stream.rank,
                stream.device,
                stream.stream,
                len(of_stream),
                len(distinct(of_stream.row)),
                int(np.count_nonzero(of_stream.gpu_ns < of_stream.cpu_ns)),
                int(np.count_nonzero(of_stream.cpu_ns > runtime_cutoff_ns)),
                int(np.count_nonzero(of_stream.delay_ns > launch_delay_cutoff_ns)),
                *_described(of_stream.cpu_ns),
                *_described(of_stream.gpu_ns),
                *_described(of_stream.delay_ns),
            )
            rows.append(row)
    return Findings(rows, (), facts.gpu.launch_diagnostics(trace))


def _described(durations: Int64s) -> tuple[float, float, float, int]:
    """Mean, median, 99th percentile and maximum of ``values``."""
    median, late = percentiles(durations, 50, 99)
    return float(durations.mean()), median, late, int(durations.max())
