"""How far jobs are, from what their workers say."""

from __future__ import annotations

import time

from augment.v1 import resources_pb2 as v1
from augment_server.jobs import Jobs
from augment_server.observer import Observer
from augment_server.workers import Said


class JobProgress:
    """How far a job is, and how long its stages took."""

    def __init__(self, job: str, jobs: Jobs, observer: Observer) -> None:
        self._job, self._jobs, self._observer = job, jobs, observer
        self._now = v1.Progress()
        self._since = time.monotonic()

    def next(self, said: Said) -> None:
        """A stage begins."""
        self.end()
        self._now.stage, self._now.done_count, self._now.total_count = said["stage"], said["done"], said["of"]
        self._jobs.tell(self._job, self._now)

    def end(self) -> None:
        """The stage at hand, if there is one, has ended."""
        now = time.monotonic()
        if self._now.stage:
            seconds = now - self._since
            self._now.stages.add(stage=self._now.stage).duration.FromMicroseconds(round(seconds * 1e6))
            self._now.done_count = len(self._now.stages)
            self._observer.job_stage(self._job, self._now.stage, seconds)
            self._now.stage = ""
        self._since = now
