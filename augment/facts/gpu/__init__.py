"""GPU work and its launches, kernel families, copy rates and queues."""

from __future__ import annotations

# fmt: off
# ruff: noqa: I001
from augment.facts.gpu.device_activity import (
    COMMUNICATION, COMPUTATION, MEMORY, copy_rates as rates, queue_lengths as queues, type_coverage as coverage,
    occupancy, small_grids, weighed, communication_at,
)
from augment.facts.gpu.gpu_time import (
    annotations_of_work, busiest_stream, device_of_work, gpu_time_by, in_optimizer, steps_of_optimizers,
    busiest_devices, module_work,
)
from augment.facts.gpu.gpu_work import (
    Device, Stream, gpu_work as work, launches as calls, sort_key, work_of_several_processes, correlations_of,
    launch_moments,
)
from augment.facts.gpu.kernel_families import (
    COMMUNICATION as COMMUNICATION_FAMILY, MATRIX_FAMILIES, UNKNOWN as UNKNOWN_FAMILY, MatrixUnits,
    kernel_families as families,
)
from augment.facts.gpu.launched_work import (
    CollectiveArgs, LaunchDelays, collective_kinds, before_recording, before_recording_diagnostics,
    launch_delays as delays, launch_diagnostics,
    launched_work as launched, work_operators as innermost_operator, launch_unknown, launch_unknown_diagnostics,
)
from augment.facts.gpu.lines_of_work import source_lines as lines, longest_lines, lines_of_rows
from augment.facts.gpu.hardware_samples import watched_gpus as telemetry, counter_ranges

__all__ = [
    "COMMUNICATION", "COMMUNICATION_FAMILY", "COMPUTATION", "MATRIX_FAMILIES", "MEMORY", "UNKNOWN_FAMILY",
    "CollectiveArgs", "Device", "LaunchDelays", "MatrixUnits", "Stream", "annotations_of_work", "before_recording",
    "before_recording_diagnostics", "busiest_devices", "busiest_stream", "calls", "collective_kinds",
    "communication_at", "correlations_of", "counter_ranges", "coverage", "delays", "device_of_work", "families",
    "gpu_time_by", "in_optimizer", "innermost_operator", "launch_diagnostics", "launch_moments", "launch_unknown",
    "launch_unknown_diagnostics", "launched", "lines", "lines_of_rows", "longest_lines", "module_work", "occupancy",
    "queues", "rates", "small_grids", "sort_key", "steps_of_optimizers", "telemetry", "weighed", "work",
    "work_of_several_processes",
]
# fmt: on
