"""The rows of a job's verdict, and of what would be gained."""

from __future__ import annotations

from augment.findings import column
from augment.records import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """A rank, or a process group, that holds the job up."""

    rank: int | None = column("The rank; null for a process group.")
    host: str = column("Its host; empty if unknown.")
    dimension: str = column("The parallel dimension in which others wait for it; empty if unknown.")
    cause: str = column("host, compute, communication, queued, before_recording or unknown.")
    charged_ns: int = column("By how much its own work exceeds its peers'; of a group, the time of moving data.", "ns")
    gain_ns: int | None = column("What the job would gain if it were like the median; null if unknown.", "ns")
    confidence: str = column("high, medium or low.")
    evidence: str = column("What shows it.")


@dataclass(frozen=True, slots=True)
class WhatIfRow:
    """The job's time if something were otherwise."""

    scenario: str = column("What is otherwise.")
    rank: int | None = column("The rank that would be; null if none alone.")
    dimension: str = column("The parallel dimension that would be; empty if none alone.")
    time_ns: int = column("The time of the job by replay.", "ns")
    gain_ns: int = column("By how much that is less than the unchanged job's by replay.", "ns")
    gain_ratio: float = column("The share of that.", "ratio")
    error_ratio: float = column("By how much the replay of the unchanged job misses the recorded time.", "ratio")
