"""The rows of a job's verdict, and of what would be gained."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Struct

from augment.core.findings import column


class Row(Struct, frozen=True):
    """A rank, or a process group, that holds the job up; or work that is uneven among the ranks in every step."""

    rank: Annotated[int | None, column("The rank; null for a process group, and for uneven work.")]
    host: Annotated[str, column("Its host; empty if unknown.")]
    dimension: Annotated[str, column("The parallel dimension in which others wait for it; empty if unknown.")]
    cause: Annotated[str, column("host, compute, communication, queued, before_recording, uneven or unknown.")]
    charged_ns: Annotated[
        int, column("By how much its own work exceeds its peers'; of a group, the time of moving data.", "ns")
    ]
    gain_ns: Annotated[int | None, column("What the job would gain if it were like the median; null if unknown.", "ns")]
    confidence: Annotated[str, column("high, medium or low.")]
    evidence: Annotated[str, column("What shows it.")]
    figures: Annotated[dict[str, Any], column("The figures and names of the evidence, by name.", key=False)] = {}


class WhatIfRow(Struct, frozen=True):
    """The job's time if something were otherwise."""

    scenario: Annotated[str, column("What is otherwise.")]
    rank: Annotated[int | None, column("The rank that would be; null if none alone.")]
    dimension: Annotated[str, column("The parallel dimension that would be; empty if none alone.")]
    time_ns: Annotated[int, column("The time of the job by replay.", "ns")]
    gain_ns: Annotated[int, column("By how much that is less than the unchanged job's by replay.", "ns")]
    gain_ratio: Annotated[float, column("The share of that.", "ratio")]
    error_ratio: Annotated[
        float, column("By how much the replay of the unchanged job misses the recorded time.", "ratio")
    ]
