"""All limits of a server. The flags of ``augment serve`` and a table of its page are generated from them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any

RESERVED_FILES, FILES_PER_JOB = 96, 8  #: of the database, logs and libraries; of a worker
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
TYPICAL_JOB_BYTES = 2 * GIB  #: enough for a trace of a few GB
NESTING, LEAST_NESTING = 128, 16  #: those of the readers, repeated because importing them is slow
MOST_HEADER_BYTES = 16 * KIB  #: of a call's headers: an identity provider's token has up to half of it
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


def limit(default: Any, doc: str, unit: str, least: int = 1) -> Any:
    """A field with its description, its unit (``bytes``, ``s``, ``count`` or ``ratio``), and its minimum."""
    return field(default=default, metadata={"doc": doc, "unit": unit, "least": least})


@dataclass(frozen=True, slots=True)
class Limits:
    """Every limit, with its default. None: derived from the machine."""

    max_upload_bytes: int = limit(8 * GIB, "Maximum size of a trace file.", "bytes")
    max_open_uploads: int = limit(
        64,
        "Unfinished uploads per client; beyond this, one that was idle for a minute is removed, or the new one waits.",
        "count",
    )
    max_text_bytes: int = limit(64 * GIB, "Maximum decompressed size of a trace.", "bytes")
    max_text_ratio: int = limit(2_000, "Maximum decompressed size of a trace, relative to its file size.", "ratio")
    max_events: int = limit(500_000_000, "Maximum number of events in a trace.", "count")
    max_devices: int = limit(4_096, "Maximum number of devices in a trace.", "count")
    max_streams: int = limit(65_536, "Maximum number of streams of all devices in a trace.", "count")
    max_name_bytes: int = limit(MIB, "Maximum length of an event's name.", "bytes")
    max_nesting: int = limit(
        NESTING,
        "Maximum nesting of braces and brackets in an event; deeper events are not read.",
        "count",
        LEAST_NESTING,
    )

    max_running_jobs: int | None = limit(
        None, "Jobs that run at once; by default as many as CPUs and memory allow.", "count"
    )
    max_queued_jobs: int = limit(
        1_000,
        "Waiting jobs of all clients; beyond this, only clients with fewer than an equal share of it add any.",
        "count",
    )
    max_client_jobs: int = limit(100, "Waiting and running jobs per client.", "count")
    max_client_cpu_s: float | None = limit(
        None, "CPU time of the jobs of a client within a day; beyond it, no more are accepted.", "s"
    )
    max_job_inputs: int = limit(
        1_024, "Traces per job, with files beside them; an earlier job counts with all of its traces.", "count"
    )
    max_job_memory_bytes: int | None = limit(
        None,
        "Maximum memory of a job; near it, arrays lie on disk. By default three quarters of the machine's.",
        "bytes",
    )
    max_job_attempts: int = limit(20, "Maximum attempts at a job, over restarts of the server.", "count")
    job_deadline_s: float = limit(HOUR, "Maximum time of the work on a job.", "s")

    artifact_life_s: float = limit(7 * DAY, "How long a finished job and its artifacts are kept.", "s")
    upload_life_s: float = limit(DAY, "How long an unused upload is kept.", "s")
    max_kept: int = limit(
        100_000,
        "Maximum number of finished jobs, and of complete uploads, that are kept; beyond it, each client keeps as many"
        " of its newest as any other.",
        "count",
    )
    max_stored_bytes: int = limit(
        64 * GIB,
        "Maximum disk space of uploads and artifacts; beyond it, those of clients above their share are removed.",
        "bytes",
    )

    max_message_bytes: int = limit(4 * MIB, "Maximum size of a message.", "bytes")
    max_connections: int = limit(10_000, "Open connections of all clients.", "count")
    max_calls: int = limit(2_000, "Concurrent calls of all clients; health checks are always answered.", "count")
    max_client_calls: int = limit(
        500, "Concurrent streaming calls per client, such as those that watch a job; as many other calls.", "count"
    )
    max_connection_idle_s: float = limit(30.0, "How long a connection without calls stays open.", "s")
    max_upload_idle_s: float = limit(
        2 * MINUTE, "How long an upload call may send nothing, and the request of another call may take.", "s"
    )
    max_unread_s: float = limit(
        2 * MINUTE, "How long a client may read nothing of a response before its call is ended.", "s"
    )

    def job_memory_bytes(self) -> int:
        """The memory that one job may use on this machine, bytes."""
        return self.max_job_memory_bytes or memory_bytes() * 3 // 4

    def running_jobs(self) -> int:
        """How many jobs run at once: at most one per CPU, and as many as memory allows."""
        if self.max_running_jobs is not None:
            return max(1, self.max_running_jobs)
        each = self.max_job_memory_bytes or TYPICAL_JOB_BYTES
        return max(1, min(processors(), memory_bytes() * 9 // 10 // each))

    def within(self, files: int) -> Limits:
        """These limits, with no more connections and calls than a process that may open ``files`` can have.

        A connection is an open file, to gRPC and over HTTP, and a streaming call may have another.
        """
        reserved = RESERVED_FILES + FILES_PER_JOB * self.running_jobs()
        each = max(files // 8, (files - reserved) // 3, 1)
        calls = min(self.max_calls, each)
        client_calls = (
            min(self.max_client_calls, max(1, calls // 4)) if calls < self.max_calls else self.max_client_calls
        )
        return replace(
            self,
            max_connections=min(self.max_connections, each),
            max_calls=calls,
            max_client_calls=client_calls,
        )


def processors() -> int:
    """The number of CPUs that this process may use."""
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
