"""The interface through which the core reports events to metrics, logs and tracing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Observer:
    """Receives events. Methods may be called from any thread and must return at once; this base class does nothing."""

    def job_queued(self, job_id: str) -> None:
        """A job has been accepted, or put back into the queue."""

    def job_started(self, job_id: str, queued_s: float) -> None:
        """A worker has taken the job up, ``queued_s`` after it was last queued."""

    def job_stage(self, job_id: str, stage: str, seconds: float) -> None:
        """A stage of the job's work has ended; it took ``seconds``."""

    def job_finished(self, job_id: str, state: str, seconds: float, reason: str = "") -> None:
        """The job is ``SUCCEEDED``, ``FAILED`` or ``CANCELLED``, ``seconds`` after its work began.

        ``reason`` is the error's, in UPPER_SNAKE; empty where there is none.
        """

    def log(self, level: int, message: str, *, job_id: str = "", **fields: Any) -> None:
        """A line for operators; ``level`` as of :mod:`logging`. Fields are data: no secrets."""


class Observers(Observer):
    """Forwards events to several observers."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def job_queued(self, job_id: str) -> None:
        """To each."""
        for observer in self._observers:
            observer.job_queued(job_id)

    def job_started(self, job_id: str, queued_s: float) -> None:
        """To each."""
        for observer in self._observers:
            observer.job_started(job_id, queued_s)

    def job_stage(self, job_id: str, stage: str, seconds: float) -> None:
        """To each."""
        for observer in self._observers:
            observer.job_stage(job_id, stage, seconds)

    def job_finished(self, job_id: str, state: str, seconds: float, reason: str = "") -> None:
        """To each."""
        for observer in self._observers:
            observer.job_finished(job_id, state, seconds, reason)

    def log(self, level: int, message: str, *, job_id: str = "", **fields: Any) -> None:
        """To each."""
        for observer in self._observers:
            observer.log(level, message, job_id=job_id, **fields)
