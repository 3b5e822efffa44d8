"""GPU work and its launches, kernel families, copy rates and queues."""

from __future__ import annotations

# fmt: off
# ruff: noqa: I001
from augment.facts.gpu.device_activity import (
    COMMUNICATION, COMPUTATION, MEMORY, copy_rates as rates, queue_lengths as queues, type_coverage as coverage,
    occupancy, small_grids,
)
from augment.facts.gpu.gpu_time import (
    annotations_of_work, busiest_stream, device_of_work, gpu_time_by, in_optimizer, steps_of_optimizers,
)
from augment.facts.gpu.gpu_work import Device, Stream, gpu_work as work, launches as calls, sort_key
from augment.facts.gpu.kernel_families import MatrixUnits, kernel_families as families
from augment.facts.gpu.launched_work import (
    before_recording, before_recording_diagnostics, launch_delays as delays, launch_diagnostics, launched_work as
    launched, work_operators as innermost_operator,
)
from augment.facts.gpu.lines_of_work import source_lines as lines
from augment.facts.gpu.hardware_samples import watched_gpus as telemetry

__all__ = [
    "COMMUNICATION", "COMPUTATION", "MEMORY", "Device", "MatrixUnits", "Stream", "annotations_of_work",
    "before_recording", "before_recording_diagnostics", "busiest_stream", "calls", "coverage", "delays",
    "device_of_work", "families", "gpu_time_by", "in_optimizer", "innermost_operator",
    "launch_diagnostics", "launched", "lines", "occupancy", "queues", "rates", "small_grids", "sort_key",
    "steps_of_optimizers", "telemetry", "work",
]
# fmt: on
