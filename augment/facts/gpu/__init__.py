"""GPU work and its launches, kernel families, copy rates and queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from augment.arrays.types import EventRows
    from augment.core.trace import Trace
    from augment.facts.gpu.device_activity import CopyRate, QueueLength, TypeCoverage
    from augment.facts.gpu.gpu_work import GpuWork, Launches
    from augment.facts.gpu.kernel_families import KernelFamilies
    from augment.facts.gpu.launched_work import LaunchDelays, LaunchedWork


def work(trace: Trace) -> GpuWork:
    """Kernels, copies and memsets, each with the call that launched it."""
    from augment.facts.gpu.gpu_work import gpu_work

    return gpu_work(trace)


def launched(trace: Trace) -> LaunchedWork:
    """Joins operators to the work that they launch: ``gpu.launched(trace).under(…)``, of indexes of ``host.stacks``."""
    from augment.facts.gpu.launched_work import launched_work

    return launched_work(trace)


def innermost_operator(trace: Trace) -> EventRows:
    """Of each piece of work the innermost operator around its launch: ``aten::copy_`` in ``aten::contiguous``."""
    from augment.facts.gpu.launched_work import work_operators

    return work_operators(trace)


def calls(trace: Trace) -> Launches:
    """The launching call of each correlation."""
    from augment.facts.gpu.gpu_work import launches

    return launches(trace)


def delays(trace: Trace) -> LaunchDelays:
    """How long launched work waited for its start."""
    from augment.facts.gpu.launched_work import launch_delays

    return launch_delays(trace)


def families(trace: Trace) -> KernelFamilies:
    """What each kernel is: attention, gemm, norm and others, and whether it used matrix units."""
    from augment.facts.gpu.kernel_families import kernel_families

    return kernel_families(trace)


def queues(trace: Trace) -> tuple[QueueLength, ...]:
    """How much launched work waits on each stream."""
    from augment.facts.gpu.device_activity import queue_lengths

    return queue_lengths(trace)


def coverage(trace: Trace) -> tuple[TypeCoverage, ...]:
    """Which types of work run on each device at each moment."""
    from augment.facts.gpu.device_activity import type_coverage

    return type_coverage(trace)


def rates(trace: Trace) -> tuple[CopyRate, ...]:
    """The bytes per second of copies, by kind."""
    from augment.facts.gpu.device_activity import copy_rates

    return copy_rates(trace)
