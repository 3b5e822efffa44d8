"""The states of devices against counting nanoseconds, and against the temporal breakdown."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from augment.analyses import temporal_breakdown
from augment.core.annotations import SliceTrack
from augment.core.findings import Findings
from augment.facts.waits.gap_causes import STATES, device_states
from tables import Event, call, copy, kernel, slices_of, trace_of

WORK = st.lists(
    st.tuples(st.sampled_from(["gemm", "ncclDevKernel", "Memcpy HtoD"]), st.integers(0, 60), st.integers(-2, 20)),
    min_size=1,
    max_size=12,
)


def events_of(pieces: list[tuple[str, int, int]]) -> list[Event]:
    made = []
    for number, (name, start, dur) in enumerate(pieces):
        make = copy if name.startswith("Memcpy") else kernel
        made.append(make(name, start, start + dur, stream=number % 3, correlation=number + 1))
        if number % 2:
            made.append(call("cudaLaunchKernel", max(start - 5, 0), start, correlation=number + 1))
    return made


@given(WORK)
def test_every_nanosecond_has_the_state_that_it_should_have(pieces: list[tuple[str, int, int]]) -> None:
    trace = trace_of(*events_of(pieces))
    (result,) = device_states(trace)
    first, last = min(start for _, start, _ in pieces), max(start + dur for _, start, dur in pieces)
    runs = {kind: {t for name, s, d in pieces if name == kind for t in range(s, s + d)} for kind, _, _ in pieces}
    assert (result.start[1:] == result.end[:-1]).all()
    assert (np.diff(result.state.astype(int)) != 0).all()
    assert (result.end > result.start).all()
    held = {t: STATES[s] for a, b, s in zip(result.start, result.end, result.state, strict=True) for t in range(a, b)}
    assert set(held) == set(range(first, max(first, last)))
    for moment, state in held.items():
        wanted = next(
            (
                name
                for kind, name in (
                    ("gemm", "compute"),
                    ("ncclDevKernel", "exposed communication"),
                    ("Memcpy HtoD", "exposed copy"),
                )
                if moment in runs.get(kind, ())
            ),
            "idle",
        )
        assert state.split(":")[0] == wanted


@given(WORK)
def test_slices_add_up_to_the_temporal_breakdown(pieces: list[tuple[str, int, int]]) -> None:
    findings = temporal_breakdown.analyze(trace_of(*events_of(pieces)))
    assert isinstance(findings, Findings)
    (row,) = findings.rows
    ns = dict.fromkeys(STATES, 0)
    for track in findings.annotations:
        assert isinstance(track, SliceTrack)
        assert track.name == "GPU state"
        for each in slices_of(track):
            ns[each["name"]] += each["dur"]
    assert ns["compute"] == row.compute_ns
    assert ns["exposed communication"] == row.exposed_communication_ns
    assert ns["exposed copy"] == row.exposed_memory_ns
    assert sum(value for name, value in ns.items() if name.startswith("idle: ")) == row.idle_ns
