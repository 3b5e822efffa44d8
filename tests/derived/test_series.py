"""Time series as columns: what the counter tracks show, with all their points."""

from __future__ import annotations

import numpy as np

from augment.derived.series import memory_bandwidth_series, queue_length_series
from tables import call, copy, kernel, trace_of


def rows_of(columns: dict[str, np.ndarray]) -> list[tuple[object, ...]]:  # type: ignore[type-arg]
    return list(zip(*(column.tolist() for column in columns.values()), strict=True))


def test_queue_lengths_of_every_stream() -> None:
    columns = queue_length_series(
        trace_of(
            call("cudaLaunchKernel", 0, 1, correlation=1),
            call("cudaLaunchKernel", 5, 6, correlation=2),
            call("cudaLaunchKernel", 9, 10, correlation=3),
            kernel("a", 9, 20, correlation=1),
            kernel("b", 30, 40, correlation=2),
            kernel("c", 12, 40, correlation=3, stream=8, device=1),
            kernel("of no launch", 12, 40, stream=9),
        )
    )
    assert list(columns) == ["rank", "device", "stream", "ts", "queue_length"]
    assert rows_of(columns) == [
        (0, 0, 7, 0, 1), (0, 0, 7, 5, 2), (0, 0, 7, 9, 1), (0, 0, 7, 30, 0), (0, 1, 8, 9, 1), (0, 1, 8, 12, 0)
    ]  # fmt: skip
    assert columns["stream"].dtype == np.int64


def test_bandwidths_of_every_kind() -> None:
    columns = memory_bandwidth_series(
        trace_of(
            copy("Memcpy HtoD (Pageable -> Device)", 0, 10, 100),
            copy("Memcpy HtoD (Pinned -> Device)", 5, 15, 20, stream="x"),
            copy("Memset (Device)", 5, 6, 3, device="gpu"),
            copy("Memcpy DtoH", 5, 6),  # of unknown size
        )
    )
    assert list(columns) == ["rank", "device", "kind", "ts", "bytes_per_second"]
    assert rows_of(columns) == [
        (0, 0, "Memcpy HtoD", 0, 10 * 10**9),
        (0, 0, "Memcpy HtoD", 5, 12 * 10**9),
        (0, 0, "Memcpy HtoD", 10, 2 * 10**9),
        (0, 0, "Memcpy HtoD", 15, 0),
        (0, "gpu", "Memset", 5, 3 * 10**9),
        (0, "gpu", "Memset", 6, 0),
    ]


def test_of_nothing() -> None:
    for columns in (queue_length_series(trace_of()), memory_bandwidth_series(trace_of())):
        assert {len(column) for column in columns.values()} == {0}
