"""The progress of jobs, from the messages of their workers."""

from __future__ import annotations

import time

from augment.v1 import resources_pb2 as v1
from augment_server.base.observer import Observer
from augment_server.jobs.jobs import Begun, Jobs
from augment_server.workers.workers import Said

CONVERTING = "converting"  #: the stage of a whole job in which its traces are converted


class JobProgress:
    """The progress of a job, and the durations of its stages.

    A whole job has one progress for all steps. Its first stage is the conversion of the traces, each of which counts.
    """

    def __init__(self, begun: Begun, jobs: Jobs, observer: Observer) -> None:
        self._job, self._jobs, self._observer = begun.id, jobs, observer
        self._now = v1.Progress()
        self.started = self._since = time.monotonic()
        self._traces = begun.step.of - 1 if begun.step else 0
        self._ended = 0  # stages but that of the traces
        if begun.step and not begun.step.is_last:
            self._now.stage, self._now.done_count, self._now.total_count = CONVERTING, begun.step.ended, begun.step.of
            self._jobs.tell(self._job, self._now)

    def next(self, said: Said) -> None:
        """Begin the next stage."""
        self.end()
        assert said.stage
        self._now.stage, self._now.done_count = said.stage, said.done + self._traces
        self._now.total_count = said.of + self._traces
        self._jobs.tell(self._job, self._now)

    def trace_done(self) -> None:
        """Count one more converted trace of a whole job."""
        self._now.done_count = min(self._now.done_count + 1, self._traces)

    def end(self) -> None:
        """End the current stage, if there is one."""
        now = time.monotonic()
        if self._now.stage:
            seconds = now - self._since
            self._now.stages.add(stage=self._now.stage).duration.FromMicroseconds(round(seconds * 1e6))
            self._ended += self._now.stage != CONVERTING
            self._now.done_count = self._traces + self._ended
            self._observer.job_stage(self._job, self._now.stage, seconds)
            self._now.stage = ""
        self._since = now


class TraceProgress:
    """The stages of converting one trace of a whole job: for observers of the server, not for clients."""

    def __init__(self, job: str, observer: Observer) -> None:
        self._job, self._observer = job, observer
        self._stage, self._since = "", time.monotonic()

    def next(self, said: Said) -> None:
        """Begin the next stage."""
        self.end()
        self._stage = said.stage or ""

    def end(self) -> None:
        """End the current stage, if there is one."""
        now = time.monotonic()
        if self._stage:
            self._observer.job_stage(self._job, self._stage, now - self._since)
        self._stage, self._since = "", now
