"""How long do the user's annotations take?

There is a row for every name of an annotation (``record_function``, and those of the optimizer, the collectives and the
steps), on the host (``side`` is ``cpu``) and on each device (``gpu``, where Kineto draws an annotation from the first
to the last work that was launched within it): how often it occurs, and the sum, mean, minimum, maximum and standard
deviation of its durations (the deviation of a sample, over n - 1; 0 for one). Nested annotations both count.

`gpu_time_by_annotation` gives the GPU time of the work launched in them.

**What to do**: annotate phases (``torch.profiler.record_function``) until the time that you look for has a name;
compare the host's time with the device's.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from augment.arrays import combinations, group_bounds, grouped, grouped_statistics
from augment.core import Category, Findings, Identity, OfRank, Trace, column
from augment.facts.gpu.gpu_work import sort_key

NAME = "user_annotation_breakdown"
NEEDS = ((Category.USER_ANNOTATION, Category.GPU_USER_ANNOTATION),)


class Row(OfRank, frozen=True):
    """One name on one side."""

    device: Annotated[Identity, column("The device; none on the host.")]
    side: Annotated[str, column("Where it was recorded: cpu or gpu.")]
    name: Annotated[str, column("The name of the annotation.")]
    count: Annotated[int, column("Number of occurrences.", "count")]
    sum_ns: Annotated[int, column("Sum of its durations.", "ns")]
    mean_ns: Annotated[float, column("Mean duration.", "ns")]
    min_ns: Annotated[int, column("Least duration.", "ns")]
    max_ns: Annotated[int, column("Greatest duration.", "ns")]
    std_ns: Annotated[float, column("Sample standard deviation of the durations; 0 for one.", "ns")]


def analyze(trace: Trace) -> Findings:
    """Aggregate the annotations of each side by name."""
    events = trace.events
    rows = events.slices_of(Category.USER_ANNOTATION, Category.GPU_USER_ANNOTATION)
    devices = list(dict.fromkeys((track.rank, track.device) for track in trace.tracks))
    number = {device: index for index, device in enumerate(devices)}
    device_of_track = np.array([number[track.rank, track.device] for track in trace.tracks], np.int64)
    on_gpu = events.category[rows] == Category.GPU_USER_ANNOTATION
    keys, code = combinations(on_gpu.astype(np.int8), device_of_track[events.track[rows]], events.name[rows])
    count = len(keys[0])
    figures = grouped_statistics(events.dur[rows[grouped(code, count)]], group_bounds(code, count))
    result = []
    for side, device, name, numbers in zip(*(key.tolist() for key in keys), figures, strict=True):
        rank, where = devices[device]
        result.append(Row(rank, where, ("cpu", "gpu")[side], trace.strings[name], *numbers))
    result.sort(key=lambda row: (sort_key(row.rank), row.side, sort_key(row.device), -row.sum_ns, row.name))
    return Findings(result)
