"""What one server takes on, in one place: the flags of ``augment serve`` and a table of its page are made of it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
TYPICAL_JOB_BYTES = 2 * GIB  #: enough for a trace of some GB
NESTING, LEAST_NESTING = 128, 16  #: the readers' own; they would load too much here
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


def limit(default: Any, doc: str, unit: str, least: int = 1) -> Any:
    """A field with its sentence, its unit (``bytes``, ``s``, ``count`` or ``ratio``), and the least of a number."""
    return field(default=default, metadata={"doc": doc, "unit": unit, "least": least})


@dataclass(frozen=True, slots=True)
class Limits:
    """Every limit, with its default. None means as the machine allows."""

    max_upload_bytes: int = limit(8 * GIB, "Largest trace file that is taken.", "bytes")
    max_open_uploads: int = limit(
        64,
        "Uploads that a client may have begun; one more takes the place of one that rests for a minute, or waits.",
        "count",
    )
    max_text_bytes: int = limit(64 * GIB, "Most that a trace may decompress to.", "bytes")
    max_text_ratio: int = limit(2_000, "Most that a trace may decompress to, in multiples of its size.", "ratio")
    max_events: int = limit(500_000_000, "Most events of a trace.", "count")
    max_name_bytes: int = limit(MIB, "Longest name of an event.", "bytes")
    max_nesting: int = limit(
        NESTING,
        "Deepest nesting of braces and brackets in an event; one that goes deeper is not read.",
        "count",
        LEAST_NESTING,
    )

    max_running_jobs: int | None = limit(
        None, "Jobs that run at once; if not given, as many as there are processors, and memory for.", "count"
    )
    max_queued_jobs: int = limit(1_000, "Jobs that wait, of all clients.", "count")
    max_client_jobs: int = limit(100, "Jobs of one client that wait or run.", "count")
    max_job_inputs: int = limit(1_024, "Traces of one job.", "count")
    max_job_memory_bytes: int | None = limit(
        None, "Most memory that a job may take; if not given, three quarters of the machine's.", "bytes"
    )
    max_job_attempts: int = limit(
        20, "How often work on a job is begun, over restarts of the server, before it is given up.", "count"
    )
    job_deadline_s: float = limit(HOUR, "Longest that work on a job may take.", "s")

    artifact_life_s: float = limit(7 * DAY, "How long a job that is final, and what it made, are kept.", "s")
    upload_life_s: float = limit(DAY, "How long an upload is kept that no job uses.", "s")
    max_kept: int = limit(100_000, "Final jobs that are kept, and complete uploads; the oldest go first.", "count")
    max_stored_bytes: int = limit(
        64 * GIB,
        "Most that uploads and artifacts take on disk; then those of the client go that has more than its share.",
        "bytes",
    )

    max_message_bytes: int = limit(4 * MIB, "Largest message that is taken.", "bytes")
    max_connections: int = limit(10_000, "Connections at once, of all clients.", "count")
    max_calls: int = limit(2_000, "Calls at once, of all clients; health is told beyond them.", "count")
    max_client_calls: int = limit(
        500, "Calls of one client at once that send or receive streams: watchers, say.", "count"
    )
    max_connection_idle_s: float = limit(30.0, "After how long a connection without calls is closed.", "s")
    max_upload_idle_s: float = limit(
        2 * MINUTE, "After how long a call that should send bytes and does not is ended.", "s"
    )
    max_unread_s: float = limit(2 * MINUTE, "After how long a call of which nothing is read is ended.", "s")

    def job_memory_bytes(self) -> int:
        """What one job may take on this machine."""
        return self.max_job_memory_bytes or memory_bytes() * 3 // 4

    def running_jobs(self) -> int:
        """How many jobs run at once here: each with a processor, and memory for the largest or a typical one."""
        if self.max_running_jobs is not None:
            return max(1, self.max_running_jobs)
        each = self.max_job_memory_bytes or TYPICAL_JOB_BYTES
        return max(1, min(processors(), memory_bytes() * 9 // 10 // each))


def processors() -> int:
    """How many processors this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def memory_bytes() -> int:
    """The machine's memory, or its container's share of it."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path, encoding="ascii") as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit():
            return min(machine, int(text))
    return machine
