"""Which calls wait for a device, by their names; and which slices speak of a whole device."""

from __future__ import annotations

import pytest

from augment.facts.waits.sync_dependencies import sync_calls
from tables import call, kernel, sync, trace_of


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("hipStreamSynchronize", True), ("zeEventHostSynchronize", True), ("urQueueFinish", True),
        ("urEventWait", True), ("cnrtQueueSync", True), ("urEnqueueEventsWaitWithBarrier", False),
        ("cudaStreamWaitEvent", False),
    ],
)  # fmt: skip
def test_calls_that_wait_for_devices_of_all_vendors(name: str, waits: bool) -> None:
    trace = trace_of(call("cudaLaunchKernel", 0, 1), call(name, 12, 45))
    assert trace.names_of(sync_calls(trace).row) == [name] * waits


def test_a_slice_on_a_stream_speaks_of_that_alone() -> None:
    nowhere = 2**32 - 1  # -1, as Kineto once wrote it
    trace = trace_of(
        kernel("k", 0, 5),
        call("cudaDeviceSynchronize", 8, 30),
        sync("Context Sync", 9, 30, stream=nowhere),
        sync("Context Sync", 10, 31),
        sync("Stream Wait Event", 40, 50, stream=7),
    )
    result = sync_calls(trace)
    assert trace.names_of(result.row) == ["cudaDeviceSynchronize", "Context Sync", "Context Sync", "Stream Wait Event"]
    assert result.general.tolist() == [0, 1, 2]
