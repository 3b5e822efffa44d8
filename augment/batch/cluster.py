"""A Dask cluster as workers (extra ``[dask]``)."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from augment.batch.results import Result
from augment.batch.workers import Task
from augment.errors import OutputError, UsageError

PATIENCE_S = 30  #: how long the scheduler may take to answer
AHEAD = 2  #: inputs given out for each thread, so that none waits and a cluster that grows by need sees the need
AT_LEAST = 8  #: inputs given out when there is no thread yet


class Cluster:
    """The workers of the Dask scheduler at ``address``, such as ``tcp://10.0.0.1:8786``.

    They see the inputs and write the outputs themselves. Dask gives the input of a worker that died to others until
    that killed ``distributed.scheduler.allowed-failures`` more of them.

    Raises:
        UsageError: Dask is not installed.
        OutputError: nobody answers at ``address``.
    """

    lost: type[Exception]

    def __init__(self, address: str) -> None:
        try:
            from distributed import Client
            from distributed.scheduler import KilledWorker
        except ImportError as error:
            because = f"needs Dask ({error}); pip install 'kineto-augment[dask]'"
            raise UsageError(f"--scheduler {address}: {because}") from error
        self.lost = KilledWorker
        try:
            self._client: Any = Client(address, timeout=PATIENCE_S)
        except (OSError, ValueError) as error:
            raise OutputError(f"--scheduler {address}: no Dask scheduler answers: {error}") from error
        self._executor: Any = self._client.get_executor(pure=False)

    def capacity(self) -> int:
        """As many as its threads can do now and next."""
        return max(AT_LEAST, AHEAD * sum(map(int, self._client.nthreads().values())))

    def submit(self, task: Task) -> Future[Result]:
        """In the next thread that is free."""
        future: Future[Result] = self._executor.submit(task)
        return future

    def renew(self) -> None:
        """Nothing to do: the cluster replaces its workers itself."""

    def stop(self) -> None:
        """Take back what is not begun. What is begun is finished, for a thread cannot be stopped."""
        self._executor.shutdown(wait=False)
        self._client.close()

    def close(self) -> None:
        """Leave the cluster, which goes on."""
        self._client.close()
