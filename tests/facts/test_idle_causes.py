"""Why streams stood idle: against the truth of simulated jobs, and unmoved by what cannot matter."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from augment import augment, read
from augment.core import SliceTrack
from metamorphic import GPU_WORK, Event, load, save, without_first_launches
from simulator import JobOptions, simulate
from tables import slices_of

pytestmark = pytest.mark.slow

NAME = "idle_time_breakdown"
RECORDED = Path(__file__).resolve().parents[3] / "shared" / "traces"
JOBS = {
    "waits": JobOptions(steps=4, layers=2, causes=True),
    "runs ahead": JobOptions(steps=6, layers=2, causes=True, run_ahead=2),
    "fully sharded": JobOptions(steps=6, layers=4, causes=True, run_ahead=3, collectives="fsdp", work=3.0, straggler=1),
    "side streams": JobOptions(steps=6, layers=2, causes=True, run_ahead=2, side_streams=3, work=2.0),
    "cut": JobOptions(
        steps=6, layers=2, causes=True, run_ahead=2, side_streams=2, record_from=(2.4, 3.1), record_until=(5.5, 5.9)
    ),
    "host bound": JobOptions(steps=4, layers=2, causes=True, work=0.02, side_streams=1, straggler=1),
    "whole microseconds": JobOptions(steps=4, layers=2, causes=True, run_ahead=1, side_streams=2, whole_us=True),
    "graphs": JobOptions(steps=4, layers=2, causes=True, run_ahead=1, side_streams=2, graphs=True, collectives="fsdp"),
    "lost kernels": JobOptions(steps=6, layers=2, causes=True, run_ahead=2, side_streams=2, lost_rank=0),
    "stalled": JobOptions(steps=4, layers=2, causes=True, side_streams=1, host_stall_us=3000, collectives="fsdp"),
}
Slice = dict[str, Any]


@lru_cache(maxsize=1)
def idle_of(path: Path) -> tuple[list[Any], dict[str, list[Slice]]]:
    """The rows, and the slices of each track; times count as in the file."""
    trace = read(str(path))
    outcome = augment(trace, only=[NAME]).outcomes[NAME]
    drawn: dict[str, list[Slice]] = {}
    for track in outcome.annotations:
        if isinstance(track, SliceTrack):
            drawn[track.name] = slices_of(track)
    for slice_ in (slice_ for slices in drawn.values() for slice_ in slices):
        slice_["ts"] -= trace.source.base_ns
        slice_["end"] = slice_["ts"] + slice_["dur"]
    return outcome.rows, drawn  # type: ignore[return-value]


@pytest.fixture(scope="module", params=JOBS)
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, Any]]:
    return simulate(JOBS[request.param], tmp_path_factory.mktemp("job"))


def gaps_of(truth: Any) -> dict[str, list[Slice]]:
    """The gaps of each stream, ascending."""
    result = defaultdict(list)
    for gap in sorted(truth["causes"]["gaps"], key=lambda item: int(item["start"])):
        result[gap["stream"]].append(gap)
    return result


def test_what_a_gap_is_said_to_have_waited_for_is_true(ranks: list[tuple[Path, Any]]) -> None:
    for path, truth in ranks:
        drawn = idle_of(path)[1]
        asked = named = 0
        for stream, gaps in gaps_of(truth).items():
            for gap in gaps:
                pieces = [each for each in drawn[f"Idle stream {stream}"] if gap["start"] <= each["ts"] < gap["end"]]
                rows = [(piece["waited_for"], piece["waited_for_stream"]) for piece in pieces if "waited_for" in piece]
                waited = gap.get("waited_for")
                assert rows in ([], [(waited["name"], waited["stream"])] if waited else []), gap
                if waited and gap["launch_recorded"] and gap["end"] - gap["start"] > 100_000:
                    asked, named = asked + 1, named + len(rows)
        assert named >= 0.9 * asked


def test_host_wait_of_a_stream_is_late_launching_while_nothing_runs(ranks: list[tuple[Path, Any]]) -> None:
    for path, truth in ranks:
        drawn = idle_of(path)[1]
        waits = {(each["ts"], each["end"]) for each in drawn["Idle"] if each["name"] == "host_wait"}
        for stream, gaps in gaps_of(truth).items():
            why = {gap["end"]: gap["why"] for gap in gaps}
            for each in drawn.get(f"Idle stream {stream}", []):
                if each["name"] == "host_wait":
                    assert (each["ts"], each["end"]) in waits
                    assert why.get(each["end"], "host") == "host"


def test_the_time_in_which_another_stream_works(ranks: list[tuple[Path, Any]]) -> None:
    for path, truth in ranks:
        rows = idle_of(path)[0]
        for stream, gaps in gaps_of(truth).items():
            part = [row for row in rows if str(row.stream) == stream]
            busy = sum(gap["end"] - gap["start"] - gap["device_idle_ns"] for gap in gaps)
            assert sum(row.other_stream_busy_ns for row in part) == busy


def changed(path: Path, folder: Path, change: Callable[[Event], Event | None]) -> Path:
    """The trace with each event put through ``change``; None leaves it out."""
    document = load(path)
    events = [new for event in document["traceEvents"] if (new := change(event)) is not None]
    return save(document | {"traceEvents": events}, folder / "changed.json")


def on_a_device_of_its_own(event: Event) -> Event:
    """The work of stream 7."""
    args = event.get("args", {})
    if event.get("cat") not in GPU_WORK or args.get("stream") != 7:
        return event
    return event | {"pid": 99, "args": args | {"device": 99}}


SOME = [
    pytest.param(JOBS["stalled"], id="simulated"),
    pytest.param("mi300_tracelens/resnet_act_checkpoint_rank0of8.json.gz", id="mi300_resnet"),
    pytest.param("hta_ns_resolution/rank-0.ns_resolution.pt.trace.json.gz", id="hta_ns_resolution"),
    pytest.param("rtx3060_luatil/trace_04.json.gz", id="rtx3060_luatil"),
]


def trace_at(source: Any, folder: Path) -> Path:
    if isinstance(source, JobOptions):
        return simulate(source, folder)[0][0]
    if not (RECORDED / source).is_file():
        pytest.skip(f"no recorded trace at {RECORDED / source}")
    return RECORDED / source  # type: ignore[no-any-return]


@pytest.mark.parametrize("source", SOME)
def test_calls_that_wait_explain_no_gap(source: Any, tmp_path: Path) -> None:
    """Whether they are recorded or not, nothing is told otherwise."""
    path = trace_at(source, tmp_path)
    rows, drawn = idle_of(path)
    waits = re.compile("Synchronize|cuda_sync").search
    other_rows, other = idle_of(
        changed(path, tmp_path, lambda event: None if waits(f"{event['name']} {event.get('cat')}") else event)
    )
    assert other_rows == rows
    output, still_told = (
        {track: [slice_ for slice_ in slices if slice_["name"] != "host_wait"] for track, slices in tracks.items()}
        for tracks in (drawn, other)
    )
    assert still_told == output


@pytest.mark.parametrize("source", SOME)
def test_fewer_launches_make_no_new_claims(source: Any, tmp_path: Path) -> None:
    """A recording that begins later knows less."""
    document = load(trace_at(source, tmp_path))
    claims = []
    for count in (0, 50, 400):
        tracks = idle_of(save(without_first_launches(document, count), tmp_path / f"{count}.json"))[1].items()
        waiting = [(track, each) for track, part in tracks for each in part if "waited_for" in each]
        claims.append({(track, each["end"], each["waited_for"]) for track, each in waiting})
    assert claims[0] >= claims[1] >= claims[2]


def test_a_stream_alone_on_its_device_has_no_other_to_wait_for(tmp_path: Path) -> None:
    path = trace_at(JOBS["runs ahead"], tmp_path)
    before, after = (
        {(row.stream, row.category): row for row in idle_of(each)[0]}
        for each in (path, changed(path, tmp_path, on_a_device_of_its_own))
    )
    assert before.keys() == after.keys()
    for key, row in after.items():
        assert (row.idle_ns, row.gap_count) == (before[key].idle_ns, before[key].gap_count)
    assert any(row.other_stream_busy_ns for key, row in before.items() if key[0] == 7)
    assert not any(row.other_stream_busy_ns for key, row in after.items() if key[0] == 7)
