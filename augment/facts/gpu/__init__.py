"""GPU work and its launches, kernel families, copy rates and queues."""

from __future__ import annotations

# fmt: off
# ruff: noqa: I001
from augment.arrays import Bools, EventRows
from augment.core import Trace
from augment.facts.gpu.device_activity import (
    COMMUNICATION, COMPUTATION, MEMORY, CopyRate, QueueLength, TypeCoverage, copy_rates, queue_lengths, type_coverage,
)
from augment.facts.gpu.gpu_time import (
    annotations_of_work, busiest_stream, device_of_work, gpu_time_by, gpu_time_of, in_optimizer, steps_of_optimizers,
)
from augment.facts.gpu.gpu_work import Device, GpuWork, Launches, Stream, gpu_work, launches, sort_key
from augment.facts.gpu.kernel_families import KernelFamilies, MatrixUnits, kernel_families
from augment.facts.gpu.launched_work import (
    LaunchDelays, LaunchedWork, before_recording, before_recording_diagnostics, launch_delays, launch_diagnostics,
    launched_work, work_operators,
)
from augment.facts.gpu.lines_of_work import SourceLines, source_lines
from augment.facts.gpu.hardware_samples import WatchedGpus, watched_gpus
from augment.facts.gpu.device_activity import Occupancy, occupancy as _occupancy, small_grids as _small_grids

__all__ = [
    "COMMUNICATION", "COMPUTATION", "MEMORY", "Device", "MatrixUnits", "Stream", "annotations_of_work",
    "before_recording", "before_recording_diagnostics", "busiest_stream", "calls", "coverage", "delays",
    "device_of_work", "families", "gpu_time_by", "gpu_time_of", "in_optimizer", "innermost_operator",
    "launch_diagnostics", "launched", "lines", "occupancy", "queues", "rates", "small_grids", "sort_key",
    "steps_of_optimizers", "telemetry", "work",
]
# fmt: on


def work(trace: Trace) -> GpuWork:
    """Kernels, copies and memsets, each with the call that launched it."""
    return gpu_work(trace)


def launched(trace: Trace) -> LaunchedWork:
    """Joins operators to the work that they launch: ``gpu.launched(trace).under(…)``, of indexes of ``host.stacks``."""
    return launched_work(trace)


def innermost_operator(trace: Trace) -> EventRows:
    """The innermost operator around the launch of each piece of work: ``aten::copy_`` in ``aten::contiguous``."""
    return work_operators(trace)


def calls(trace: Trace) -> Launches:
    """The launching call of each correlation."""
    return launches(trace)


def delays(trace: Trace) -> LaunchDelays:
    """How long launched work waited for its start."""
    return launch_delays(trace)


def families(trace: Trace) -> KernelFamilies:
    """What each kernel is: attention, gemm, norm and others, and whether it used matrix units."""
    return kernel_families(trace)


def queues(trace: Trace) -> tuple[QueueLength, ...]:
    """How much launched work waits on each stream."""
    return queue_lengths(trace)


def coverage(trace: Trace) -> tuple[TypeCoverage, ...]:
    """Which types of work run on each device at each moment."""
    return type_coverage(trace)


def lines(trace: Trace) -> SourceLines:
    """Which line of the user's program each piece of work comes from."""
    return source_lines(trace)


def telemetry(trace: Trace) -> WatchedGpus | str | None:
    """What was recorded of each device beside the trace: power, clocks and others; why it cannot be joined; or None."""
    return watched_gpus(trace)


def rates(trace: Trace) -> tuple[CopyRate, ...]:
    """The bytes per second of copies, by kind."""
    return copy_rates(trace)


def occupancy(trace: Trace) -> Occupancy:
    """How much of the device each piece of work fills, by its launch; NaN where the trace does not say it."""
    return _occupancy(trace)


def small_grids(trace: Trace) -> Bools:
    """Which pieces of work are kernels, but no collectives, whose grid fills less than half of the SMs."""
    return _small_grids(trace)
